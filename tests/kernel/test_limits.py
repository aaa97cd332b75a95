"""Block requests that a limit of a control group holds back: a worker of the kernel begins them."""

from __future__ import annotations

import mmap
import os
import platform
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.ground_truth import (
    BLOCK,
    PRIMES,
    evict,
    read_whole,
    rounded,
    write_file,
    write_files,
)
from tests.kernel.limits import cat_inside, inside, limited, root
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import Outsider, in_child, in_worker
from trainobs.core.abi import FileClass, Op, Role
from trainobs.probes.kernel_names import KERNEL_BTF, KernelNames

pytestmark = pytest.mark.needs_bpf

DATA, WORKER = FileClass.DATA, Role.WORKER
ON_DISK = sum(rounded(size, BLOCK) for size in PRIMES)
SLOW, FAST = 8_000_000, 5_000_000_000
SIZE = 1 << 20


@pytest.fixture(autouse=True)
def limits_can_be_set() -> None:
    if "throtl_grp" not in KernelNames(KERNEL_BTF):
        pytest.skip(f"Linux {platform.release()} is built without limits (BLK_DEV_THROTTLING)")
    if root() is None:
        pytest.skip("neither blkio.throttle nor io.max can be set here: no such cgroup is writable")


@pytest.fixture
def group(place: Path) -> Iterator[Path]:
    with limited(place, SLOW) as made:
        yield made


def read_all(files: list[Path]) -> None:
    for path in files:
        read_whole(path)


def lost(observed: ObservedKernel) -> int:
    return observed.kernel.losses()["requests"]


def is_told(observed: ObservedKernel, lost_before: int, begin_ns: int) -> bool:
    """Whether a request is told as lost, or will be once its structure is used again."""
    return observed.unfinished(begin_ns) or lost(observed) > lost_before


def held_back(observed: ObservedKernel, group: Path, files: list[Path]) -> Counts:
    """What is counted as a worker reads cold files in a group, which takes as long as it must."""
    evict(*files)
    begin = time.monotonic()
    got = observed.during(lambda: in_worker(inside(group, lambda: read_all(files))))
    assert time.monotonic() - begin > ON_DISK / SLOW / 2, "the limit was not held"
    return got


def test_reads_that_are_held_back_are_those_of_whoever_asked(
    observed: ObservedKernel, files: list[Path], group: Path
) -> None:
    got = observed.undisturbed(lambda: held_back(observed, group, files), *files)
    assert got.bytes(Op.BLOCK_READ, DATA, WORKER) == got.bytes(Op.BLOCK_READ) == ON_DISK
    assert got.bytes(Op.CACHE_MISS, DATA, WORKER) >= ON_DISK
    assert got.count(Op.BLOCK_READ, DATA, WORKER) >= len(PRIMES)


def test_the_wait_for_the_limit_is_no_latency_of_the_device(
    observed: ObservedKernel, files: list[Path], group: Path
) -> None:
    got = observed.undisturbed(lambda: held_back(observed, group, files), *files)
    asleep = got.wait_ns(Op.READ, DATA, WORKER)
    assert asleep > ON_DISK / SLOW / 2 * 1e9
    assert 0 < got.ns(Op.BLOCK_READ, DATA, WORKER) < asleep / 2


def test_who_is_in_such_a_group_from_the_beginning_misses_none(place: Path, group: Path) -> None:
    files = write_files(place)

    def misses_none() -> bool:
        observed = ObservedKernel()
        observed.data(place)
        evict(*files)
        got = observed.during(lambda: read_all(files))
        lost_count = lost(observed)
        observed.stop()
        return got.bytes(Op.BLOCK_READ, DATA, Role.MAIN) == ON_DISK and not lost_count

    def run() -> None:  # again where an end is kept from everybody: ObservedKernel.undisturbed
        assert any(misses_none() for _ in range(3))

    in_child(inside(group, run))


def test_a_request_that_is_missing_is_told(
    observed: ObservedKernel, files: list[Path], group: Path
) -> None:
    """Of the first ones where functions cannot be observed."""
    before, begin_ns = lost(observed), time.monotonic_ns()
    got = held_back(observed, group, files)
    assert got.bytes(Op.BLOCK_READ) == ON_DISK or is_told(observed, before, begin_ns)


def test_a_limit_that_is_never_reached_changes_nothing(
    observed: ObservedKernel, place: Path, files: list[Path]
) -> None:
    def attempt() -> Counts:
        evict(*files)
        return observed.during(lambda: in_worker(inside(fast, lambda: read_all(files))))

    with limited(place, FAST) as fast:
        got = observed.undisturbed(attempt, *files)
    assert got.bytes(Op.BLOCK_READ, DATA, WORKER) == got.bytes(Op.BLOCK_READ) == ON_DISK


def test_what_others_of_the_group_read_is_not_ours(
    observed: ObservedKernel, outsider: Outsider, place: Path, files: list[Path], group: Path
) -> None:
    others = write_files(place / "others")
    observed.undisturbed(lambda: held_back(observed, group, files), *files)

    def both() -> None:
        theirs = threading.Thread(target=outsider.do, args=(cat_inside, group, others))
        theirs.start()
        in_worker(inside(group, lambda: read_all(files)))
        theirs.join()

    evict(*files, *others)
    got = observed.during(both)
    assert got.bytes(Op.BLOCK_READ, DATA) == ON_DISK


def test_direct_reads_that_are_held_back_are_known_or_told(
    observed: ObservedKernel, place: Path, group: Path
) -> None:
    path = write_file(place / "direct", SIZE)
    observed.data(place)

    def read() -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        with mmap.mmap(-1, SIZE // 4) as buffer:
            while os.readv(fd, [buffer]):
                pass

    before, begin_ns = lost(observed), time.monotonic_ns()
    got = observed.during(lambda: in_worker(inside(group, read)))
    assert got.bytes(Op.DIRECT_READ, DATA, WORKER) == SIZE
    assert got.bytes(Op.BLOCK_READ, DATA) == SIZE or is_told(observed, before, begin_ns)


@pytest.mark.parametrize("file_class", [FileClass.CHECKPOINT, FileClass.OTHER])
def test_a_file_that_is_synced_under_a_limit_was_written(
    observed: ObservedKernel, place: Path, group: Path, file_class: FileClass
) -> None:
    if file_class is not FileClass.OTHER:
        observed.kernel.add_root(place, file_class)

    def write() -> None:
        with (place / "written").open("wb") as file:
            file.write(os.urandom(SIZE))
            file.flush()
            os.fsync(file.fileno())

    got = observed.during(lambda: in_child(inside(group, write)))
    written = got.bytes(Op.BLOCK_WRITE, file_class)
    if file_class is FileClass.CHECKPOINT:
        assert written == SIZE
    else:  # with the metadata of the file system
        assert SIZE <= written < SIZE + 32 * BLOCK
    assert got.bytes(Op.BLOCK_WRITE, file_class, Role.CHILD) >= SIZE
