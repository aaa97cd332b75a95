"""The one worker that a summary names because it is slower than all others."""

from __future__ import annotations

import pytest

from tests.analysis.runs import loader_bound
from trainobs.analysis.batches.workers import slow_worker
from trainobs.analysis.summary import summarize
from trainobs.report import brief_lines
from trainobs.runlog.reader import RunLog

MS = 1e6


def makers(made, batches):
    return [
        {"worker": number, "batches": count, "made_ns": None if ms is None else ms * MS}
        for number, (ms, count) in enumerate(zip(made, batches, strict=True))
    ]


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ([30, 5, 7], {"worker": 0, "made_ns": 30 * MS, "others_ns": 6 * MS}),
        ([5, 30], {"worker": 1, "made_ns": 30 * MS, "others_ns": 5 * MS}),
        ([30, 16, 5], None),
        ([30], None),
        ([], None),
        ([30, None], None),
    ],
)
def test_one_worker_that_is_slower_than_all_others_is_named(made, found):
    assert slow_worker(makers(made, [8] * len(made))) == found


@pytest.mark.parametrize("batches", [(7, 7, 7), (80, 80, 40)])
def test_few_batches_and_those_of_several_loaders_are_not_compared(batches):
    assert slow_worker(makers([30, 5, 7], batches)) is None


def test_the_training_thread_is_no_worker():
    assert slow_worker([{"worker": None, "batches": 99, "made_ns": 9.0}]) is None


@pytest.mark.parametrize(("workers", "others"), [(2, "the other"), (3, "the others")])
def test_the_brief_report_has_a_line_on_it(tmp_path, workers, others):
    summary = summarize(RunLog.open(loader_bound(tmp_path / "run")))
    assert summary["loader"]["slow_worker"] is None
    slow = {"worker": 1, "made_ns": 30 * MS, "others_ns": 6 * MS}
    summary["loader"] |= {"workers": workers, "slow_worker": slow}
    lines = list(brief_lines.loader_and_storage(summary, 2))
    assert f"  worker 1 takes 30 ms a batch, {others} 6 ms" in lines
