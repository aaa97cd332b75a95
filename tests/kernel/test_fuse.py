"""A file system whose server is a process, which may read past the page cache, and sleep for it."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel import fuse
from tests.kernel.ground_truth import MIB, PAGE, read_whole
from tests.kernel.observed import ObservedKernel
from tests.kernel.uring import READ, Uring
from trainobs.core.abi import FileClass, Op, Phase

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this kernel has no FUSE"),
]

DATA = FileClass.DATA
SIZE = 8 * MIB


def test_reads_that_the_file_system_takes_past_the_page_cache_are_no_hits(
    observed: ObservedKernel, tmp_path: Path
) -> None:
    with fuse.served(tmp_path, SIZE, direct=True) as path:
        observed.data(tmp_path)
        got = observed.during(lambda: read_whole(path))
    assert got.bytes(Op.READ, DATA) == got.bytes(Op.DIRECT_READ, DATA) == SIZE
    assert got.metric("io/data_direct_read_bytes") == SIZE
    assert got.count(Op.CACHE_READ, DATA) == 0
    assert math.isnan(got.metric("cache/hit_ratio"))
    assert math.isnan(got.metric("cache/demand_hit_ratio"))


def test_reads_through_the_page_cache_are_no_direct_ones(
    observed: ObservedKernel, tmp_path: Path
) -> None:
    with fuse.served(tmp_path, SIZE) as path:
        observed.data(tmp_path)
        cold = observed.during(lambda: read_whole(path))
        fd = os.open(path, os.O_RDONLY)  # that is open again drops what is cached
        os.read(fd, PAGE)
        warm = observed.during(lambda: os.pread(fd, PAGE, 0))
        os.close(fd)
    assert cold.bytes(Op.CACHE_MISS, DATA) == SIZE
    assert cold.count(Op.DIRECT_READ) == warm.count(Op.DIRECT_READ) == 0
    assert cold.metric("cache/hit_ratio") == 0.0
    assert warm.metric("cache/hit_ratio") == 1.0


@pytest.mark.needs_program("tobs_uring")
@pytest.mark.parametrize("direct", [False, True])
def test_a_ring_tells_such_reads_too(
    observed: ObservedKernel, tmp_path: Path, direct: bool
) -> None:
    ring = Uring(32)
    with (
        fuse.served(tmp_path, SIZE, direct=direct) as path,
        mmap.mmap(-1, 65_536) as buffer,
        path.open("rb", buffering=0) as file,
    ):
        observed.data(tmp_path)
        got = observed.during(lambda: ring.transfer(READ, file.fileno(), buffer, SIZE))
    ring.close()
    assert got.bytes(Op.URING_READ, DATA) == SIZE
    assert got.bytes(Op.DIRECT_READ, DATA) == SIZE * direct
    assert got.bytes(Op.CACHE_READ, DATA) == SIZE * (not direct)


@pytest.mark.parametrize("direct", [False, True])
def test_a_read_that_sleeps_for_a_server_is_asleep(
    observed: ObservedKernel, tmp_path: Path, direct: bool
) -> None:
    with fuse.served(tmp_path, MIB, direct=direct, slow={fuse.READ: 0.01}) as path:
        observed.data(tmp_path)
        got = observed.during(lambda: read_whole(path))
    reads = MIB // fuse.MAX_READ
    assert got.ns(Op.READ, DATA) >= reads * 10_000_000
    assert got.wait_ns(Op.READ, DATA) >= 0.9 * reads * 10_000_000
    assert 0.8 < got.metric("cache/read_stall_ratio") <= 1.0
    assert got.metric("sched/main_iowait_ns") >= got.wait_ns(Op.READ, DATA)
    assert got.metric("sched/main_iowait_ns") < 1.1 * got.ns(Op.READ, DATA)


def save(path: Path) -> None:
    with path.open("r+b", buffering=0) as file:
        file.write(bytes(MIB))


def synced(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file)


@pytest.mark.parametrize(
    ("asked", "ask"),
    [
        (fuse.LOOKUP, os.stat),
        (fuse.LOOKUP, lambda path: os.access(path, os.W_OK)),
        (fuse.READDIR, lambda path: os.listdir(path.parent)),
        (fuse.WRITE, save),
        (fuse.FSYNC, synced),
        (fuse.SETATTR, lambda path: path.chmod(0o600)),
        (fuse.SETATTR, os.utime),
        (fuse.LISTXATTR, os.listxattr),
    ],
    ids=["stat", "access", "listdir", "write", "fsync", "chmod", "utime", "listxattr"],
)
def test_other_calls_that_sleep_for_a_server_sleep_for_storage(
    observed: ObservedKernel, tmp_path: Path, asked: int, ask: Callable[[Path], object]
) -> None:
    with fuse.served(tmp_path, MIB, slow={asked: 0.2}) as path:
        got = observed.during(lambda: ask(path), Phase.CHECKPOINT)
    assert got.metric("sched/main_iowait_ns") > 0.19e9
    assert got.ns(Op.PHASE_SLEEP) < 0.1e9  # for anything else
