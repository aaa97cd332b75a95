"""Which numbers are known, with some programs on."""

from __future__ import annotations

import numpy as np
import pytest

from trainobs.core.abi import BUCKETS, CELL, CELLS_SHAPE, FileClass, Op, Role
from trainobs.core.catalogue import lost_without
from trainobs.core.cells import StepCells
from trainobs.core.coverage import CALLS, FEEDS, IO_URING, PAGES, Async, Coverage, Programs, feeds

EVERY = Programs().union(*FEEDS.values())


def coverage(*off: str) -> Coverage:
    return Coverage({name: "a reason" if name in off else "on" for name in EVERY})


def row(op: Op, file_class: FileClass) -> StepCells:
    """Two steps with a 1 in every field of a cell."""
    rows = np.zeros((2, *CELLS_SHAPE), CELL)
    rows[:, op, file_class, Role.MAIN] = (1, 1, 1, 1)
    return StepCells.from_rows(rows)


def test_every_operation_rests_on_something() -> None:
    assert FEEDS.keys() == set(Op)
    assert all(FEEDS.values())


def test_with_every_program_all_is_known_and_nothing_doubted() -> None:
    whole = Coverage.whole()
    for op in Op:
        cells = row(op, FileClass.DATA)
        assert whole.known(cells, np.array([Async.URING, Async.URING])) is cells
        assert whole.knows(FEEDS[op])
        assert Async.URING not in whole.doubts(FEEDS[op])


def test_without_any_program_nothing_is_known() -> None:
    nothing = Coverage({"ebpf": "switched off"})
    for op in Op:
        assert not nothing.knows(FEEDS[op])
        assert not len(nothing.known(row(op, FileClass.OTHER), np.zeros(2, np.uint8)).places)


@pytest.mark.parametrize("op", Op)
def test_a_cell_goes_with_any_program_that_it_rests_on(op: Op) -> None:
    for program in FEEDS[op] - {IO_URING}:
        left = coverage(program).known(row(op, FileClass.OTHER), np.zeros(2, np.uint8))
        assert not left.values.any(), f"{op.name} without {program}"


def test_time_asleep_rests_on_the_scheduler_and_classes_of_files_on_calls() -> None:
    assert "tobs_switch" in feeds(Op.READ, "wait_ns")
    assert "tobs_switch" not in feeds(Op.READ, "ns")
    assert feeds(Op.BLOCK_READ, "bytes", [FileClass.DATA]) >= CALLS | PAGES
    assert not feeds(Op.BLOCK_READ, "bytes") & (CALLS | PAGES)


def test_without_io_uring_s_program_reads_are_known_until_a_ring_is_used() -> None:
    some = coverage(IO_URING)
    programs = FEEDS[Op.URING_READ]
    assert some.knows(programs)
    assert Async.URING in some.doubts(programs)
    assert not coverage(IO_URING, "tobs_sys_exit").knows(programs)  # who would see the ring?
    cells = some.known(row(Op.CACHE_READ, FileClass.DATA), np.array([0, Async.URING]))
    assert cells.values[0].all()
    assert not cells.values[1].any()


def test_histograms_are_empty_where_their_times_are_unknown() -> None:
    buckets = np.ones((*CELLS_SHAPE, BUCKETS), np.uint64)
    left = coverage("tobs_blk_done").histograms(buckets)
    assert not left[[Op.BLOCK_READ, Op.BLOCK_WRITE]].any()
    assert left[Op.READ].all()
    assert buckets.all(), "it is a copy"


def test_what_is_lost_without_a_program_is_named() -> None:
    assert lost_without("tobs_send") == ["net/sent_bytes"]
    assert "cache/read_stall_ratio" in lost_without("tobs_switch")
    assert "loader/device_ns" in lost_without("tobs_sys_enter")
    assert "block/read_p99_ns" in lost_without("tobs_blk_start")
    assert lost_without("no such program") == []
