"""What TensorBoard's own pages get, read by its data server and by its Python loader."""

from __future__ import annotations

import html
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.samples import NO_LATENCY, USER, batch, busy_run, info, lookup_rows
from tests.tensorboard.readers import (
    CONTEXT,
    READERS,
    curves_of,
    layout,
    opened,
    points,
    tags,
    text,
)
from trainobs.access import AccessCounts
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.text import printable
from trainobs.tensorboard.layout import CATEGORY, LayoutWriter
from trainobs.tensorboard.sink import EventFile, TensorBoardSink

HOSTILE = "<script>alert(1)</script>\n![x](http://a/b) **b** | `c` &lt; \u202etxt \udcff\x1b[31m"
STEPS = 330


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    """Logs of a run with tables of odd names, and of one that knew the time of its steps alone."""
    place = tmp_path_factory.mktemp("logs")
    tables = tuple(replace(USER, name=name) for name in (HOSTILE, "model.emb_a.__weight__"))
    counts = AccessCounts({table.name: 1000 for table in tables})
    counts.add(tables[0].name, np.arange(1000))
    fields = {"bytes": 1e6, "lookup_count": 1}
    rows = lookup_rows(*((step, n, fields) for step in range(STEPS) for n in (0, 1)))
    buckets = NO_LATENCY.copy()
    buckets[Op.READ, FileClass.DATA, Role.WORKER, 10:20] = 100
    for every_tag in (False, True):
        file = LayoutWriter(EventFile(place / ("all" if every_tag else "default")))
        sink = TensorBoardSink(file, 50, counts=lambda: counts, every_tag=every_tag)
        sink.begin(info(tables=tables))
        sink.write(replace(busy_run(STEPS), lookups=rows))
        sink.latency(buckets)
        sink.flush()
        sink.end({})
    sink = TensorBoardSink(LayoutWriter(EventFile(place / "timing")), 50)
    sink.begin(info("timing"))
    sink.write(batch(range(3), step__duration_ns=[1e6, 2e6, 3e6]))
    sink.end({})
    return place


@pytest.fixture(scope="module", params=READERS)
def read(request, logs):
    with opened(request.param, logs) as provider:
        yield provider


def test_every_point_is_read_in_the_unit_of_its_tag(read):
    found = points(read, "timing", "trainobs/step/duration_ms")
    assert found == {0: 1, 1: 2, 2: 3}
    assert tags(read, "scalars")["timing"] == ["trainobs/step/duration_ms"]
    assert list(points(read, "default", "trainobs/loader/wait_percent")) == [*range(200), 249, 299]


def test_at_most_40_tags_by_default_on_all_pages_together(read):
    kinds = ("scalars", "histograms", "text", "images")
    for run in ("default", "timing"):
        shown = [tag for kind in kinds for tag in tags(read, kind).get(run, ())]
        assert all(tag.startswith("trainobs/") for tag in shown)
        assert len(shown) <= 40
    assert len(tags(read, "scalars")["all"]) > 60


def test_no_chart_is_without_a_curve_and_every_default_curve_has_a_chart(read):
    found = layout(read)
    assert list(found) == [CATEGORY]
    names = tags(read, "scalars")["default"]
    drawn = [curves_of(chart, names) for chart in found[CATEGORY]]
    assert all(drawn)
    assert sorted(sum(drawn, [])) == sorted(names)


def test_the_layouts_of_several_runs_come_to_one_with_each_chart_once(read, logs):
    titles = [chart["title"] for chart in layout(read)[CATEGORY]]
    assert len(titles) == len(set(titles))
    with opened("python", logs / "timing") as timing:
        assert [chart["title"] for chart in layout(timing)[CATEGORY]] == ["Step time (ms per step)"]


def test_a_name_is_shown_as_text_whatever_it_holds(read):
    (curve,) = (tag for tag in tags(read, "scalars")["all"] if "/MB/<" in tag)
    assert curve == f"trainobs/embedding/MB/{printable(HOSTILE)}"
    assert points(read, "all", curve)[0] == 1
    page = text(read, "all", "trainobs/embedding/tables")
    names = [html.unescape(cell) for cell in re.findall(r"<tr>\s*<td>(.*?)</td>", page, re.S)]
    assert names == [printable(HOSTILE), "model.emb_a.__weight__"]
    assert "<script" not in page
    assert "<img" not in page


def test_histograms_pictures_and_verdicts_are_read(read):
    assert tags(read, "histograms")["default"] == ["trainobs/latency_by_time/data_read_ms"]
    assert sorted(tags(read, "text")["default"]) == [
        "trainobs/embedding/tables",
        "trainobs/verdict/epoch",
        "trainobs/verdict/run",
    ]
    pictures = read.list_blob_sequences(CONTEXT, experiment_id="", plugin_name="images")
    assert list(pictures["default"]) == ["trainobs/embedding/skew"]
