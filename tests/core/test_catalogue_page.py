"""docs/metrics.md comes from the catalogue; tests/architecture holds that it is up to date."""

from __future__ import annotations

import re

from trainobs.core.catalogue import CATALOGUE, kernel_metrics
from trainobs.core.catalogue_page import page
from trainobs.core.coverage import Programs
from trainobs.probes.programs import LIMIT, PROBES, programs_of


def test_every_metric_has_one_row():
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    names = [row.split("`")[1] for row in rows]
    assert names[: len(CATALOGUE)] == [metric.name for metric in CATALOGUE]


def test_every_room_has_one_section():
    headings = [line for line in page().splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings))


def test_a_tracepoint_that_is_named_as_a_source_is_one_of_the_probes():
    named = {name for metric in CATALOGUE for name in re.findall(r"[a-z]+_[a-z_]+", metric.source)}
    assert len(named) == 14
    points = [program.attach_point.split("/")[-1] for program in programs_of(PROBES).values()]
    assert named <= set(points)


def test_what_a_metric_rests_on_is_a_program_that_there_is():
    needed = Programs().union(*(metric.programs for metric in CATALOGUE))
    there = {program.name for programs in PROBES.values() for program in programs}
    assert needed == there - {LIMIT}  # which others stand in for, and older run logs do not name


def test_every_metric_made_of_cells_rests_on_programs_and_its_row_shows_them():
    text = page()
    for metric in kernel_metrics():
        assert metric.programs
        (row,) = (line for line in text.splitlines() if line.startswith(f"| `{metric.name}`"))
        assert all(f"`{program}`" in row for program in metric.programs)
