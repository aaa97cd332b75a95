"""docs/metrics.md comes from the catalogue; tests/architecture holds that it is up to date."""

from __future__ import annotations

import re

from trainobs.core.catalogue import CATALOGUE
from trainobs.core.catalogue_page import page
from trainobs.probes.programs import PROBES, programs_of


def test_every_metric_has_one_row():
    rows = [line for line in page().splitlines() if line.startswith("| `")]
    names = [row.split("`")[1] for row in rows]
    assert names[: len(CATALOGUE)] == [metric.name for metric in CATALOGUE]


def test_every_room_has_one_section():
    headings = [line for line in page().splitlines() if line.startswith("## ")]
    assert len(headings) == len(set(headings))


def test_a_tracepoint_that_is_named_as_a_source_is_one_of_the_probes():
    named = {name for metric in CATALOGUE for name in re.findall(r"[a-z]+_[a-z_]+", metric.source)}
    assert len(named) == 13
    assert named <= {program.tracepoint for program in programs_of(PROBES).values()}
