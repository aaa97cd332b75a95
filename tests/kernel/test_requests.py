"""Block requests, where the kernel tells less of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.ground_truth import (
    BLOCK,
    PAGE,
    PRIMES,
    evict,
    read_whole,
    rounded,
    write_file,
    write_files,
)
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import Outsider
from trainobs.core.abi import FileClass, Op

pytestmark = pytest.mark.needs_bpf

DATA = FileClass.DATA


def test_before_linux_6_5_requests_are_known_by_their_bios(
    lacking: Callable[..., None], place: Path
) -> None:
    """The stand-in for block_io_start: the same bytes, nothing lost, nothing left behind."""
    lacking("block_io_start")
    files = write_files(place)
    observed = ObservedKernel()
    try:
        observed.data(place)
        observed.kernel.infer_data(True)

        def save(number: int) -> None:
            with (place / f"saved{number}").open("wb", buffering=0) as file:
                file.write(os.urandom(PAGE))
                os.fsync(file.fileno())
                os.fsync(file.fileno())  # with nothing to write: a flush alone

        def attempt() -> Counts:
            evict(*files)
            return observed.during(lambda: [*map(read_whole, files), *map(save, range(50))])

        got = observed.undisturbed(attempt)
        assert got.bytes(Op.BLOCK_READ, DATA) == sum(rounded(size, BLOCK) for size in PRIMES)
        assert got.bytes(Op.BLOCK_WRITE, DATA) == 50 * PAGE
        assert got.count(Op.BLOCK_WRITE, DATA) == 50
    finally:
        observed.stop()


def use_disk(place: Path) -> None:
    """Have the device do some of everything."""
    files = [place / f"of others {number}" for number in range(8)]
    for _ in range(20):
        for file in files:
            write_file(file, 4 * PAGE)
        for file in files:
            read_whole(file)
            file.unlink()  # discarded with the next sync, where the file system is mounted so


@pytest.mark.parametrize("lost", [(), ("block_io_start",)], ids=["start", "bio"])
def test_a_request_of_which_no_end_is_told_is_lost_and_no_other_takes_its_place(
    lacking: Callable[..., None], place: Path, outsider: Outsider, lost: tuple[str, ...]
) -> None:
    """Its structure is used again: by a flush too, which carries nothing, and by discards and reads
    of others."""
    lacking(*lost)
    observed = ObservedKernel()
    loader = observed.kernel._probes._loader

    def save(number: int) -> None:
        with (place / f"saved{number}").open("wb", buffering=0) as file:
            file.write(os.urandom(PAGE))
            os.fsync(file.fileno())

    def without_ends() -> tuple[int, set[int]]:
        """How many were lost before, and when those began of which surely no end will be told."""
        loader.detach("tobs_blk_done")
        observed.during(lambda: [*map(save, range(100))])
        saved_ns = time.monotonic_ns()
        time.sleep(0.2)  # what others had under way then is over
        loader.attach("tobs_blk_done")
        lost_before = observed.kernel.losses()["requests"]
        return lost_before, {ns for ns in observed.requests_ns() if ns < saved_ns}

    def flush() -> None:
        with (place / "saved0").open("rb") as file:
            for _ in range(100):
                os.fsync(file.fileno())
        outsider.do(use_disk, place)

    try:
        observed.data(place)
        for _ in range(8):  # others may have used all structures again meanwhile
            lost_before, sure = without_ends()
            if sure:
                break
        assert sure
        got = observed.during(flush)
        assert not got.bytes(Op.BLOCK_WRITE, DATA)
        assert not got.bytes(Op.BLOCK_READ, DATA)
        told = observed.kernel.losses()["requests"] - lost_before
        assert told > 0
        left = sure.intersection(observed.requests_ns())
        assert told + len(left) >= len(sure)
        observed.kernel.stop()
        assert observed.kernel.losses()["requests"] - lost_before >= len(sure)
    finally:
        observed.stop()
