"""Mapped files and direct reads, neither of which the hit ratio can hold."""

from __future__ import annotations

import errno
import math
import mmap
import os
import random
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.ground_truth import MIB, PAGE, cached_pages, evict, kept_in_memory, write_file
from tests.kernel.observed import Counts, ObservedKernel
from trainobs.core.abi import FileClass, Op, Role

pytestmark = pytest.mark.needs_bpf

DATA, MAIN = FileClass.DATA, Role.MAIN
SIZE = 32 * MIB
TOUCHES = 1000


def mapped(path: Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), SIZE, mmap.MAP_SHARED, mmap.PROT_READ)


def faults() -> tuple[int, int]:
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_majflt, usage.ru_minflt


def touched(
    observed: ObservedKernel, path: Path, touch: Callable[[mmap.mmap], object]
) -> tuple[Counts, int, tuple[int, int]]:
    """Counts of touching a mapped cold file, its pages in memory afterwards, and faults."""

    def attempt() -> tuple[Counts, int, tuple[int, int]]:
        evict(path)
        with mapped(path) as mapping:
            before = faults()
            got = observed.during(lambda: touch(mapping))
            major, minor = (now - then for now, then in zip(faults(), before, strict=True))
            return got, cached_pages(path), (major, minor)

    return observed.undisturbed(attempt, path)


def touch_all(mapping: mmap.mmap) -> None:
    for offset in range(0, SIZE, PAGE):
        mapping[offset]


