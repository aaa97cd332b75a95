"""Embedding tables in TensorBoard, read back with its own reader: points, charts, text, picture."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.samples import ITEM, USER, batch, info, lookup_rows
from trainobs.access import AccessCounts
from trainobs.core.records import SETUP
from trainobs.tensorboard import sink as sink_module
from trainobs.tensorboard import skew_picture, table_views
from trainobs.tensorboard.sink import EventFile, TensorBoardSink
from trainobs.tensorboard.skew_picture import HEIGHT, WIDTH, Curve, picture
from trainobs.tensorboard.table_curves import CURVES


def read(folder) -> EventAccumulator:
    kinds = ("scalars", "tensors", "images")
    events = EventAccumulator(str(folder), size_guidance=dict.fromkeys(kinds, 0))
    events.Reload()
    return events


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Runs lookups of ten steps through a sink, windows of four; what TensorBoard reads."""

    def run(*rows, tables=(USER, ITEM), counts=None, steps=range(10), every_tag=True):
        monkeypatch.setattr(sink_module, "STEPS_ALONE", 0)
        sink = TensorBoardSink(EventFile(tmp_path), 4, counts=lambda: counts, every_tag=every_tag)
        sink.begin(info(tables=tables))
        lookups = lookup_rows(*rows) if rows else None
        sink.write(replace(batch(steps, step__duration_ns=[1e9] * len(steps)), lookups=lookups))
        sink.end({})
        return read(tmp_path)

    return run


def points(events, tag) -> dict[int, float]:
    return {event.step: pytest.approx(event.value) for event in events.Scalars(f"trainobs/{tag}")}


def embedding_tags(events) -> list[str]:
    return [tag for tag in events.Tags()["scalars"] if tag.startswith("trainobs/embedding/")]


def test_a_point_is_the_mean_of_a_step_by_table_and_over_all_tables(log):
    events = log(
        *((step, 0, {"lookup_count": 100 * step, "bytes": 1}) for step in range(10)),
        *((step, 1, {"lookup_count": 40, "bytes": 1}) for step in (2, 4, 6)),
    )
    assert points(events, "embedding/lookup_count/user") == {3: 150, 7: 550}
    # A step in which a table served nothing is one in which it served nothing.
    assert points(events, "embedding/lookup_count/item") == {3: 10, 7: 20}
    assert points(events, "embedding/lookup_count") == {3: 160, 7: 570}


def test_what_is_known_of_sampled_steps_only_is_a_mean_of_those(log):
    rows = [(step, 0, {"lookup_count": 100, "bytes": 9}) for step in range(8)]
    rows[1][2].update(unique_rows=30, hottest_1pct_count=50)
    rows[2][2].update(unique_rows=50, hottest_1pct_count=100)
    rows[7][2].update(unique_rows=20, hottest_1pct_count=10)
    events = log(*rows)
    assert points(events, "embedding/unique_rows/user") == {3: 40, 7: 20}
    assert points(events, "embedding/hottest_1pct_percent/user") == {3: 75, 7: 10}
    assert points(events, "embedding/duplicate_percent") == {3: 60, 7: 80}
    assert "trainobs/embedding/gradient_rows" not in embedding_tags(events)


def test_a_table_that_served_half_the_steps_and_was_sampled_once_is_not_underrated(log):
    rows = [(0, 0, {"lookup_count": 8, "unique_rows": 6, "bytes": 8})]
    rows += [(2, 0, {"lookup_count": 8, "bytes": 8})]
    rows += [(4, 0, {"lookup_count": 4, "unique_rows": 4, "bytes": 4})]
    assert points(log(*rows), "embedding/unique_rows/user") == {3: 3, 7: 1}


def test_lookups_before_the_first_step_have_no_point(log):
    rows = [(SETUP, 0, {"bytes": 1e9})]
    rows += [(step, 0, {"bytes": 4e6 * many}) for step, many in ((0, 2), (1, 1), (5, 1))]
    events = log(*rows, steps=[SETUP, *range(8)])
    assert points(events, "embedding/MB") == {3: 3, 7: 1}


def test_a_thousand_tables_have_a_bounded_number_of_curves(log):
    tables = tuple(replace(USER, name=f"t{n}") for n in range(1000))
    rows = [(s, n, {"bytes": n, "lookup_count": 1}) for s in range(8) for n in range(1000)]
    events = log(*rows, tables=tables)
    shown = [tag for tag in embedding_tags(events) if tag.startswith("trainobs/embedding/MB/")]
    assert shown == [f"trainobs/embedding/MB/t{n}" for n in range(999, 999 - CURVES, -1)]
    assert points(events, "embedding/MB") == {3: 0.4995, 7: 0.4995}
    assert len(embedding_tags(events)) < 10 * CURVES


