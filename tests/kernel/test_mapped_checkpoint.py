"""Checkpoints that are written through a mapping, which makes no call: how much is unknown."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.kernel.ground_truth import MIB
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import Outsider
from trainobs import observe
from trainobs.analysis.summary import summarize
from trainobs.core.abi import FileClass, Op, Phase, Role
from trainobs.report import brief, io_text
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

CHECKPOINT, MAIN = FileClass.CHECKPOINT, Role.MAIN
SIZE = 2 * MIB
WRITTEN, ON_DEVICE = "io/checkpoint_write_bytes", "block/checkpoint_write_bytes"


def new_map(path: Path) -> mmap.mmap:
    """As numpy.memmap(mode="w+") makes one."""
    with path.open("w+b") as file:
        file.seek(SIZE - 1)
        file.write(b"\0")
        file.flush()
        return mmap.mmap(file.fileno(), SIZE)


def fill(mapping: mmap.mmap) -> None:
    mapping[:] = b"w" * SIZE
    mapping.flush()


def save_mapped(path: Path) -> None:
    with new_map(path) as mapping:
        fill(mapping)


def save_by_calls(path: Path) -> None:
    path.write_bytes(bytes(SIZE))


@pytest.fixture
def saved(place: Path) -> Callable[..., RunLog]:
    def run(*saves: Callable[[Path], None]) -> RunLog:
        with observe(run_dir=place / "run", io=True, quiet=True) as obs:
            for number, save in enumerate(saves):
                with obs.step(), obs.phase("checkpoint"):
                    save(place / f"{number}.ckpt")
        return RunLog.open(place / "run")

    return run


def test_what_is_written_is_unknown_from_the_first_mapping_on(
    saved: Callable[..., RunLog],
) -> None:
    run = saved(save_by_calls, save_mapped, save_by_calls)
    written = run.rank.metric(WRITTEN)[-3:]
    assert written[0] == SIZE
    assert np.isnan(written[1:]).all()
    assert (run.rank.metric("io/checkpoint_fsync_ns")[-3:] > 0).tolist() == [False, True, False]
    assert run.rank.metric(ON_DEVICE)[-2] >= SIZE  # msync has brought all of it to the device


def test_the_report_says_so(saved: Callable[..., RunLog]) -> None:
    summary = summarize(saved(save_mapped))
    assert summary["checkpoints"][0]["written_bytes"] is None
    text = " ".join(brief.render(summary, 0).split())
    assert "; what it wrote is unknown, since not all of it was by calls" in text
    assert "not in these numbers: checkpoints are mapped" in io_text.render(summary)


def test_a_checkpoint_that_is_only_read_through_a_mapping_leaves_it_known(
    saved: Callable[..., RunLog], place: Path
) -> None:
    def read(path: Path) -> None:
        with (place / "0.ckpt").open("r+b") as file:
            for access in (mmap.ACCESS_READ, mmap.ACCESS_COPY):
                with mmap.mmap(file.fileno(), 0, access=access) as mapping:
                    assert mapping[0] == 0

    run = saved(save_by_calls, read)
    assert run.rank.metric(WRITTEN)[-2:].tolist() == [SIZE, 0]


def saving(observed: ObservedKernel, work: Callable[[], object]) -> Counts:
    return observed.during(work, Phase.CHECKPOINT)


def test_a_mapping_that_is_older_than_the_run_is_known_by_its_sync(
    observed: ObservedKernel, place: Path
) -> None:
    with new_map(place / "old.bin") as mapping:
        got = saving(observed, lambda: fill(mapping))
        assert got.count(Op.MAP_WRITE, CHECKPOINT, MAIN) == 1
        assert got.count(Op.FSYNC, CHECKPOINT, MAIN) == 1
        got = observed.during(lambda: fill(mapping))  # in no phase
    assert got.count(Op.MAP_WRITE) == got.count(Op.FSYNC, CHECKPOINT) == 0


def test_a_file_that_is_open_all_the_time_and_mapped_as_one_saves_is_one(
    observed: ObservedKernel, place: Path, outsider: Outsider
) -> None:
    path = place / "open.bin"
    outsider.do(path.write_bytes, bytes(SIZE))
    with path.open("r+b") as file:

        def save() -> None:
            mmap.mmap(file.fileno(), SIZE).close()

        assert saving(observed, save).bytes(Op.MAP_WRITE, CHECKPOINT, MAIN) == SIZE
