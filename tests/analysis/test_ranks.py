"""Ranks side by side, worked out by hand."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from tests.samples import batch, info
from trainobs.analysis.ranks.side_by_side import common_steps
from trainobs.analysis.ranks.straggler_parts import longer, told
from trainobs.analysis.summary import summarize
from trainobs.analysis.verdicts import _facts
from trainobs.report import brief
from trainobs.report.full import render
from trainobs.report.rank_rows import straggler_told
from trainobs.runlog.arrivals import ArrivalsSink
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink

SECOND = 1_000_000_000


@pytest.fixture
def job(tmp_path):
    """Writes a job of ranks, each with a host, what it waited in each of five steps of 1 s, and by
    how much it came late to the collective in the middle of each."""

    def write(*ranks: tuple[str, float, int | None]) -> dict:
        for rank, (host, wait_ns, late_ns) in enumerate(ranks):
            sink = RunLogSink(tmp_path / "run", rank)
            sink.begin(info(rank=rank, world_size=len(ranks), host={"hostname": host}))
            columns = {"step__duration_ns": [SECOND] * 5, "ranks__wait_ns": [wait_ns] * 5}
            sink.write(batch(range(5), **columns))
            sink.end({})
            if late_ns is not None:
                rows = [(0, i, (2 + i) * SECOND + late_ns, 1, 8, 8) for i in range(6)]
                arrivals = ArrivalsSink(tmp_path / "run", rank, lambda at_once, rows=rows: rows)
                arrivals.end({})
        return summarize(RunLog.open(tmp_path / "run"))

    return write


def test_on_one_node_the_straggler_is_told_by_arrival(job):
    summary = job(("a", 3e8, 0), ("a", 1e7, SECOND // 4))
    assert summary["straggler"] == {
        "known": True,
        "by": "arrival",
        "rank": 1,
        "steps": 5,
        "held_up_ns": SECOND / 4,
        "share": 0.25,
        "most_ratio": 1.0,
        "longer": None,
        "because": None,
    }
    assert summary["ranks"][0]["arrival_wait_ns"] == SECOND / 4
    assert summary["ranks"][1]["arrival_wait_ns"] == 0
    assert "  STRAGGLER: rank 1 makes the others wait for 250 ms a step, 25 % of it" in render(
        summary
    )


def test_clocks_of_two_nodes_are_not_compared_but_what_ranks_waited_is(job):
    # By their clocks rank 0 would be the one that is late.
    summary = job(("a", 3e8, SECOND // 4), ("b", 1e7, 0))
    assert summary["straggler"] == {
        "known": True,
        "by": "waiting",
        "rank": 1,
        "steps": 0,
        "held_up_ns": 2.9e8,
        "share": 0.29,
        "longer": None,
        "because": None,
    }
    assert summary["ranks"][0]["arrival_wait_ns"] is None
    assert "  STRAGGLER: rank 1 makes the others wait for 290 ms a step" in render(summary)


@pytest.mark.parametrize("late", [None, 0])
def test_ranks_that_wait_alike_have_no_straggler(job, late):
    summary = job(("a", 3e8, late), ("a", 2.9e8, late), ("a", 3.1e8, late))
    assert summary["straggler"]["known"]
    assert summary["straggler"]["rank"] is None
    assert "no straggler: none " in render(summary)


def test_who_came_later_but_was_not_slept_for_is_no_straggler(job):
    """Rank 0 goes on behind the collective, and comes back when rank 1 has come to it."""
    summary = job(("a", 1e6, 0), ("a", 0.0, SECOND // 4))
    assert summary["straggler"]["rank"] is None
    assert summary["ranks"][0]["arrival_wait_ns"] is None
    assert "no straggler: none waits less than every other" in render(summary)


def test_a_rank_that_is_waited_for_in_messages_between_two_is_told_by_waiting(job):
    """All come to the collectives together, of which alone there is a record of all ranks."""
    straggler = job(("a", 6e8, 0), ("a", 1e8, 0))["straggler"]
    assert (straggler["by"], straggler["rank"], straggler["held_up_ns"]) == ("waiting", 1, 5e8)


def test_ranks_that_go_on_without_each_other_wait_for_nobody_among_them(tmp_path):
    """As two pairs, each with groups of its own: rank 2 waits little, but rank 0 not for it."""
    for rank, (took_s, wait_ns) in enumerate([(1, 6e8), (1, 5e8), (2, 1e8), (2, 1.5e9)]):
        sink = RunLogSink(tmp_path / "run", rank)
        sink.begin(info(rank=rank, world_size=4, host={"hostname": "a"}))
        steps = {"step__duration_ns": [took_s * SECOND] * 20, "ranks__wait_ns": [wait_ns] * 20}
        begins = np.arange(20) * took_s * SECOND
        sink.write(replace(batch(range(20), **steps), start_ns=begins))
        sink.end({})
    run = RunLog.open(tmp_path / "run")
    summary = summarize(run)
    assert not summary["straggler"]["known"]
    assert "not known (they do not take their steps together)" in render(summary)
    common = [common_steps(run.ranks[0], run.ranks[other]) for other in (1, 2, 3)]
    assert [one.together for one in common] == [True, False, False]
    assert _facts(run).others_wait_ns == {1: 5e8}


def test_a_rank_that_has_ended_is_not_late(tmp_path):
    """Rank 0 waits for it in the last step, until its connection breaks."""
    for rank, wait_ns in enumerate([[1e7] * 5 + [9e8], [1e7] * 5]):
        sink = RunLogSink(tmp_path / "run", rank)
        sink.begin(info(rank=rank, world_size=2, host={"hostname": "a"}))
        steps = {"step__duration_ns": [SECOND] * len(wait_ns), "ranks__wait_ns": wait_ns}
        sink.write(batch(range(len(wait_ns)), **steps))
        sink.end({})
    mean_ns = (5 * 1e7 + 9e8) / 6
    assert _facts(RunLog.open(tmp_path / "run")).others_wait_ns == pytest.approx({1: mean_ns})


def waits(tmp_path, *ranks: list[float], epochs: int = 1, last_s: float = 1) -> RunLog:
    """A job without arrivals, of steps of 1 s and one that took longer: what ranks waited."""
    for rank, wait_ns in enumerate(ranks):
        sink = RunLogSink(tmp_path / "run", rank)
        sink.begin(info(rank=rank, world_size=len(ranks), host={"hostname": "a"}))
        count = len(wait_ns)
        took = [SECOND] * (count - 1) + [int(last_s * SECOND)]
        steps = batch(range(count), step__duration_ns=took, ranks__wait_ns=wait_ns)
        number = np.arange(count) % (count // epochs)
        epoch = np.arange(count) // (count // epochs)
        sink.write(replace(steps, step=number, epoch=epoch))
        sink.end({})
    return RunLog.open(tmp_path / "run")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([0.0] * 50, [0.0] * 49 + [1e10]),  # one saves at the end, and the other waits for it
        ([0.0] * 50 + [6e10], [0.0] * 50),  # one has ended
    ],
)
def test_who_is_waited_for_once_is_no_straggler(tmp_path, first, second):
    summary = summarize(waits(tmp_path, first, second))
    assert (summary["straggler"]["known"], summary["straggler"]["rank"]) == (True, None)
    told = (
        "none waits less than every other by a tenth of the step, in the mean and in half of them"
    )
    assert told in render(summary)


def test_a_rank_whose_last_step_takes_long_is_the_straggler_all_the_same(tmp_path):
    """Which lasts until the run is closed, as where rank 0 saves the model."""
    straggler = summarize(waits(tmp_path, [0.0] * 20, [3e8] * 20, last_s=50))["straggler"]
    assert straggler["rank"] == 0


def test_steps_that_are_counted_anew_in_each_epoch_are_those_of_the_same_epoch(tmp_path):
    run = waits(tmp_path, [6e8] * 50, [1e7] * 50, epochs=5)
    assert _facts(run).others_wait_ns == pytest.approx({1: 1e7})
    assert summarize(run)["straggler"]["rank"] == 1


def test_of_too_few_steps_it_is_not_known_who_waits_for_whom(tmp_path):
    summary = summarize(waits(tmp_path, [6e8] * 3, [1e7] * 3))
    assert "not known (they have too few steps in common)" in render(summary)


def test_it_is_said_why_arrivals_do_not_tell(job):
    unknown = float("nan")
    nodes = job(("a", unknown, 0), ("b", unknown, SECOND // 4))["straggler"]["why"]
    assert nodes.startswith("ranks are on several nodes, whose clocks differ, and not every rank")


@pytest.mark.parametrize(("apart_ns", "known"), [(9_000_000, True), (SECOND // 4, False)])
def test_nodes_of_one_name_are_told_apart_by_their_clocks(tmp_path, apart_ns, known):
    """As containers have; the second booted earlier, and comes to everything later by its clock."""
    for rank in range(2):
        sink = RunLogSink(tmp_path / "run", rank)
        clock = {"wall_ns": 5 * SECOND, "monotonic_ns": SECOND + rank * apart_ns, "boot_ns": 0}
        facts = info(rank=rank, world_size=2, host={"hostname": "a"})
        sink.begin(replace(facts, clock=clock))
        sink.write(batch(range(5), step__duration_ns=[SECOND] * 5))
        sink.end({})
        rows = [(0, i, (2 + i) * SECOND + rank * apart_ns, 1, 8, 8) for i in range(6)]
        ArrivalsSink(tmp_path / "run", rank, lambda at_once, rows=rows: rows).end({})
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert (summary["straggler"]["known"], summary["straggler"]["rank"]) == (known, None)
    assert known or "not known (their clocks differ, or were set as they began" in render(summary)


def test_a_rank_whose_record_is_elsewhere_may_be_the_one_that_is_awaited(tmp_path, job):
    """As on a node that writes to a disk of its own."""
    assert job(("a", 8e8, 0), ("a", 4e8, 4), ("a", 0, SECOND // 2))["straggler"]["rank"] == 2
    shutil.rmtree(tmp_path / "run" / "rank=2")
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert not summary["straggler"]["known"]
    assert "not known (no steps are at hand of 1 of 3 ranks)" in render(summary)


def test_ranks_of_two_jobs_do_not_wait_for_each_other(tmp_path):
    """As where both began in the same directory in the same moment."""
    for rank, wait_ns in enumerate((6e8, 1e7)):
        sink = RunLogSink(tmp_path / "run", rank)
        facts = {"host": {"hostname": "a"}, "settings": {"job": f"job {rank}"}}
        sink.begin(info(rank=rank, world_size=2, **facts))
        sink.write(batch(range(9), step__duration_ns=[SECOND] * 9, ranks__wait_ns=[wait_ns] * 9))
        sink.end({})
    run = RunLog.open(tmp_path / "run")
    assert "not known (they are ranks of several jobs" in render(summarize(run))
    assert _facts(run).others_wait_ns == {}


def test_a_rank_that_was_killed_is_named(tmp_path):
    for rank in range(3):
        sink = RunLogSink(tmp_path / "run", rank)
        sink.begin(info(rank=rank, world_size=3, host={"hostname": "a"}))
        sink.write(batch(range(5), step__duration_ns=[SECOND] * 5))
        sink.flush()
        if rank != 1:
            sink.end({})
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert "  ranks      not ended, or killed: rank 1\n" in render(summary)
    assert "  not ended, or killed: rank 1\n" in brief.render(summary, 0)


def test_what_nobody_measured_is_not_known(job):
    summary = job(("a", float("nan"), None), ("a", float("nan"), None))
    assert not summary["straggler"]["known"]
    assert "who waits for whom: not known" in render(summary)


def test_a_single_rank_is_compared_with_nobody(job):
    summary = job(("a", 3e8, 0))
    assert summary["straggler"] is None
    assert "Ranks" not in render(summary)


@pytest.mark.parametrize("second", [{}, {"step__duration_ns": [0] * 5}])
def test_of_ranks_without_times_nobody_is_the_straggler(tmp_path, second):
    for rank, columns in enumerate(({"step__duration_ns": [0] * 5}, second)):
        sink = RunLogSink(tmp_path / "run", rank)
        sink.begin(info(rank=rank, world_size=2, host={"hostname": "a"}))
        sink.write(batch(range(5), ranks__wait_ns=[3e8 * rank] * 5, **columns))
        sink.end({})
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert not summary["straggler"]["known"]
    assert "not known (not every rank has timed its steps)" in render(summary)
    assert render(summary)


@pytest.mark.parametrize(
    ("late", "because"),
    [
        ({"loader__wait_ns": 4e8}, "waiting for data 400 ms a step, and 10 ms on rank 0"),
        (
            {"sched__forward_sleep_ns": 3e8},
            "asleep or stopped 300 ms a step, and 0 ns on rank 0",
        ),
        # Both lack CPUs for most of the step, as its verdict would say.
        ({"sched__work_offcpu_ns": 5e8}, "on a CPU 490 ms a step, and 190 ms on rank 0"),
        (
            {"sched__work_runqueue_ns": 9e8},
            "ready to run, no CPU free 900 ms a step, and 500 ms on rank 0",
        ),
        ({"loader__wait_ns": 1e8, "phase__checkpoint_ns": 9e7}, None),  # two parts
        ({"sched__forward_sleep_ns": [9e9, 0, 0, 0, 0]}, None),  # it stalled once
        (
            {"sched__forward_sleep_ns": [0, 0, 4e8, 4e8, 4e8]},  # since the third step
            "asleep or stopped 240 ms a step, and 0 ns on rank 0",
        ),
        ({}, None),
    ],
)
def test_a_rank_is_late_by_what_it_takes_longer_for_than_another(tmp_path, late, because):
    usual = {
        "step__duration_ns": SECOND,
        "loader__wait_ns": 1e7,
        "phase__checkpoint_ns": 0.0,
        "phase__validation_ns": 0.0,
        "sched__forward_sleep_ns": 0.0,
        "sched__work_offcpu_ns": 8e8,
        "sched__work_runqueue_ns": 5e8,
        "sched__work_iowait_ns": 0.0,
    }
    for rank, own in enumerate((usual, usual | late)):
        sink = RunLogSink(tmp_path / "run", rank)
        sink.begin(info(rank=rank, world_size=2, host={"hostname": "a"}))
        sink.write(batch(range(5), **{name: np.broadcast_to(ns, 5) for name, ns in own.items()}))
        sink.end({})
    ranks = RunLog.open(tmp_path / "run").ranks
    found = longer(ranks[1], ranks[0], 2.5e8)
    assert (found and told(found, 0)) == because


def arrivals_job(tmp_path, *late_ms: list[float], last_ms: tuple[float, ...] = ()) -> dict:
    """A job of steps of 1 s with one collective, to which each rank came late by so many ms.

    The last step of each rank took `last_ms` longer.
    """
    for rank, late in enumerate(late_ms):
        sink = RunLogSink(tmp_path / "run", rank)
        sink.begin(info(rank=rank, world_size=len(late_ms), host={"hostname": "a"}))
        took = [SECOND] * len(late)
        took[-1] += int(1e6 * dict(enumerate(last_ms)).get(rank, 0))
        sink.write(batch(range(len(late)), step__duration_ns=took))
        sink.end({})
        ns = [int(ms * 1e6) for ms in (*late, 0)]
        rows = [(0, i, (2 + i) * SECOND + at, 1, 8, 8) for i, at in enumerate(ns)]
        ArrivalsSink(tmp_path / "run", rank, lambda at_once, rows=rows: rows).end({})
    return summarize(RunLog.open(tmp_path / "run"))


def test_a_rank_that_others_wait_for_in_some_steps_is_told_with_what_it_costs(tmp_path):
    summary = arrivals_job(tmp_path, [800, 0, 0, 0, 0] * 8, [0, 20, 20, 20, 20] * 8)
    text = " ".join(render(summary).split())
    assert "no straggler: none makes" in text
    assert "in some steps they wait for rank 0: 160 ms a step in the mean" in text
    assert "rank 0: 160 ms a step in the mean" in " ".join(brief.render(summary, now_ns=0).split())


def test_what_a_straggler_costs_is_a_share_of_the_step_that_is_told_of(tmp_path):
    """Also where another rank's last step is long, as it waits for one that has ended."""
    summary = arrivals_job(tmp_path, [200] * 20, [0] * 20, last_ms=(0, 99_000))
    assert summary["step"]["mean_ns"] == SECOND
    assert summary["straggler"]["share"] == 0.2
    share = summarize(RunLog.open(tmp_path / "run", rank=1))["straggler"]["share"]
    assert share == pytest.approx(0.2 / (1 + 99 / 19))


def test_a_straggler_that_is_later_in_some_steps_is_told_so(tmp_path):
    summary = arrivals_job(tmp_path, [800, 120, 120] * 8, [0] * 24)
    told = "in some steps for longer: 347 ms a step in the mean"
    assert told in " ".join(render(summary).split())


def test_no_report_says_that_nobody_is_awaited_where_all_are(tmp_path):
    """Rank 2 is late in most steps, and the others in the rest of the wait for it."""
    found = arrivals_job(tmp_path, [0] * 9, [0] * 9, [200] * 9)["straggler"]
    found = found | {"rank": None, "mostly": 2, "mostly_ns": 2e8, "rest_ns": 6e7}
    told = straggler_told(found)
    assert told.startswith("no straggler: the others wait for rank 2 for 200 ms a step, but for")
