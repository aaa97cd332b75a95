"""Files that are read behind a read-ahead hint: neither mapped, nor in memory before."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernel.ground_truth import (
    MIB,
    PAGE,
    cached_pages,
    evict,
    kept_in_memory,
    read_whole,
    write_file,
)
from tests.kernel.observed import Counts, ObservedKernel
from trainobs.core.abi import FileClass, Op, Role

pytestmark = pytest.mark.needs_bpf

DATA, MAIN = FileClass.DATA, Role.MAIN
SIZE = MIB

_libc = ctypes.CDLL(None, use_errno=True)


def advise(fd: int) -> None:
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)


def read_ahead(fd: int) -> None:
    assert not _libc.readahead(fd, ctypes.c_int64(0), ctypes.c_size_t(SIZE))


def hinted(path: Path, hint: Callable[[int], None]) -> None:
    with path.open("rb") as file:
        hint(file.fileno())


@pytest.fixture
def path(observed: ObservedKernel, place: Path) -> Path:
    """Data that is not in memory."""
    observed.data(place)
    return write_file(place / "hinted", SIZE)


@pytest.mark.parametrize("hint", [advise, read_ahead])
def test_pages_that_a_hint_brings_in_are_its_own(
    observed: ObservedKernel, path: Path, hint: Callable[[int], None]
) -> None:
    def attempt() -> tuple[Counts, int]:
        def work() -> None:
            nonlocal cached
            hinted(path, hint)
            cached = cached_pages(path)
            read_whole(path)

        cached = 0
        evict(path)
        return observed.during(work), cached

    got, cached = observed.undisturbed(attempt, path)
    assert 0 < cached <= SIZE // PAGE
    assert got.bytes(Op.HINT, DATA, MAIN) == cached * PAGE
    assert got.bytes(Op.HINT, DATA) + got.bytes(Op.CACHE_MISS, DATA) == SIZE
    assert got.bytes(Op.BLOCK_READ, DATA) == SIZE
    assert got.count(Op.FAULT_FILL) == 0
    assert got.bytes(Op.READ, DATA) == SIZE
    assert got.metric("cache/hint_bytes") == cached * PAGE
    assert math.isnan(got.metric("cache/hit_ratio"))
    assert math.isnan(got.metric("cache/demand_hit_ratio"))


def test_a_hint_for_what_is_in_memory_takes_nothing_from_the_hits(
    observed: ObservedKernel, path: Path
) -> None:
    def work() -> None:
        hinted(path, advise)
        read_whole(path)

    with kept_in_memory([path]):
        got = observed.during(work)
    assert got.count(Op.HINT, DATA, MAIN) == 1
    assert got.bytes(Op.HINT) == got.count(Op.FAULT_FILL) == 0
    assert got.metric("cache/hit_ratio") == got.metric("cache/demand_hit_ratio") == 1.0


def test_of_two_files_a_hint_for_one_hides_what_was_found_of_the_other(
    observed: ObservedKernel, path: Path
) -> None:
    """The one may be mapped, or never be read: nobody can tell which reads it was for."""
    other = write_file(path.parent / "warm", SIZE)

    def attempt() -> Counts:
        evict(path)
        return observed.during(lambda: [hinted(path, advise), read_whole(other)])

    with kept_in_memory([other]):
        got = observed.undisturbed(attempt)
        after = observed.during(lambda: read_whole(other))
    assert got.bytes(Op.HINT, DATA) > 0
    assert got.bytes(Op.CACHE_MISS, DATA) == 0
    assert math.isnan(got.metric("cache/hit_ratio"))
    assert after.metric("cache/hit_ratio") == 1.0


def test_a_hint_for_what_is_no_data_hides_nothing(observed: ObservedKernel, place: Path) -> None:
    other, warm = write_file(place / "other", SIZE), write_file(place / "data" / "warm", SIZE)
    observed.data(warm.parent)

    def attempt() -> Counts:
        evict(other)
        return observed.during(lambda: [hinted(other, advise), read_whole(warm)])

    with kept_in_memory([warm]):
        got = observed.undisturbed(attempt)
    assert got.bytes(Op.HINT, FileClass.OTHER) > 0
    assert got.metric("cache/hit_ratio") == 1.0


def test_madvise_is_for_mapped_files(observed: ObservedKernel, path: Path) -> None:
    def work() -> None:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_WILLNEED)

    def attempt() -> tuple[Counts, int]:
        evict(path)
        return observed.during(work), cached_pages(path)

    got, cached = observed.undisturbed(attempt, path)
    assert got.bytes(Op.FAULT_FILL, DATA, MAIN) == cached * PAGE > 0
    assert got.count(Op.HINT) == 0