def test_a_run_without_tables_has_no_word_of_them(log):
    events = log(tables=())
    tags = events.Tags()
    assert not [
        tag for kind in ("scalars", "tensors", "images") for tag in tags[kind] if "emb" in tag
    ]


def test_by_default_there_is_one_curve_of_all_tables(log):
    rows = [
        (s, n, {"bytes": 1e6, "lookup_count": 1, "unique_rows": 1})
        for s in range(8)
        for n in (0, 1)
    ]
    events = log(*rows, every_tag=False)
    assert embedding_tags(events) == ["trainobs/embedding/MB"]
    assert points(events, "embedding/MB") == {3: 2, 7: 2}


def test_the_text_lists_the_tables_that_read_most(log):
    rows = [(s, 0, {"lookup_count": 1000, "bytes": 64_000, "bag_count": 10}) for s in range(4)]
    rows += [(s, 1, {"lookup_count": 4, "bytes": 128_000, "unique_rows": 3}) for s in range(4)]
    (event,) = log(*rows, steps=range(4)).Tensors("trainobs/embedding/tables")
    head, rule, item, user = event.tensor_proto.string_val[0].decode().splitlines()
    assert head.count("|") == rule.count("|") == item.count("|") == user.count("|")
    cells = [cell.strip() for cell in item.strip("|").split("|")]
    assert cells == ["item", "100", "8", "hbm", "4", "128 kB", "67 %", "25 %", "-", "-"]
    assert user.startswith("| user | 1 k | 16 | host | 1 k | 64 kB | 33 % | - |")


@pytest.fixture
def counts():
    counts = AccessCounts({"user": 1000, "item": 100})
    counts.add("user", np.repeat(np.arange(1000), 1000 - np.arange(1000)))
    return counts


def test_the_picture_is_there_at_the_end(log, counts):
    rows = [(s, 0, {"lookup_count": 1, "bytes": 1}) for s in range(4)]
    (event,) = log(*rows, counts=counts).Images("trainobs/embedding/skew")
    drawn = Image.open(io.BytesIO(event.encoded_image_string))
    assert (drawn.format, drawn.size) == ("PNG", (WIDTH, HEIGHT))
    assert (event.width, event.height) == (WIDTH, HEIGHT)
    assert event.step == 9


def test_without_pillow_the_rest_is_logged(log, counts, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    rows = [(s, 0, {"lookup_count": 1, "bytes": 1}) for s in range(4)]
    events = log(*rows, counts=counts)
    assert events.Tags()["images"] == []
    assert len(events.Tensors("trainobs/embedding/tables")) == 1


def place(rows: float, served: float, decades: int) -> tuple[int, int]:
    """Pixel of a point of the plot, from the margins of the picture."""
    width = WIDTH - skew_picture._LEFT - skew_picture._RIGHT
    height = HEIGHT - skew_picture._TOP - skew_picture._BOTTOM
    x = skew_picture._LEFT + width * (1 + np.log10(rows) / decades)
    return round(x), round(skew_picture._TOP + height * (1 - served))


def test_a_curve_goes_through_its_points_and_nowhere_else():
    curve = Curve("user", np.array([0.001, 0.01, 0.1, 1.0]), np.array([0.2, 0.5, 0.8, 1.0]))
    drawn = Image.open(io.BytesIO(picture([curve]))).convert("RGB")
    blue = tuple(int(skew_picture._COLOURS[0][n : n + 2], 16) for n in (1, 3, 5))

    def has_curve(rows, served):
        x, y = place(rows, served, decades=3)
        near = [drawn.getpixel((x, y + dy)) for dy in (-1, 0, 1)]
        return min(max(abs(a - b) for a, b in zip(p, blue, strict=True)) for p in near) < 60

    for rows, served in ((0.0011, 0.2124), (0.01, 0.5), (0.0316, 0.65), (0.1, 0.8)):
        assert has_curve(rows, served)
        assert not has_curve(rows, served + 0.05)


def test_views_come_at_a_pace_that_their_cost_allows(counts):
    from trainobs.tensorboard.table_curves import TableCurves

    clock = iter([0.0, 59.0, 60.0, 60.0, 61.0, 200.0, 259.9, 261.1])
    curves = TableCurves((USER, ITEM))
    views = table_views.TableViews(curves, lambda: counts, now=lambda: next(clock))
    assert not views.due()
    assert views.due()
    curves.add(lookup_rows((0, 0, {"bytes": 1, "lookup_count": 1})))
    list(curves.scalars(1))
    assert [value.tag for value in views.values()] == [
        "trainobs/embedding/tables",
        "trainobs/embedding/skew",
    ]
    assert [views.due() for _ in range(3)] == [False, False, True]  # they took a second