@pytest.mark.needs_program("tobs_fault")
def test_a_mapped_file_fills_exactly_what_cachestat_finds(
    observed: ObservedKernel, place: Path
) -> None:
    path = write_file(place / "big", SIZE)
    observed.data(place)
    got, cached, (major, minor) = touched(observed, path, touch_all)
    assert cached * PAGE >= SIZE
    assert got.bytes(Op.FAULT_FILL, DATA, MAIN) == got.bytes(Op.BLOCK_READ, DATA) == cached * PAGE
    # Fault-around maps neighbours without a fault of their own, so there is no exact truth.
    assert 0 < major <= got.count(Op.FAULT, DATA, MAIN) <= min(major + minor, SIZE // PAGE)
    assert got.count(Op.READ, DATA) == got.count(Op.CACHE_MISS, DATA) == 0
    assert math.isnan(got.metric("cache/hit_ratio"))


@pytest.mark.needs_program("tobs_fault")
def test_random_touches_fault_once_for_each_page(observed: ObservedKernel, place: Path) -> None:
    path = write_file(place / "big", SIZE)
    observed.data(place)
    pages = random.Random(2).choices(range(SIZE // PAGE), k=TOUCHES)

    def touch(mapping: mmap.mmap) -> None:
        mapping.madvise(mmap.MADV_RANDOM)
        for page in pages:
            mapping[page * PAGE]

    got, cached, (major, _) = touched(observed, path, touch)
    assert len(set(pages)) == cached == major < TOUCHES
    assert got.count(Op.FAULT, DATA, MAIN) == cached
    assert got.bytes(Op.FAULT_FILL, DATA, MAIN) == got.bytes(Op.BLOCK_READ, DATA) == cached * PAGE


@pytest.mark.needs_program("tobs_fault")
def test_a_file_in_memory_fills_nothing(observed: ObservedKernel, place: Path) -> None:
    path = write_file(place / "big", SIZE)
    observed.data(place)
    with kept_in_memory([path]), mapped(path) as mapping:
        before = sum(faults())
        got = observed.during(lambda: touch_all(mapping))
        all_faults = sum(faults()) - before
    assert got.count(Op.FAULT_FILL, DATA) == got.count(Op.BLOCK_READ, DATA) == 0
    assert got.count(Op.FAULT, DATA) < all_faults  # fault-around has served the others


@pytest.mark.needs_program("tobs_fault")
def test_each_page_that_is_written_to_faults(observed: ObservedKernel, place: Path) -> None:
    path = write_file(place / "big", SIZE)
    observed.data(place)

    def write_all(mapping: mmap.mmap) -> None:
        for offset in range(0, SIZE, PAGE):
            mapping[offset] = 1

    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), SIZE, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    with kept_in_memory([path]), mapping:
        got = observed.during(lambda: write_all(mapping))
    assert got.count(Op.FAULT, DATA, MAIN) == SIZE // PAGE


def test_a_mapping_is_counted_by_its_length(observed: ObservedKernel, place: Path) -> None:
    path = write_file(place / "big", SIZE)
    observed.data(place)
    got = observed.during(lambda: mapped(path).close())
    assert got.count(Op.MMAP, DATA, MAIN) == 1
    assert got.bytes(Op.MMAP, DATA, MAIN) == SIZE


def test_a_file_that_was_mapped_before_the_observer_came_is_data(place: Path) -> None:
    path = write_file(place / "big", SIZE)
    with mapped(path) as mapping:
        observed = ObservedKernel()
        try:
            observed.data(place)
            got = observed.during(lambda: touch_all(mapping))
        finally:
            observed.stop()
    assert got.bytes(Op.FAULT_FILL, DATA, MAIN) >= SIZE
    assert got.bytes(Op.BLOCK_READ, DATA, MAIN) > 0
    assert got.count(Op.FAULT, DATA) > 0


def test_direct_reads_go_round_the_cache_and_out_of_the_hit_ratio(
    observed: ObservedKernel, place: Path
) -> None:
    path = write_file(place / "big", SIZE)
    observed.data(place)

    def read() -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        with mmap.mmap(-1, MIB) as page:
            for offset in range(0, SIZE, MIB):
                assert os.preadv(fd, [page], offset) == MIB
        os.close(fd)

    got = observed.undisturbed(lambda: observed.during(read))
    assert cached_pages(path) == 0
    assert got.bytes(Op.READ, DATA, MAIN) == got.bytes(Op.DIRECT_READ, DATA, MAIN) == SIZE
    assert got.count(Op.DIRECT_READ, DATA) == SIZE // MIB
    assert got.bytes(Op.BLOCK_READ, DATA, MAIN) == got.bytes(Op.BLOCK_READ) == SIZE
    assert got.count(Op.CACHE_READ, DATA) == got.count(Op.CACHE_MISS, DATA) == 0
    assert got.metric("io/data_direct_read_bytes") == SIZE
    assert math.isnan(got.metric("cache/hit_ratio"))


@pytest.mark.needs_program("tobs_fault")
@pytest.mark.parametrize("flag", [os.O_DIRECT, 0])
def test_pages_of_a_mapping_that_a_read_fills_are_none_of_the_read(
    observed: ObservedKernel, place: Path, flag: int
) -> None:
    path, buffer = write_file(place / "big", MIB), write_file(place / "buffer", MIB)
    observed.data(place)

    def attempt() -> Counts:
        evict(path)
        evict(buffer)
        if not flag:
            path.read_bytes()
        fd = os.open(path, os.O_RDONLY | flag)
        with buffer.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapping:
            got = observed.during(lambda: os.preadv(fd, [mapping], 0))
        os.close(fd)
        assert cached_pages(buffer) == MIB // PAGE
        return got

    got = observed.undisturbed(attempt, path, buffer)
    assert got.bytes(Op.READ, DATA, MAIN) == MIB
    assert got.bytes(Op.DIRECT_READ, DATA, MAIN) == (MIB if flag else 0)
    assert got.bytes(Op.CACHE_READ, DATA, MAIN) == (0 if flag else MIB)
    assert got.count(Op.CACHE_MISS, DATA) == 0
    assert got.bytes(Op.FAULT_FILL, DATA, MAIN) == MIB
    assert got.bytes(Op.BLOCK_READ, DATA, MAIN) == (2 * MIB if flag else MIB)


@pytest.mark.needs_program("tobs_fault")
def test_pages_of_a_mapping_that_is_written_out_are_brought_in_by_faults(
    observed: ObservedKernel, place: Path
) -> None:
    path = write_file(place / "data" / "weights", SIZE)
    observed.data(path.parent)

    def attempt() -> Counts:
        evict(path)
        with mapped(path) as mapping, (place / "copy").open("wb", buffering=0) as copy:
            got = observed.during(lambda: copy.write(mapping))
        assert cached_pages(path) == SIZE // PAGE
        return got

    got = observed.undisturbed(attempt, path)
    assert got.bytes(Op.FAULT_FILL, DATA, MAIN) == got.bytes(Op.BLOCK_READ, DATA, MAIN) == SIZE
    assert got.count(Op.FAULT, DATA, MAIN) > 0
    assert got.bytes(Op.WRITE) == SIZE
    assert got.count(Op.CACHE_MISS, DATA) == 0


def test_reads_that_leave_no_page_behind_are_reads_of_the_page_cache(
    observed: ObservedKernel, place: Path
) -> None:
    """The last of them leaves none of the file, as a read past the page cache does."""
    path, uncached = write_file(place / "big", SIZE), 0x80  # RWF_DONTCACHE
    observed.data(place)
    evict(path)

    def read() -> None:
        fd = os.open(path, os.O_RDONLY)
        for offset in range(0, SIZE, MIB // 16):
            assert os.preadv(fd, [bytearray(MIB // 16)], offset, uncached) == MIB // 16
        os.close(fd)

    try:
        got = observed.undisturbed(lambda: observed.during(read), path)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        pytest.skip("this kernel, or file system, has no RWF_DONTCACHE")
    assert cached_pages(path) == 0
    assert got.bytes(Op.CACHE_READ, DATA) == SIZE
    assert got.bytes(Op.BLOCK_READ, DATA) == got.bytes(Op.CACHE_MISS, DATA)
    assert got.count(Op.DIRECT_READ, DATA) == 0
