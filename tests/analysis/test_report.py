"""The report's numbers, worked out by hand, and the page that shows them."""

from __future__ import annotations

import json
import re

import pytest

from tests.analysis.runs import steps_of, write
from trainobs.analysis.own_cost import SHORT_NS, own_cpu_ratio
from trainobs.analysis.summary import summarize
from trainobs.core.catalogue import CATALOGUE
from trainobs.core.labels import CACHE, LABELS
from trainobs.report.full import render
from trainobs.report.rows import LABEL
from trainobs.runlog.reader import RunLog

NOTHING = {"sum": None, "mean": None, "p50": None, "p95": None, "max": None}


@pytest.fixture
def summary(write_run):
    ended = {
        "outcome": "ok",
        "lost_steps": {"tensorboard": 50},
        "lost_because": {"tensorboard": "ENOSPC: No space left on device"},
        "losses": {"requests": 2},
    }
    path = write_run(summary=ended)
    return summarize(RunLog.open(path))


def test_every_metric_is_there_and_null_where_it_was_not_measured(summary):
    assert list(summary["metrics"]) == [metric.name for metric in CATALOGUE]
    assert summary["metrics"]["net/sent_bytes"] == {"unit": "bytes", **NOTHING}


def test_a_sum_covers_the_run_and_the_rest_covers_the_steps(summary):
    assert summary["steps"] == 4
    assert summary["metrics"]["io/data_read_bytes"] == {
        "unit": "bytes",
        "sum": 101_000,
        "mean": 25_000.0,
        "p50": 25_000.0,
        "p95": pytest.approx(38_500),
        "max": 40_000.0,
    }
    assert summary["setup"] == {"step/duration_ns": 7_000_000, "io/data_read_bytes": 1000}


def test_the_mean_of_a_ratio_is_formed_from_the_cells_of_the_steps(summary):
    ratio = summary["metrics"]["cache/hit_ratio"]
    # 1000 of 4000 bytes missed, not those of the set-up.
    assert ratio["mean"] == pytest.approx(0.75)
    assert ratio["sum"] is None
    assert ratio["p50"] == 0.625  # of 1.0 and 0.25, the two steps that have one
    assert ratio["max"] == 1.0


def test_the_mean_of_a_quantile_is_that_of_all_events(summary):
    p99 = summary["metrics"]["block/read_p99_ns"]
    assert p99["mean"] == pytest.approx(2**19.96)  # the last 4 % of 4 events, in bucket 19
    assert p99["sum"] is None
    assert p99["max"] == 4e5


def test_losses_are_told(summary):
    assert summary["lost"] == {
        "events": 2,
        "dropped": 0,
        "kernel": {"requests": 2},
        "steps": {"tensorboard": 50},
        "because": {"tensorboard": "ENOSPC: No space left on device"},
        "files": {},
        "partly": [],
        "missing_steps": 0,
        "at_odds": {},
        "are_mixed": False,
        "free_bytes": None,  # of the disk of a run that has ended
    }


def test_a_distribution_is_that_of_the_whole_run(summary):
    reads = summary["latency"]["latency/block_read"]
    assert reads["count"] == 4
    assert reads["p50_ns"] == pytest.approx(2 ** (17 + 2 / 3))
    assert reads["buckets"] == [
        {"from_ns": 2**17, "to_ns": 2**18, "count": 3},
        {"from_ns": 2**19, "to_ns": 2**20, "count": 1},
    ]
    assert summary["latency"]["latency/fsync"] is None


def test_every_rank_has_its_step_time(write_run):
    write_run(rank=0)
    summary = summarize(RunLog.open(write_run(rank=1)))
    known = {name: value for name, value in summary["ranks"][1].items() if value is not None}
    step_time = {"steps": 4, "p50_ns": 2.5e6, "p95_ns": pytest.approx(3.85e6), "mean_ns": 3e6}
    assert known == {"host": "node7", "has_ended": False, **step_time}
    assert not summary["straggler"]["known"]
    assert "  rank 1" in render(summary)


def test_the_summary_is_json(summary):
    assert json.loads(json.dumps(summary, allow_nan=False))["level"] == "ebpf"


