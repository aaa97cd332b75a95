"""The page cache: what a read found in memory, against cachestat(2) and the size of the files."""

from __future__ import annotations

import math
import os
import random
import resource
from pathlib import Path

import pytest

from tests.kernel.ground_truth import (
    BLOCK,
    BUFFER,
    MIB,
    PAGE,
    PRIMES,
    cached_pages,
    calls_of,
    evict,
    has_cachestat,
    kept_in_memory,
    read_whole,
    rounded,
    write_file,
    write_files,
)
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import Outsider
from trainobs.core.abi import FileClass, Op, Role

pytestmark = pytest.mark.needs_bpf

DATA, MAIN = FileClass.DATA, Role.MAIN
IN_MEMORY = sum(map(rounded, PRIMES))
ON_DISK = sum(rounded(size, BLOCK) for size in PRIMES)
RANDOM_READS = 2000
FILE_BYTES = 32 * MIB


def sleeps() -> int:
    """How often this thread gave its CPU up of itself, getrusage(2)."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def read_all(files: list[Path]) -> None:
    for path in files:
        read_whole(path)


def test_cold_files_come_from_the_disk_to_the_byte(
    observed: ObservedKernel, files: list[Path]
) -> None:
    def read_cold() -> tuple[Counts, int]:
        evict(*files)
        before = sleeps()
        return observed.during(lambda: read_all(files)), sleeps() - before

    got, slept = observed.undisturbed(read_cold, *files)
    assert got.bytes(Op.READ, DATA, MAIN) == sum(PRIMES)
    assert got.count(Op.READ, DATA, MAIN) == calls_of(PRIMES)
    assert got.count(Op.OPEN, DATA, MAIN) == len(PRIMES)
    assert got.bytes(Op.CACHE_MISS, DATA, MAIN) == IN_MEMORY
    assert got.bytes(Op.BLOCK_READ, DATA, MAIN) == ON_DISK
    assert got.metric("cache/hit_ratio") == 0.0
    # Where others take the host's CPUs, this one may stand still until its disk is done.
    stalled = got.metric("cache/read_stall_ratio")
    assert 0.0 < stalled < 1.0 if slept else stalled == 0.0


def test_warm_files_do_not_come_from_the_disk(observed: ObservedKernel, files: list[Path]) -> None:
    with kept_in_memory(files):
        got = observed.during(lambda: read_all(files))
    assert got.bytes(Op.READ, DATA, MAIN) == sum(PRIMES)
    assert got.count(Op.CACHE_READ, DATA, MAIN) == calls_of(PRIMES) - len(PRIMES)
    assert got.count(Op.CACHE_MISS, DATA) == got.count(Op.BLOCK_READ, DATA) == 0
    assert got.metric("cache/hit_ratio") == 1.0
    assert got.metric("cache/demand_hit_ratio") == 1.0
    assert got.metric("cache/read_stall_ratio") == 0.0


def test_one_file_that_is_not_in_memory_is_noticed(
    observed: ObservedKernel, files: list[Path]
) -> None:
    def read_one_cold() -> Counts:
        evict(files[0])
        return observed.during(lambda: read_all(files))

    with kept_in_memory(files[1:]):
        got = observed.undisturbed(read_one_cold)
    assert got.bytes(Op.CACHE_MISS, DATA) == rounded(PRIMES[0])
    assert got.bytes(Op.BLOCK_READ, DATA) == rounded(PRIMES[0], BLOCK)
    assert got.metric("cache/hit_ratio") == 1 - rounded(PRIMES[0]) / IN_MEMORY


def test_half_of_the_pages_in_memory_is_a_hit_ratio_of_a_half(
    observed: ObservedKernel, place: Path, files: list[Path]
) -> None:
    others = write_files(place / "others")

    def read_half_cold() -> Counts:
        evict(*others)
        return observed.during(lambda: read_all([*files, *others]))

    with kept_in_memory(files):
        got = observed.undisturbed(read_half_cold)
    assert got.bytes(Op.READ, DATA) == 2 * sum(PRIMES)
    assert got.metric("cache/hit_ratio") == 0.5
    assert got.bytes(Op.BLOCK_READ, DATA) == ON_DISK


def test_what_an_outsider_reads_of_the_same_files_is_not_counted(
    observed: ObservedKernel, outsider: Outsider, files: list[Path]
) -> None:
    got = observed.during(lambda: outsider.do(read_all, files))
    assert not any(got.count(op, DATA) for op in Op)


@pytest.mark.parametrize("advice", [os.POSIX_FADV_NORMAL, os.POSIX_FADV_RANDOM])
def test_random_reads_hit_exactly_what_cachestat_finds(
    observed: ObservedKernel, place: Path, advice: int
) -> None:
    path = write_file(place / "big", FILE_BYTES)
    observed.data(place)
    places = random.Random(1)

    def attempt() -> tuple[Counts, int, int]:
        found = 0

        def read() -> None:
            nonlocal found
            os.posix_fadvise(fd, 0, 0, advice)
            for _ in range(RANDOM_READS):
                offset = places.randrange(FILE_BYTES // PAGE) * PAGE
                found += cached_pages(fd, offset, PAGE)
                os.pread(fd, PAGE, offset)

        evict(path)
        fd = os.open(path, os.O_RDONLY)
        got = observed.during(read)
        cached = cached_pages(fd)
        os.close(fd)
        return got, found, cached

    got, found, cached = observed.undisturbed(attempt, path)
    assert 0 < found < RANDOM_READS  # or the test could not fail
    assert got.count(Op.CACHE_READ, DATA, MAIN) == RANDOM_READS
    assert got.count(Op.DEMAND_MISS, DATA, MAIN) == RANDOM_READS - found
    assert got.metric("cache/demand_hit_ratio") == 1 - (RANDOM_READS - found) / RANDOM_READS
    assert got.bytes(Op.CACHE_MISS, DATA, MAIN) == cached * PAGE
    assert got.metric("cache/hit_ratio") == 1 - cached / RANDOM_READS


@pytest.mark.parametrize("way", ["pread", "read"])
def test_a_read_that_begins_within_a_page_asks_for_both_that_it_touches(
    observed: ObservedKernel, place: Path, way: str
) -> None:
    """Each place is read cold, and again."""
    path = write_file(place / "big", FILE_BYTES)
    observed.data(place)
    offsets = [number * 16 * PAGE + 777 for number in range(FILE_BYTES // PAGE // 16)]

    def read() -> None:
        for _ in range(2):
            for offset in offsets:
                if way == "pread":
                    os.pread(fd, PAGE, offset)
                else:
                    os.lseek(fd, offset, os.SEEK_SET)
                    os.read(fd, PAGE)

    def attempt() -> tuple[Counts, int]:
        nonlocal fd
        evict(path)
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        got = observed.during(read)
        cached = cached_pages(fd)
        os.close(fd)
        return got, cached

    fd = -1
    got, cached = observed.undisturbed(attempt, path)
    assert cached == 2 * len(offsets)
    assert got.bytes(Op.CACHE_READ, DATA, MAIN) == 4 * len(offsets) * PAGE
    assert got.bytes(Op.CACHE_MISS, DATA, MAIN) == 2 * len(offsets) * PAGE
    assert got.metric("cache/hit_ratio") == 0.5


@pytest.mark.needs_program("tobs_ra_wait")
def test_a_read_that_would_not_wait_leaves_its_misses_to_the_one_that_does(
    observed: ObservedKernel, files: list[Path]
) -> None:
    refused = 0

    def read() -> None:
        nonlocal refused
        for path in files:
            fd, buffer = os.open(path, os.O_RDONLY), bytearray(path.stat().st_size)
            try:
                os.preadv(fd, [buffer], 0, os.RWF_NOWAIT)
            except BlockingIOError:
                refused += 1
            assert os.preadv(fd, [buffer], 0) > 0
            os.close(fd)

    def attempt() -> tuple[Counts, int]:
        nonlocal refused
        evict(*files)
        refused = 0
        return observed.during(read), sum(map(cached_pages, files)) * PAGE

    for _ in range(8):  # the disk may be done before the kernel looks, if the CPU is taken away
        got, cached = observed.undisturbed(attempt, *files)
        if refused == len(files):
            break
    assert refused == len(files)
    assert cached == IN_MEMORY
    assert got.bytes(Op.CACHE_READ, DATA, MAIN) == got.bytes(Op.CACHE_MISS, DATA, MAIN) == cached
    assert got.count(Op.CACHE_READ, DATA) == got.count(Op.DEMAND_MISS, DATA) == len(files)
    assert got.metric("cache/hit_ratio") == got.metric("cache/demand_hit_ratio") == 0.0


@pytest.mark.needs_program("tobs_ra_wait")
def test_read_ahead_hides_a_cold_file_from_sequential_reads(
    observed: ObservedKernel, place: Path
) -> None:
    path = write_file(place / "big", 2 * 64 * MIB)
    observed.data(place)
    reads = 64 * MIB // BUFFER

    def attempt() -> tuple[Counts, int, int]:
        waited = 0

        def read() -> None:
            nonlocal waited
            for number in range(reads):
                waited += cached_pages(fd, number * BUFFER, BUFFER) < BUFFER // PAGE
                os.read(fd, BUFFER)

        evict(path)
        fd = os.open(path, os.O_RDONLY)
        got = observed.during(read)
        cached = cached_pages(fd)
        os.close(fd)
        return got, waited, cached

    got, waited, cached = observed.undisturbed(attempt, path)
    assert 0 < waited < reads / 10
    assert got.bytes(Op.READ, DATA) == 64 * MIB
    missed = got.count(Op.DEMAND_MISS, DATA)
    # mincore(2) leaves out the pages that the device is still to fill.
    assert missed == waited if has_cachestat() else 0 < missed <= waited
    assert got.metric("cache/demand_hit_ratio") == 1 - missed / reads
    assert got.bytes(Op.CACHE_MISS, DATA) == cached * PAGE >= 64 * MIB


def test_an_empty_step_has_no_hit_ratio(observed: ObservedKernel) -> None:
    assert math.isnan(observed.during(lambda: None).metric("cache/hit_ratio"))
