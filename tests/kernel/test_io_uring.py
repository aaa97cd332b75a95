"""io_uring: requests are counted where they complete, whichever thread the kernel ran them in."""

from __future__ import annotations

import errno
import math
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.ground_truth import (
    BUFFER,
    MIB,
    PAGE,
    cached_pages,
    evict,
    write_file,
)
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.uring import ASYNC, READ, READV_FIXED, WRITE, WRITEV_FIXED, Uring
from tests.kernel_state import programs_off_here
from trainobs.core.abi import FileClass, Op, Role
from trainobs.probes.doctor import examine

pytestmark = pytest.mark.needs_bpf

DATA, MAIN = FileClass.DATA, Role.MAIN
SIZE = 16 * MIB
REQUESTS = SIZE // BUFFER


def why_no_uring() -> int | None:
    """Error number with which the kernel refuses a ring."""
    try:
        Uring(1).close()
    except OSError as error:
        return error.errno
    return None


@pytest.fixture
def uring() -> Iterator[Uring]:
    ring = Uring(32)
    yield ring
    ring.close()


@pytest.fixture
def buffer() -> Iterator[mmap.mmap]:
    mapping = mmap.mmap(-1, BUFFER)
    mapping.write(os.urandom(BUFFER))
    yield mapping
    mapping.close()


def test_io_uring_works_or_the_doctor_says_why_not() -> None:
    state = examine()["probes"]["io_uring"]["tobs_uring"]["state"]
    if refusal := why_no_uring():
        assert refusal == errno.ENOSYS, "forbidden: see sysctl kernel.io_uring_disabled"
        assert state == "this kernel has no tracepoint io_uring_complete"
    elif "tobs_uring" in programs_off_here():
        assert state == "this kernel has no result in io_uring requests (Linux 5.19)"
    else:
        assert state == "on"


@pytest.mark.needs_program("tobs_uring")
@pytest.mark.parametrize("flags", [0, ASYNC], ids=["inline", "kernel threads"])
def test_cold_reads_are_data_reads_that_missed_the_cache(
    observed: ObservedKernel, place: Path, uring: Uring, buffer: mmap.mmap, flags: int
) -> None:
    path = write_file(place / "big", SIZE)
    observed.data(place)

    def attempt() -> tuple[Counts, int]:
        evict(path)
        fd = os.open(path, os.O_RDONLY)
        calls = 0

        def read() -> None:
            nonlocal calls
            calls = uring.transfer(READ, fd, buffer, SIZE, flags)

        got = observed.during(read)
        assert got.count(Op.URING_ENTER) == calls == REQUESTS / 32
        cached = cached_pages(fd)
        os.close(fd)
        return got, cached

    got, cached = observed.undisturbed(attempt, path)
    assert got.bytes(Op.URING_READ, DATA) == SIZE
    assert got.count(Op.URING_READ, DATA) == REQUESTS
    assert got.bytes(Op.CACHE_MISS, DATA) == got.bytes(Op.BLOCK_READ, DATA) == cached * PAGE
    assert got.bytes(Op.FAULT_FILL, DATA) == got.count(Op.READ, DATA) == 0
    assert got.metric("io/data_read_bytes") == SIZE
    assert got.metric("cache/hit_ratio") == 0.0


@pytest.mark.needs_program("tobs_uring")
def test_warm_reads_hit_the_cache(
    observed: ObservedKernel, place: Path, uring: Uring, buffer: mmap.mmap
) -> None:
    path = write_file(place / "big", SIZE)
    observed.data(path)

    def attempt() -> Counts:
        with path.open("rb") as file:
            file.read()
            return observed.during(lambda: uring.transfer(READ, file.fileno(), buffer, SIZE))

    got = observed.undisturbed(attempt, path)
    assert got.bytes(Op.URING_READ, DATA) == SIZE
    assert got.metric("cache/hit_ratio") == 1.0


@pytest.mark.needs_program("tobs_uring")
def test_direct_reads_do_not_enter_the_hit_ratio(
    observed: ObservedKernel, place: Path, uring: Uring, buffer: mmap.mmap
) -> None:
    path = write_file(place / "big", SIZE)
    observed.data(path)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    got = observed.undisturbed(
        lambda: observed.during(lambda: uring.transfer(READ, fd, buffer, SIZE))
    )
    os.close(fd)
    assert got.bytes(Op.URING_READ, DATA) == got.bytes(Op.BLOCK_READ) == SIZE
    assert got.count(Op.CACHE_READ) == 0
    assert math.isnan(got.metric("cache/hit_ratio"))


@pytest.mark.needs_program("tobs_uring")
def test_writes_are_counted_though_the_kernel_runs_them_in_threads_of_its_own(
    observed: ObservedKernel, place: Path, uring: Uring, buffer: mmap.mmap
) -> None:
    observed.kernel.add_root(place, FileClass.CHECKPOINT)
    fd = os.open(place / "out", os.O_WRONLY | os.O_CREAT)
    got = observed.during(lambda: uring.transfer(WRITE, fd, buffer, SIZE))
    assert os.fstat(fd).st_size == SIZE
    os.close(fd)
    assert got.bytes(Op.URING_WRITE, FileClass.CHECKPOINT) == SIZE
    assert got.count(Op.URING_WRITE, FileClass.CHECKPOINT) == REQUESTS
    assert got.metric("io/checkpoint_write_bytes") == SIZE


@pytest.mark.needs_program("tobs_uring")
@pytest.mark.parametrize(
    ("opcode", "op"), [(READV_FIXED, Op.URING_READ), (WRITEV_FIXED, Op.URING_WRITE)]
)
def test_vectors_of_registered_buffers_are_counted(
    observed: ObservedKernel, place: Path, uring: Uring, buffer: mmap.mmap, opcode: int, op: Op
) -> None:
    path = write_file(place / "some", BUFFER)
    observed.data(place)
    fd = os.open(path, os.O_RDWR)
    moved = 0

    def move() -> None:
        nonlocal moved
        moved = uring.transfer_fixed(opcode, fd, buffer)

    got = observed.during(move)
    os.close(fd)
    if moved == -errno.EINVAL:
        pytest.skip("this kernel has no such request")
    assert moved == got.bytes(op, DATA) == BUFFER
    assert got.count(op, DATA) == 1
