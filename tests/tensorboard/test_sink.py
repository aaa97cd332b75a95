"""TensorBoard, read back with its own reader: exact points, no more and no fewer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.samples import CLOCK, ITEM, NO_LATENCY, USER, batch, cells, info, lookup_rows
from trainobs.core.abi import BUCKETS, FileClass, Op, Role
from trainobs.core.catalogue import EMBEDDINGS, STEP_METRICS
from trainobs.core.embedding_table import LOOKUP_FIELDS
from trainobs.core.errors import SettingError
from trainobs.core.own_counter import OwnCounter
from trainobs.core.records import DATA_IS_NAMED, SETUP
from trainobs.tensorboard import sink as sink_module
from trainobs.tensorboard.latency import latency_values
from trainobs.tensorboard.layout import LayoutWriter
from trainobs.tensorboard.sink import EventFile, TensorBoardSink
from trainobs.tensorboard.window import StepWindows, WindowEnds


@pytest.fixture
def log(tmp_path, monkeypatch):
    """Runs batches through a sink and returns what TensorBoard reads."""

    def run(every, *batches, first_step=0, alone=0, every_tag=True):
        monkeypatch.setattr(sink_module, "STEPS_ALONE", alone)
        sink = TensorBoardSink(
            LayoutWriter(EventFile(tmp_path)), every, first_step, every_tag=every_tag
        )
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
    return {event.step: pytest.approx(event.value) for event in events.Scalars(f"trainobs/{tag}")}


def test_a_point_is_the_mean_of_its_window_and_a_window_that_is_cut_short_has_none(log):
    events = log(4, batch(range(10), io__read_bytes=1e6 * np.arange(10)))
    assert points(events, "io/read_MB") == {3: 1.5, 7: 5.5}


@pytest.mark.parametrize(
    ("named", "data", "thread", "is_known"),
    [
        (False, 0, 0, True),
        (False, 0, 3_000_000, False),  # a pool of threads in the data set, say
        (False, 9_000_000, 3_000_000, True),
        (True, 0, 3_000_000, False),
        (True, 1, 3_000_000, True),
    ],
)
def test_points_of_data_are_left_out_where_that_is_unknown(named, data, thread, is_known, tmp_path):
    sink = TensorBoardSink(EventFile(tmp_path), 2, every_tag=True)
    sink.begin(info(settings={DATA_IS_NAMED: named}))
    counted = [
        (row, Op.READ, of, role, {"count": min(amount, 1), "bytes": amount})
        for row in range(4)
        for of, role, amount in (
            (FileClass.DATA, Role.WORKER, data),
            (FileClass.OTHER, Role.THREAD, thread),
        )
    ]
    columns = {"io__data_read_bytes": [data] * 4, "io__read_bytes": [data + thread] * 4}
    sink.write(batch(range(4), cells(4, *counted), **columns))
    sink.end({})
    tags = read(tmp_path).Tags()["scalars"]
    assert ("trainobs/io/data_read_MB" in tags) == is_known
    assert "trainobs/io/read_MB" in tags


def test_a_user_s_counter_has_a_curve_and_one_for_each_role_on_request(tmp_path):
    counter = OwnCounter("lock wait", "ns", "my.c")
    columns = {"probe/lock_wait": np.arange(4) * 1e6, "probe/lock_wait{role=worker}": np.ones(4)}
    steps = replace(batch(range(4)), columns={**columns, "probe/unknown": np.full(4, np.nan)})
    by_role = "trainobs/probe/lock_wait_ms/worker"
    for every_tag in (False, True):
        folder = tmp_path / str(every_tag)
        sink = TensorBoardSink(EventFile(folder), 2, every_tag=every_tag)
        sink.begin(info(counters=[counter]))
        sink.write(steps)
        sink.end({})
        found = read(folder)
        assert points(found, "probe/lock_wait_ms") == {0: 0, 1: 1, 2: 2, 3: 3}
        tags = {tag for tag in found.Tags()["scalars"] if "/probe/" in tag}
        assert tags == {"trainobs/probe/lock_wait_ms", *([by_role] if every_tag else [])}


def test_windows_do_not_depend_on_how_steps_were_handed_over(log):
    events = log(4, *(batch([step], io__read_bytes=[1e6 * step]) for step in range(10)))
    assert points(events, "io/read_MB") == {3: 1.5, 7: 5.5}


@pytest.mark.parametrize(("first", "first_step"), [(0, 0), (1, 1), (10_000, 0)])
def test_each_of_the_first_steps_has_a_point_and_windows_follow_where_frameworks_log(
    log, first, first_step
):
    numbers = range(first, first + 20)
    made = batch(numbers, io__read_bytes=1e6 * np.arange(20))
    events = log(4, made, first_step=first_step, alone=6)
    found = points(events, "io/read_MB")
    assert list(found) == [first + n for n in (0, 1, 2, 3, 4, 5, 7, 11, 15, 19)]
    assert list(found.values()) == [0, 1, 2, 3, 4, 5, 6.5, 9.5, 13.5, 17.5]


def test_200_steps_are_logged_one_by_one(tmp_path):
    sink = TensorBoardSink(EventFile(tmp_path), 50)
    sink.begin(info())
    sink.write(batch(range(320), step__duration_ns=[1] * 320))
    sink.end({})
    assert list(points(read(tmp_path), "step/duration_ms")) == [*range(200), 249, 299]


def test_a_run_that_resumes_logs_at_the_same_steps(log):
    events = log(4, batch(range(6, 14), io__read_bytes=1e6 * np.arange(8)))
    assert points(events, "io/read_MB") == {7: 0.5, 11: 3.5}


def test_a_framework_that_counts_from_1_has_its_points_at_multiples(log):
    events = log(4, batch(range(1, 11), io__read_bytes=1e6 * np.arange(10)), first_step=1)
    assert points(events, "io/read_MB") == {4: 1.5, 8: 5.5}


def test_what_came_before_the_first_step_has_no_point(log):
    events = log(2, batch([SETUP, *range(4)], io__read_bytes=[1e9, 1e6, 3e6, 5e6, 7e6]))
    assert points(events, "io/read_MB") == {1: 2.0, 3: 6.0}


def test_the_slow_steps_of_a_window_show(log):
    events = log(100, batch(range(200), step__duration_ns=1e6 * np.arange(1, 201)))
    assert points(events, "step/duration_ms") == {99: 50.5, 199: 150.5}
    assert points(events, "step/duration_ms/p95") == {99: 95.05, 199: 195.05}
    assert points(events, "step/duration_ms/max") == {99: 100, 199: 200}


def test_a_window_of_one_step_has_no_spread(log):
    events = log(1, batch([0, 1], step__duration_ns=[5, 6]))
    assert events.Tags()["scalars"] == ["trainobs/step/duration_ms"]


def test_the_share_of_the_step_that_waits_is_formed_from_the_sums_of_the_steps_that_know(log):
    whole, waited = [10, 30, 60, 500, 1, 1, 1, 1], [0, 0, 50, np.nan, 0, 0, 0, 1]
    made = batch(range(8), step__duration_ns=whole, loader__wait_ns=waited)
    assert points(log(4, made), "loader/wait_percent") == {3: 50, 7: 25}


def test_by_default_there_are_40_curves_at_most_and_all_on_request(tmp_path):
    """Of a run that has a value for everything: with a GPU, other ranks, tables and hot rows."""
    names = {}
    for every_tag in (False, True):
        sink = TensorBoardSink(EventFile(tmp_path / str(every_tag)), 1, every_tag=every_tag)
        sink.begin(info(tables=(USER, ITEM)))
        columns = {metric.name: np.ones(400) for metric in STEP_METRICS}
        fields = dict.fromkeys(LOOKUP_FIELDS, 1.0)
        rows = lookup_rows(*((step, table, fields) for step in range(400) for table in (0, 1)))
        sink._ends = WindowEnds(50)
        sink.write(replace(batch(range(400)), columns=columns, lookups=rows))
        sink.end({})
        names[every_tag] = read(tmp_path / str(every_tag)).Tags()["scalars"]
    over_ranks = 3
    assert len(names[False]) + over_ranks <= 40, (
        "too many curves to look through: take the `chart` of a metric away that tells less, "
        "or do without one for what is new; with every_tag, and in the run log, it is all the same"
    )
    assert set(names[False]) < set(names[True])
    assert {metric.tag.name for metric in (*STEP_METRICS, *EMBEDDINGS)} <= set(names[True])
    assert all(name.startswith("trainobs/") for name in names[True])
    assert len(names[True]) == len(set(names[True]))


def test_a_ratio_is_formed_from_the_sums_of_its_window(log):
    read = (Op.CACHE_READ, FileClass.DATA, Role.WORKER)
    miss = (Op.CACHE_MISS, FileClass.DATA, Role.WORKER)
    rows = cells(
        4,
        (0, *read, {"bytes": 100}),
        (0, *miss, {"bytes": 100}),
        (1, *read, {"bytes": 900}),
        (2, *read, {"bytes": 100}),
    )
    events = log(2, batch(range(4), cells=rows, cache__hit_ratio=[0.0, 1.0, 1.0, np.nan]))
    assert points(events, "cache/hit_percent") == {1: 90, 3: 100}  # not the mean, 50


def test_a_share_of_hot_rows_is_formed_from_the_sums_of_its_window(log):
    counts = {"fae__hot_lookup_count": [1, 8, 0, 3], "fae__lookup_count": [2, 18, 1, 3]}
    events = log(2, batch(range(4), fae__hot_lookup_ratio=[0.5, 4 / 9, 0, 1], **counts))
    assert points(events, "fae/hot_lookup_percent") == {1: 45, 3: 75}


def test_a_quantile_is_taken_of_all_events_of_its_window(log):
    latency = np.zeros((4, BUCKETS), np.uint64)
    latency[[0, 2, 3], 10] = 1
    latency[1, 20] = 99
    events = log(2, batch(range(4), latency=latency, block__read_p99_ns=[2e3, 2e6, 2e3, 2e3]))
    p99 = {1: 2 ** (20 + 98 / 99) / 1e6, 3: 2 ** (10 + 1.98 / 2) / 1e6}
    assert points(events, "block/read_p99_ms") == p99


def test_a_metric_without_source_or_value_has_no_point(log):
    events = log(1, batch(range(3), io__read_bytes=[1, 2, 3], cache__hit_ratio=[np.nan, 0.5, 1]))
    assert events.Tags()["scalars"] == ["trainobs/io/read_MB", "trainobs/cache/hit_percent"]
    assert points(events, "cache/hit_percent") == {1: 50, 2: 100}


def test_a_point_stands_at_the_wall_time_at_which_its_last_step_ended(log):
    events = log(2, batch(range(4), step__duration_ns=[1e9, 5e8, 1e9, 25e7]))
    ends_ns = 3_000_000_000 + 500_000_000, 5_000_000_000 + 250_000_000
    assert [event.wall_time for event in events.Scalars("trainobs/step/duration_ms")] == [
        (CLOCK["wall_ns"] + end_ns - CLOCK["monotonic_ns"]) / 1e9 for end_ns in ends_ns
    ]


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
    assert events.Tags()["histograms"] == ["trainobs/latency_by_time/data_read_ms"]
    found = events.Histograms("trainobs/latency_by_time/data_read_ms")
    each_ms = 0.001536  # the middle of the bucket
    assert [(event.step, event.histogram_value.num / each_ms) for event in found] == [
        (0, pytest.approx(3)),
        (2, pytest.approx(6)),
    ]
    value = found[0].histogram_value
    edges = [0.001024, 0.002048]
    assert value.bucket_limit == pytest.approx(edges)
    assert value.bucket == pytest.approx([0, 3 * each_ms])
    assert (value.min, value.max) == pytest.approx(edges)


def test_a_histogram_shows_time_by_latency_and_ends_where_99_percent_of_it_are():
    buckets = NO_LATENCY.copy()
    times = buckets[Op.BLOCK_READ, FileClass.DATA, Role.WORKER]
    times[[12, 20, 21]] = [100_000, 1000, 1]
    (value,) = latency_values(buckets)
    histogram = value.histo
    assert histogram.bucket_limit == pytest.approx([2**n / 1e6 for n in range(12, 22)])
    assert histogram.bucket[:2] == [0, pytest.approx(100_000 * 1.5 * 2**12 / 1e6)]
    assert histogram.bucket[-1] == pytest.approx(1000 * 1.5 * 2**20 / 1e6)
    assert sum(histogram.bucket[2:-1]) == 0
    assert (histogram.min, histogram.max) == pytest.approx((0.004096, 2**21 / 1e6))
    times[30] = 1  # half as long as all others together
    (value,) = latency_values(buckets)
    assert value.histo.max == pytest.approx(2**31 / 1e6)


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
    found = read(tmp_path).Histograms("trainobs/latency_by_time/fsync_ms")
    assert [event.histogram_value.num for event in found] == pytest.approx([1.572864, 2 * 1.572864])


@pytest.mark.parametrize("every", [0, -1])
def test_a_window_without_steps_is_refused(tmp_path, every):
    with pytest.raises(SettingError, match="log_every_n_steps"):
        TensorBoardSink(EventFile(tmp_path), every)


def test_numbers_that_make_larger_strides_are_logged_where_they_pass_a_point(log):
    steps = [64 * i for i in range(8)]
    events = log(100, *(batch([step], io__read_bytes=[1e6 * step]) for step in steps))
    assert points(events, "io/read_MB") == {128: 64, 256: 224, 320: 320, 448: 416}


@pytest.mark.parametrize("steps", [[7] * 50, list(range(50, 0, -1)), [10**6] * 25 + [3] * 25])
def test_a_window_holds_no_more_steps_than_asked_for(tmp_path, monkeypatch, steps):
    longest = 0
    add = StepWindows.add

    def watched(windows, *args):
        nonlocal longest
        ended = add(windows, *args)
        longest = max(longest, len(windows), *(window.step_count for window in ended))
        return ended

    monkeypatch.setattr(StepWindows, "add", watched)
    monkeypatch.setattr(sink_module, "STEPS_ALONE", 0)
    sink = TensorBoardSink(EventFile(tmp_path), 4)
    sink.begin(info())
    for first in range(0, 50, 10):
        sink.write(batch(steps[first : first + 10]))
    sink.end({})
    assert longest == 4
