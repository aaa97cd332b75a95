"""Patterns of access that generators make, and what is true of them by definition."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
BLOCK = 4096


class Read(NamedTuple):
    """One read: of which open file (by its number), where, how much."""

    stream: int
    begin: int
    size: int


class Truth(NamedTuple):
    """What is to be counted of some reads of one file."""

    count: int
    bytes: int
    first_count: int
    consecutive_count: int
    forward_count: int
    backward_count: int
    aligned_count: int
    unique: int
    sizes: Counter[int]

    @classmethod
    def from_reads(cls, reads: Sequence[Read]) -> Truth:
        """By definition, byte by byte."""
        orders: Counter[str] = Counter()
        ends: dict[int, int] = {}
        seen: set[range] = set()
        for read in reads:
            before = ends.get(read.stream)
            if before is None:
                orders["first"] += 1
            elif read.begin == before:
                orders["consecutive"] += 1
            else:
                orders["forward" if read.begin > before else "backward"] += 1
            ends[read.stream] = read.begin + read.size
            seen.add(range(read.begin, read.begin + read.size))
        return cls(
            count=len(reads),
            bytes=sum(read.size for read in reads),
            first_count=orders["first"],
            consecutive_count=orders["consecutive"],
            forward_count=orders["forward"],
            backward_count=orders["backward"],
            aligned_count=sum(not read.begin % PAGE for read in reads),
            unique=union_of(seen),
            sizes=Counter(read.size.bit_length() - 1 for read in reads),
        )


def union_of(ranges: Iterable[range]) -> int:
    """Different numbers in some ranges."""
    total, end = 0, 0
    for one in sorted(ranges, key=lambda one: one.start):
        total += max(0, one.stop - max(one.start, end))
        end = max(end, one.stop)
    return total


def sequential(size: int, step: int = 10_007, begin: int = 0, stream: int = 0) -> list[Read]:
    """All of a file, piece by piece, from some position on."""
    return [Read(stream, at, min(step, size - at)) for at in range(begin, size, step)]


def strided(size: int, stride: int = 65_536, length: int = BLOCK) -> list[Read]:
    """A piece of each stride."""
    return [Read(0, at, length) for at in range(0, size - length, stride)]


def shuffled_blocks(size: int, count: int, seed: int = 7) -> list[Read]:
    """Blocks in any order, some of them several times."""
    chosen = random.Random(seed)
    return [Read(0, chosen.randrange(size // BLOCK) * BLOCK, BLOCK) for _ in range(count)]


def shuffled_records(size: int, count: int, seed: int = 11) -> list[Read]:
    """Records of any length at any place."""
    chosen = random.Random(seed)
    found = []
    for _ in range(count):
        begin = chosen.randrange(size - 1)
        found.append(Read(0, begin, chosen.randrange(1, min(200_000, size - begin) + 1)))
    return found


def make(file: Path, reads: Iterable[Read]) -> None:
    """Carry them out: each number of a stream is an open file of its own."""
    streams: dict[int, int] = {}
    try:
        for read in reads:
            if read.stream not in streams:
                streams[read.stream] = os.open(file, os.O_RDONLY)
            assert len(os.pread(streams[read.stream], read.size, read.begin)) == read.size
    finally:
        for descriptor in streams.values():
            os.close(descriptor)
