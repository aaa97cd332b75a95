"""Which worker made which batch for which step, and what it read: exact, into the run log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.ground_truth import BUFFER, PRIMES, write_files
from tests.kernel.processes import A_DAY_AHEAD, A_MINUTE_BEHIND, run_job
from tests.kernel.runlog import RunTables

pytestmark = pytest.mark.needs_bpf

WORKERS = 3
STEPS = 12  # an epoch: 23 files in pairs
Observe = Callable[..., list[RunTables]]


@pytest.fixture
def observe(place: Path) -> Observe:
    """Train on the 23 files once for each set-up; what the runs recorded."""

    def run(*set_ups: dict[str, Any], before: Sequence[str] = ()) -> list[RunTables]:
        write_files(place / "data")
        places = {"data": str(place / "data"), "runs": str(place / "runs")}
        run_job("batches", before, **places, set_ups=set_ups)
        return [RunTables(place / "runs" / str(number)) for number in range(len(set_ups))]

    return run


def pairs(sizes: tuple[int, ...] = PRIMES) -> list[tuple[int, int]]:
    """Bytes and read calls of each batch of an epoch."""
    two = [sizes[place : place + 2] for place in range(0, len(sizes), 2)]
    return [(sum(batch), sum(-(-size // BUFFER) + 1 for size in batch)) for batch in two]


def assert_exact(run: RunTables, truth: list[tuple[int, int]]) -> None:
    """Every batch is there once, for its step, with its worker and what it read."""
    rows = sorted(run.batches, key=lambda row: row["for_step"])
    assert [row["for_step"] for row in rows] == [*range(2 * STEPS)]
    for row in rows:
        index = row["for_step"] % STEPS
        assert (row["worker"], row["number"]) == (index % WORKERS, index // WORKERS)
        assert (row["read_bytes"], row["read_count"]) == truth[index]
        assert row["step"] is None or row["step"] <= row["for_step"]
    assert not any((run.info["summary"]["losses"] | {"requests": 0}).values())


def assert_adds_up(run: RunTables) -> None:
    parts = ("device", "cpu_wait", "compute", "sleep", "handover")
    for row in run.steps:
        assert sum(row[f"loader/{part}_ns"] for part in parts) == row["loader/wait_ns"]
        assert all(row[f"loader/{part}_ns"] >= 0 for part in parts)
        assert row["loader/start_stop_ns"] <= row["loader/handover_ns"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_batch_is_known_with_its_step_its_worker_and_its_bytes(
    observe: Observe, method: str
) -> None:
    set_ups = [{"kind": "plain", "method": method, "persistent": p} for p in (False, True)]
    for run in observe(*set_ups):
        assert_exact(run, pairs())
        assert_adds_up(run)
        with pytest.raises(AssertionError):
            assert_exact(run, pairs(PRIMES[1:] + PRIMES[:1]))


@pytest.mark.parametrize("before", [(), A_DAY_AHEAD, A_MINUTE_BEHIND])
def test_batches_of_a_worker_lie_one_after_the_other_and_inside_their_time(
    observe: Observe, before: Sequence[str]
) -> None:
    (run,) = observe({"kind": "busy"}, before=before)
    starts = {row["step"]: row["start_ns"] for row in run.steps}
    for worker in range(WORKERS):
        rows = sorted(
            (row for row in run.batches if row["worker"] == worker), key=lambda row: row["begin_ns"]
        )
        assert all(one["end_ns"] <= two["begin_ns"] for one, two in pairwise(rows))
    for row in run.batches:
        spent = row["device_ns"] + row["cpu_wait_ns"] + row["compute_ns"]
        assert 0 < spent <= row["end_ns"] - row["begin_ns"]
        assert starts[row["step"]] <= row["end_ns"]
        assert row["end_ns"] < starts.get(row["step"] + 1, 2**63)


def test_a_loop_that_breaks_off_leaves_batches_that_no_step_consumed(observe: Observe) -> None:
    """Two batches ahead for each of three workers; the second epoch begins anew."""
    for run in observe(
        {"kind": "plain", "stop_after": 2}, {"kind": "plain", "stop_after": 2, "persistent": True}
    ):
        consumed = sorted(
            (row for row in run.batches if row["for_step"] is not None),
            key=lambda row: row["for_step"],
        )
        assert [row["for_step"] for row in consumed] == [0, 1, 2, 3]
        assert [row["read_bytes"] for row in consumed] == 2 * [size for size, _ in pairs()[:2]]
        assert len(run.batches) > len(consumed)


def test_the_training_thread_makes_batches_itself_where_there_are_no_workers(
    observe: Observe,
) -> None:
    (run,) = observe({"kind": "busy", "workers": 0})
    assert [row["for_step"] for row in run.batches] == [*range(2 * STEPS)]
    assert {row["worker"] for row in run.batches} == {None}
    assert [(row["read_bytes"], row["read_count"]) for row in run.batches] == 2 * pairs()
    assert_adds_up(run)
    waits = {row["step"]: row for row in run.steps}
    for row in run.batches:
        assert row["step"] == row["for_step"]
        made = waits[row["step"]]["loader/compute_ns"]
        assert made == pytest.approx(row["compute_ns"], abs=1)


def test_without_collation_a_batch_is_one_item(observe: Observe) -> None:
    (run,) = observe({"kind": "plain", "batch_size": None})
    rows = sorted(run.batches, key=lambda row: row["for_step"])
    assert [row["for_step"] for row in rows] == [*range(2 * len(PRIMES))]
    assert [row["read_bytes"] for row in rows] == 2 * list(PRIMES)
    assert_adds_up(run)


def test_of_a_stream_the_step_is_known_until_a_worker_has_no_data_any_more(
    observe: Observe,
) -> None:
    (run,) = observe({"kind": "stream"})
    known = [row for row in run.batches if row["for_step"] is not None]
    assert known, "workers end at about the same time"
    assert {row["worker"] for row in run.batches} == {*range(WORKERS)}
    for row in known:
        assert row["fetch_begin_ns"] < row["fetch_end_ns"]
        assert row["end_ns"] < row["fetch_end_ns"], "it was made before the loop had it"
    assert len({row["for_step"] for row in known}) == len(known), "one batch a step"


def test_of_a_loader_in_any_order_the_maker_is_known_and_the_step_is_not(
    observe: Observe,
) -> None:
    (run,) = observe({"kind": "plain", "any_order": True})
    assert {row["for_step"] for row in run.batches} == {None}
    assert {row["worker"] for row in run.batches} == {*range(WORKERS)}
    assert sum(row["read_bytes"] for row in run.batches) >= 2 * sum(PRIMES) * 0.99
    waits = [row for row in run.steps if row["step"] is not None]
    assert {row["loader/compute_ns"] for row in waits} == {None}
    assert {row["loader/handover_ns"] for row in waits} == {None}
    assert all(row["loader/wait_ns"] > 0 for row in waits)


def test_without_the_scheduler_bytes_are_known_and_times_are_not(observe: Observe) -> None:
    calls, nothing = observe(
        {"kind": "plain", "probes": ["syscalls"]}, {"kind": "plain", "probes": "off"}
    )
    assert_exact(calls, pairs())
    assert {row["compute_ns"] for row in calls.batches} == {None}
    assert {row["loader/compute_ns"] for row in calls.steps} == {None}
    assert nothing.batches == []
    assert {row["loader/device_ns"] for row in nothing.steps} == {None}


def test_an_exception_in_a_worker_arrives_and_what_follows_is_unknown(observe: Observe) -> None:
    """Item 5 is in batch 2; torch goes on after it, here in the second epoch."""
    (run,) = observe({"kind": "bad"})
    assert run.truth["fault"].startswith("KeyError: Caught KeyError in DataLoader worker")
    rows = sorted(
        (row for row in run.batches if row["for_step"] is not None),
        key=lambda row: row["for_step"],
    )
    assert [row["for_step"] for row in rows] == [0, 1, 2, 3]
    assert [row["read_bytes"] for row in rows] == 2 * [size for size, _ in pairs()[:2]]
    assert sum(PRIMES[4:6]) not in [row["read_bytes"] for row in run.batches]


def test_a_worker_that_dies_ends_the_loop_and_not_the_record(observe: Observe) -> None:
    (run,) = observe({"kind": "dies"})
    assert "exited unexpectedly" in run.truth["fault"]
    rows = [row for row in run.batches if row["for_step"] is not None]
    assert {row["for_step"]: row["read_bytes"] for row in rows}[0] == pairs()[0][0]
    assert run.info["summary"]["outcome"] == "ok"