def test_the_page_shows_what_matters(summary):
    page = render(summary)
    for line in (
        "  host       node7, Linux 6.18",
        "  observed   by eBPF",
        "  steps      4, in 10 ms",
        "  ended      ok",
        "  cost       not measured",
        "  lost       the disk was full: 50 steps are not in TensorBoard",
        "             2 block requests (missing from what block devices read and wrote)",
        "A step: 3 ms, the mean of 3 steps after the first; of these slowest 4 ms",
        "  steps per second: 333.3",
    ):
        assert line in page.splitlines()
    rows = {" ".join(line.split()) for line in page.splitlines()}
    assert "waiting for data 500 us 17 % ######" in rows
    assert "forward 2.50 ms 83 % ##############################" in rows
    assert "training data read 25 kB 10 MB/s 100 kB" in rows
    assert "page cache hits, of pages asked for 75 % ###########################" in rows
    assert "131 us - 262 us 3 ####################################" in rows
    assert "training data read 1 kB" in rows


def test_of_a_run_that_has_not_ended_nobody_knows_that_nothing_is_lost(tmp_path):
    ended = write(tmp_path / "ended", steps_of(1, 9), end={"outcome": "ok"})
    assert "  lost       nothing" in render(summarize(RunLog.open(ended))).splitlines()
    killed = render(summarize(RunLog.open(write(tmp_path / "killed", steps_of(1, 9)))))
    told = "nothing up to its newest step; if it was killed, what came after that"
    assert f"  lost       {told}" in killed.splitlines()


def test_what_a_service_that_ended_leaves_unknown_is_told(write_run):
    path = write_run(summary={"outcome": "ok", "losses": {"service": 1}})
    lacking = "1 loss of the service (all later steps lack the kernel's counts, and their batches)"
    assert lacking in render(summarize(RunLog.open(path)))


def test_the_cost_is_told_of_a_run_that_is_long_enough(summary):
    assert (summary["training_ns"], summary["own_cpu_ratio"]) == (10e6, None)
    assert own_cpu_ratio(summary["metrics"], SHORT_NS - 1) is None
    long = summary | {"own_cpu_ratio": own_cpu_ratio(summary["metrics"], SHORT_NS)}
    assert "  cost       0.04 % of a CPU: about 1 us in user space per step" in render(long)


def test_the_page_is_plain_and_at_most_100_columns_wide(summary):
    page = render(summary)
    assert page.isascii()
    paths = [line for line in page.splitlines() if "report of /" not in line]
    assert max(map(len, paths)) <= 100
    assert "\n\n\n" not in page


def test_labels_leave_the_columns_where_they_are():
    labels = (label for name, label in LABELS.items() if name not in CACHE)  # has more room
    assert [label for label in labels if len(label) > LABEL - 3] == []


def test_the_page_of_a_killed_run_without_steps_says_so(write_run):
    path = write_run(capabilities={"ebpf": "permission denied", "procfs": "on"})
    for file in (path / "rank=0").iterdir():
        file.unlink()
    page = render(summarize(RunLog.open(path)))
    assert "  ended      not yet, or it was killed" in page
    assert "  ebpf: permission denied" in page
    assert "procfs: on" not in page


def test_histograms_are_said_to_be_with_the_set_up(summary):
    page = render(summary)
    assert re.search(r"^Block device reads: \d+ including the set-up ", page, re.M), page
    page = render({**summary, "setup": {**summary["setup"], "block/read_count": 435}})
    assert "Before the first step (included above in the histograms only)" in page


def test_a_page_without_steps_parts_what_came_before_them(summary):
    page = render({**summary, "steps": 0})
    assert re.search(r"only\s+training\s+has\s+steps\.\n\nBefore the first step", page), page


def test_an_unreadable_file_is_on_the_page(write_run):
    path = write_run()
    (path / "rank=0" / "latency.parquet").write_bytes(b"")
    page = render(summarize(RunLog.open(path)))
    assert "Files that could not be read\n  rank=0/latency.parquet: " in page
    assert "latency.parquet:notawholeParquetfile" in "".join(page.split())  # a long path is cut
