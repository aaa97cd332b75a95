"""A run log of an older trainobs: `old/`, written by commit 36a3a44, reads as it was meant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from trainobs.analysis.one_step import explain
from trainobs.analysis.summary import summarize
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.records import SETUP, UNKNOWN
from trainobs.report import one_step
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog

NAN = float("nan")


@pytest.fixture(scope="module")
def run() -> RunLog:
    return RunLog.open(Path(__file__).parent / "old")


def test_every_file_of_it_is_readable(run):
    assert run.unreadable == {}
    assert run.info["summary"]["outcome"] == "completed"
    assert run.ranks[0].host == "node7"


def test_its_steps_and_metrics(run):
    rank = run.ranks[0]
    np.testing.assert_array_equal(rank.step(), [SETUP, 0, 1, 2, 3])
    np.testing.assert_array_equal(rank.start_ns(), 2_000_000_000 + 10**9 * np.arange(5))
    np.testing.assert_array_equal(rank.epoch(), [0] * 5)
    np.testing.assert_array_equal(rank.metric("step/duration_ns"), [7e6, 1e6, 2e6, 3e6, 4e6])
    np.testing.assert_array_equal(rank.metric("cache/hit_ratio"), [0, 1, NAN, 0.25, NAN])
    np.testing.assert_array_equal(rank.metric("gpu/busy_ratio"), [NAN] * 5)


def test_its_kernel_cells_and_latency(run):
    cells, latency = run.ranks[0].cells(), run.ranks[0].latency()
    assert cells[Op.READ, FileClass.DATA, Role.WORKER].tolist() == (2, 3000, 500, 0)
    assert cells["bytes"].sum() == 1000 + 1000 + 3000 + 3000
    assert latency[Op.BLOCK_READ, FileClass.DATA, Role.WORKER, 17] == 3
    assert latency.sum() == 3


def test_its_batches(run):
    rank = run.ranks[0]
    assert rank.batches("for_step").tolist() == [1, 2]
    assert rank.batches("worker").tolist() == [0, UNKNOWN]
    assert rank.batches("device_ns").tolist() == [10**7, UNKNOWN]
    assert rank.batches("end_ns").tolist() == [3 * 10**9, 5_060_000_000]
    assert [rank.slowest_file(index) for index in range(2)] == ["a.jpg", None]


def test_its_arrivals(run):
    assert run.ranks[0].arrivals() == {(0, 0): 5, (0, 1): 9, (1, 0): 2**40}


def test_its_lookups(run):
    rank = run.ranks[0]
    assert [table.name for table in rank.tables] == ["user", "item"]
    wanted = ("step", "table", "sampled", "lookup_count", "bytes", "unique_rows", "forward_ns")
    (found,) = rank.lookups(wanted)
    expected = {
        "step": [SETUP, 2, 1],
        "table": [0, 0, 1],
        "sampled": [False, False, True],
        "lookup_count": [1, 2, 40],
        "bytes": [NAN, NAN, 2**41],
        "unique_rows": [NAN, NAN, 17],
        "forward_ns": [NAN, 7, NAN],
    }
    assert found.keys() == expected.keys()
    for name, column in expected.items():
        np.testing.assert_array_equal(found[name], column)


def test_it_gets_a_report_and_a_verdict_from_what_it_has(run):
    summary = summarize(run)
    assert summary["verdict"]["run"]["abstained_because"] == "fewer than 6 steps after the first"
    nothing = {"changes": [], "unknown": {}, "refused": None, "replayed": False}
    assert summary["would_help"] == nothing
    assert "Verdict" in render(summary)


def test_a_step_of_it_is_explained(run):
    text = one_step.render(explain(run, 1))
    assert "A batch of worker 0" in text
    assert "nan" not in text
