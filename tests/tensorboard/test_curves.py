"""No chart without a curve: TensorBoard gets a tag with all of its points if it has two of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.samples import USER, batch, info, lookup_rows
from tests.tensorboard.readers import READERS, curves_of, layout, opened, points, tags
from trainobs.core.catalogue import STEP_METRICS
from trainobs.core.catalogue.named import metric_of_phase
from trainobs.core.catalogue.own_counters import metrics_of_counter
from trainobs.core.embedding_table import LOOKUP_FIELDS
from trainobs.core.own_counter import OwnCounter
from trainobs.core.sink import Points
from trainobs.tensorboard.curves import Curves
from trainobs.tensorboard.layout import LayoutWriter
from trainobs.tensorboard.sink import EventFile, TensorBoardSink

STEPS = 40
FIRST_PART = 15
MOST = 3
"""A metric is known in none to so many steps of a run."""

COUNTERS = [OwnCounter(f"own {n}", "ns", "my.c") for n in range(MOST + 1)]
OWN = [*(metrics_of_counter(c)[0] for c in COUNTERS), *(metric_of_phase(f"p{n}") for n in range(4))]
METRICS = {False: [*(m for m in STEP_METRICS if m.chart), *OWN], True: [*STEP_METRICS, *OWN]}
RUNS = [*product((False, True), range(MOST + 1))]
"""Whether every tag is asked for, and in how many steps the first metric is known."""


def known_in(metric: int, turn: int) -> list[int]:
    return sorted((7 * metric + 11 * n) % STEPS for n in range((metric + turn) % (MOST + 1)))


def write(place: Path, every_tag: bool, turn: int) -> None:
    """A run in which each metric is known in a few steps alone."""
    sink = TensorBoardSink(LayoutWriter(EventFile(place)), 50, every_tag=every_tag)
    sink.begin(info(tables=(USER,), counters=COUNTERS))
    columns = {metric.name: np.full(STEPS, np.nan) for metric in METRICS[every_tag]}
    for n, column in enumerate(columns.values()):
        column[known_in(n, turn)] = 1
    steps = replace(batch(range(STEPS)), columns=columns)
    lookups = lookup_rows((5, 0, dict.fromkeys(LOOKUP_FIELDS, 1.0)))
    for part in (range(FIRST_PART), range(FIRST_PART, STEPS)):
        rows = steps.select(np.isin(steps.step, part))
        sink.write(replace(rows, lookups=lookups if 5 in part else None))
        sink.flush()
    sink.points(Points(30, 10**12, [("trainobs/ranks/step/duration_ms/median", 1.0)]))
    sink.end({})


@pytest.fixture(scope="module", params=READERS)
def read(request, tmp_path_factory):
    place = tmp_path_factory.mktemp("logs")
    for every_tag, turn in RUNS:
        write(place / f"{every_tag}-{turn}", every_tag, turn)
    with opened(request.param, place) as provider:
        yield provider


@pytest.mark.parametrize(("every_tag", "turn"), RUNS)
def test_any_metric_has_all_of_its_points_or_no_tag(read, every_tag, turn):
    run = f"{every_tag}-{turn}"
    metrics = enumerate(METRICS[every_tag])
    known = {metric.tag.name: known_in(n, turn) for n, metric in metrics}
    found = {tag: list(points(read, run, tag)) for tag in tags(read, "scalars")[run]}
    shares = found.pop("trainobs/loader/wait_percent", [0, 1])
    assert found == {tag: steps for tag, steps in known.items() if len(steps) > 1}
    assert len(shares) > 1
    assert {len(steps) for steps in known.values()} == {0, 1, 2, 3}


def test_no_chart_is_without_a_curve(read):
    names = {tag for of_run in tags(read, "scalars").values() for tag in of_run}
    charts = layout(read)["trainobs"]
    assert all(curves_of(chart, sorted(names)) for chart in charts)


def test_points_come_in_the_order_of_their_time_and_two_at_one_step_are_none():
    curves = Curves()
    assert curves.of(Points(7, 1, [("a", 1), ("b", 1)])) == []
    assert curves.of(Points(7, 2, [("a", 2)])) == []
    assert curves.of(Points(8, 3, [("a", 3), ("c", 3)])) == [
        Points(7, 2, [("a", 2)]),
        Points(8, 3, [("a", 3)]),
    ]
    assert curves.of(Points(5, 4, [("a", 4), ("b", 4), ("c", 4)])) == [
        Points(7, 1, [("b", 1)]),
        Points(8, 3, [("c", 3)]),
        Points(5, 4, [("a", 4), ("b", 4), ("c", 4)]),
    ]
