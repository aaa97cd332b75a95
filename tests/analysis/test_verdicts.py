"""Verdicts of a run log: on the page, in the numbers, by epoch and by rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.samples import batch, info
from trainobs.analysis.summary import summarize
from trainobs.core.records import SETUP
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink

MS = 1e6
EPOCH = 24


@pytest.fixture
def summary_of(tmp_path):
    """Writes a run whose epochs wait for their loader so many ms a step, and sums it up."""

    def write(*waits_ms: float, **facts: object):
        sink = RunLogSink(tmp_path / "run")
        sink.begin(info(**facts))
        steps = len(waits_ms) * EPOCH
        wait = np.repeat(waits_ms, EPOCH) * MS
        record = batch(
            [SETUP, *range(steps)],
            step__duration_ns=[9000 * MS, *(wait + 100 * MS)],
            loader__wait_ns=[9000 * MS, *wait],
            phase__forward_ns=[0, *[100 * MS] * steps],
            sched__main_offcpu_ns=[0, *wait],
            sched__worker_iowait_ns=[0, *(wait + 100 * MS) * 1.9],
        )
        epochs = [0, *np.repeat(range(len(waits_ms)), EPOCH)]
        sink.write(replace(record, epoch=np.array(epochs, np.int32)))
        sink.end({})
        return summarize(RunLog.open(tmp_path))

    return write


TWO_WORKERS = {"settings": {"loader_workers": 2}, "host": {"usable_cpu_count": 4}}


def test_each_epoch_and_the_run_have_a_verdict(summary_of):
    found = summary_of(100, 5, **TWO_WORKERS)["verdict"]
    first, second = found["epochs"][0], found["epochs"][1]
    found_of = (first["kind"], first["cause"], first["steps"])
    assert found_of == ("loader-bound", "storage", EPOCH - 1), "without the first step"
    assert first["ns_per_step"] == pytest.approx(100 * MS)
    assert (second["kind"], second["cause"]) == ("compute-bound", None)
    assert found["run"]["steps"] == 2 * EPOCH - 1


def test_the_verdict_is_the_first_section_of_the_page(summary_of):
    sections = render(summary_of(100, **TWO_WORKERS)).split("\n\n")
    assert sections[0].startswith("trainobs report of")
    assert sections[1].splitlines() == [
        "Verdict",
        "  loader-bound: 100 ms a step, 50 % of it; cause: storage",
        "  waiting for data                             100 ms     50 %",
        "  loader workers asleep for a device           380 ms",
        "  forward                                      100 ms     50 %",
    ]


def test_epochs_are_on_the_page_where_their_verdict_changes(summary_of):
    page = render(summary_of(100, 100, 5, 5, **TWO_WORKERS)).splitlines()
    epochs = [line for line in page if line.startswith("  epoch ")]
    assert epochs == [
        "  epoch 0: loader-bound: 100 ms a step, 50 % of it; cause: storage",
        "  epoch 2: compute-bound: 100 ms a step, 95 % of it",
    ]


def test_a_run_that_does_not_tell_its_workers_has_no_cause(summary_of):
    assert summary_of(100)["verdict"]["run"]["cause"] is None


def test_what_came_before_the_first_step_is_no_step(summary_of):
    assert summary_of(5)["verdict"]["run"]["kind"] == "compute-bound"
