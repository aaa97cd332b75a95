"""TensorBoard, read back with its own reader: exact points, no more and no fewer."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from tests.samples import CLOCK, NO_LATENCY, batch, cells, info
from trainobs.core.abi import BUCKETS, FileClass, Op, Role
from trainobs.core.catalogue import CATALOGUE
from trainobs.core.errors import SettingError
from trainobs.core.records import SETUP
from trainobs.tensorboard.sink import EventFile, TensorBoardSink
from trainobs.tensorboard.window import Window


@pytest.fixture
def log(tmp_path):
    """Runs batches through a sink and returns what TensorBoard reads."""

    def run(every, *batches, first_step=0):
        sink = TensorBoardSink(EventFile(tmp_path), every, first_step)
        sink.begin(info())
        for steps in batches:
            sink.write(steps)
            sink.flush()
        sink.end({})
        assert sink.lost_steps == 0
        return read(tmp_path)

    return run


def read(folder) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "histograms": 0})
    events.Reload()
    return events


def points(events, tag) -> dict[int, float]:
    return {event.step: event.value for event in events.Scalars(tag)}


def test_a_point_is_the_mean_of_its_window_and_the_rest_comes_at_the_end(log):
    events = log(4, batch(range(10), io__read_bytes=range(10)))
    assert points(events, "io/read_bytes") == {3: 1.5, 7: 5.5, 9: 8.5}


def test_windows_do_not_depend_on_how_steps_were_handed_over(log):
    events = log(4, *(batch([step], io__read_bytes=[step]) for step in range(10)))
    assert points(events, "io/read_bytes") == {3: 1.5, 7: 5.5, 9: 8.5}


def test_a_run_that_resumes_logs_at_the_same_steps(log):
    events = log(4, batch(range(6, 14), io__read_bytes=range(8)))
    assert points(events, "io/read_bytes") == {7: 0.5, 11: 3.5, 13: 6.5}


def test_a_framework_that_counts_from_1_has_its_points_at_multiples(log):
    events = log(4, batch(range(1, 11), io__read_bytes=range(10)), first_step=1)
    assert points(events, "io/read_bytes") == {4: 1.5, 8: 5.5, 10: 8.5}


def test_what_came_before_the_first_step_has_no_point(log):
    events = log(2, batch([SETUP, 0, 1], io__read_bytes=[1000, 1, 3]))
    assert points(events, "io/read_bytes") == {1: 2.0}


def test_the_slow_steps_of_a_window_show(log):
    events = log(100, batch(range(100), step__duration_ns=np.arange(1, 101)))
    assert points(events, "step/duration_ns") == {99: 50.5}
    assert points(events, "step/duration_ns/p95") == {99: pytest.approx(95.05)}
    assert points(events, "step/duration_ns/max") == {99: 100}


def test_a_window_of_one_step_has_no_spread(log):
    events = log(1, batch([0, 1], step__duration_ns=[5, 6]))
    assert events.Tags()["scalars"] == ["step/duration_ns"]


def test_a_ratio_is_formed_from_the_sums_of_its_window(log):
    read = (Op.CACHE_READ, FileClass.DATA, Role.WORKER)
    miss = (Op.CACHE_MISS, FileClass.DATA, Role.WORKER)
    rows = cells(
        2,
        (0, *read, {"bytes": 100}),
        (0, *miss, {"bytes": 100}),
        (1, *read, {"bytes": 900}),
    )
    events = log(2, batch([0, 1], cells=rows, cache__hit_ratio=[0.0, 1.0]))
    assert points(events, "cache/hit_ratio") == {1: pytest.approx(0.9)}  # not the mean, 0.5


def test_a_quantile_is_taken_of_all_events_of_its_window(log):
    latency = np.zeros((2, BUCKETS), np.uint64)
    latency[0, 10] = 1
    latency[1, 20] = 99
    events = log(2, batch([0, 1], latency=latency, block__read_p99_ns=[2e3, 2e6]))
    expected = 2 ** (20 + 98 / 99)
    assert points(events, "block/read_p99_ns") == {1: pytest.approx(expected)}


def test_a_metric_without_source_or_value_has_no_point(log):
    events = log(1, batch([0, 1], io__read_bytes=[1, 2], cache__hit_ratio=[np.nan, 0.5]))
    assert events.Tags()["scalars"] == ["io/read_bytes", "cache/hit_ratio"]
    assert points(events, "cache/hit_ratio") == {1: 0.5}


def test_a_point_stands_at_the_wall_time_at_which_its_last_step_ended(log):
    events = log(2, batch([0, 1], step__duration_ns=[1e9, 5e8]))
    (event,) = events.Scalars("step/duration_ns")
    end_ns = 3_000_000_000 + 500_000_000
    assert event.wall_time == (CLOCK["wall_ns"] + end_ns - CLOCK["monotonic_ns"]) / 1e9


def test_the_layout_draws_every_charted_metric_in_exactly_one_chart_of_the_page(log):
    (event,) = log(1, batch([0])).Tensors("custom_scalars__config__")
    layout = Layout.FromString(event.tensor_proto.string_val[0])
    first = [pattern for chart in layout.category[0].chart for pattern in chart.multiline.tag]
    assert first[0] == r"^step/duration_ns$"
    for metric in CATALOGUE:
        hits = [pattern for pattern in first if re.match(pattern, metric.name)]
        assert len(hits) == bool(metric.chart), metric.name
    assert not any(re.match(pattern, "step/duration_ns/max") for pattern in first)


def test_histograms_hold_what_came_since_the_ones_before(tmp_path):
    sink = TensorBoardSink(EventFile(tmp_path), 1)
    sink.begin(info())
    buckets = NO_LATENCY.copy()
    for step, count in enumerate([3, 4, 9]):  # 20 s apart: the second is not due
        steps = batch([step], io__read_bytes=[1])
        sink.write(replace(steps, start_ns=steps.start_ns + step * 20_000_000_000))
        buckets[Op.READ, FileClass.DATA, Role.WORKER, 10] = count
        buckets[Op.READ, FileClass.PIPE, Role.WORKER, 10] = 1000
        sink.latency(buckets)
        sink.flush()
    sink.end({})
    events = read(tmp_path)
    assert events.Tags()["histograms"] == ["latency/data_read_log10_us"]
    found = events.Histograms("latency/data_read_log10_us")
    assert [(event.step, event.histogram_value.num) for event in found] == [(0, 3), (2, 6)]
    value = found[0].histogram_value
    edges = [math.log10(1.024), math.log10(2.048)]
    assert value.bucket_limit == pytest.approx(edges)
    assert value.bucket == [0, 3]
    assert (value.min, value.max) == pytest.approx(edges)


def test_what_came_after_the_last_histogram_is_logged_at_the_end(tmp_path):
    sink = TensorBoardSink(EventFile(tmp_path), 1)
    sink.begin(info())
    sink.write(batch([0], io__read_bytes=[1]))
    buckets = NO_LATENCY.copy()
    for count in (1, 3):
        buckets[Op.FSYNC, FileClass.CHECKPOINT, Role.MAIN, 20] = count
        sink.latency(buckets)
        sink.flush()
    sink.end({})
    found = read(tmp_path).Histograms("latency/fsync_log10_us")
    assert [event.histogram_value.num for event in found] == [1, 2]


@pytest.mark.parametrize("every", [0, -1])
def test_a_window_without_steps_is_refused(tmp_path, every):
    with pytest.raises(SettingError, match="log_every_n_steps"):
        TensorBoardSink(EventFile(tmp_path), every)


def test_numbers_that_make_larger_strides_are_logged_where_they_pass_a_point(log):
    steps = [64 * i for i in range(8)]
    events = log(100, *(batch([step], io__read_bytes=[step]) for step in steps))
    assert points(events, "io/read_bytes") == {128: 64, 256: 224, 320: 320, 448: 416}


@pytest.mark.parametrize("steps", [[7] * 50, list(range(50, 0, -1)), [10**6] * 25 + [3] * 25])
def test_a_window_holds_no_more_steps_than_asked_for(tmp_path, monkeypatch, steps):
    longest = 0
    add = Window.add

    def watched(window, *args):
        nonlocal longest
        add(window, *args)
        longest = max(longest, len(window))

    monkeypatch.setattr(Window, "add", watched)
    sink = TensorBoardSink(EventFile(tmp_path), 4)
    sink.begin(info())
    for first in range(0, 50, 10):
        sink.write(batch(steps[first : first + 10]))
    sink.end({})
    assert longest == 4
