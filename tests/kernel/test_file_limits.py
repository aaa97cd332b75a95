"""What is counted of files where something is in the way: no room, no position, no kfunc."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from tests.kernel import patterns
from tests.kernel.counted import observing, of_class, of_file, take, watch
from tests.kernel.ground_truth import PRIMES, write_file, write_files
from tests.kernel.observed import ObservedKernel
from tests.kernel.patterns import BLOCK, Read, Truth
from trainobs.core.abi import FileClass
from trainobs.probes import file_counts, shared
from trainobs.probes.local_backend import LocalBackend

pytestmark = pytest.mark.needs_bpf

MIB = 1 << 20
SIZE = 3 * MIB + 1234


def test_what_the_maps_have_no_room_for_is_in_the_sums(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(file_counts.ENTRIES, "files", 8)
    files = write_files(place)
    counting = observing()
    try:
        watch(counting, place)
        for file in files:
            file.read_bytes()
        found = take(counting)
    finally:
        counting.stop()
    row = of_class(found)
    assert row["bytes"] == sum(PRIMES)
    assert row["count"] == row["first_count"] + row["consecutive_count"]
    assert row["file_count"] <= 8
    assert row["unique_most"] + row["untold_bytes"] == sum(PRIMES)
    listed = found.rows[(found.rows["file"] != b"") & (found.rows["class"] == FileClass.DATA)]
    assert listed["bytes"].sum() == row["unique_most"]
    assert row["unlisted_count"] == row["count"] - listed["count"].sum() > 0


def test_chunks_without_room_are_untold(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(file_counts.ENTRIES, "chunks", 4)
    file = write_file(place / "a.bin", SIZE)
    counting = observing()
    try:
        watch(counting, place)
        patterns.make(file, patterns.sequential(SIZE, step=1 << 18, begin=1 << 18))
        row = of_file(take(counting), file)
    finally:
        counting.stop()
    assert row["unique_least"] == row["unique_most"] == 4 << 18
    assert row["untold_bytes"] == row["bytes"] - (4 << 18)


def test_files_opened_before_are_not_called_first(place: Path) -> None:
    file = write_file(place / "a.bin", MIB)
    descriptor = os.open(file, os.O_RDONLY)
    os.pread(descriptor, 100, 0)
    counting = observing()
    try:
        watch(counting, place)
        os.pread(descriptor, 100, 100)
        os.pread(descriptor, 100, 200)
        row = of_file(take(counting), file)
    finally:
        counting.stop()
        os.close(descriptor)
    assert (row["count"], row["first_count"], row["consecutive_count"]) == (2, 0, 1)
    assert row["open_count"] == 0


def test_reading_large_pieces_marks_all_of_their_chunks(
    place: Path, counting: ObservedKernel
) -> None:
    """In one call 24 MiB that do not begin at the beginning: 97 chunks."""
    file = write_file(place / "a.bin", 25 * MIB)
    watch(counting, place)
    patterns.make(file, [Read(0, BLOCK, 24 * MIB), Read(0, 0, MIB)])
    row = of_file(take(counting), file)
    assert row["unique_least"] == row["unique_most"] == 24 * MIB + BLOCK


def test_the_object_without_the_kfunc_counts_the_same(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = shared.object_files({shared.KFUNC}, counts_files=True)[1:]
    monkeypatch.setattr(shared, "object_files", lambda names, counts_files: paths)
    file, reads = write_file(place / "a.bin", SIZE), patterns.shuffled_blocks(SIZE, 3000)
    counting = observing()
    try:
        watch(counting, place)
        patterns.make(file, reads)
        row, truth = of_file(take(counting), file), Truth.from_reads(reads)
    finally:
        counting.stop()
    assert (row["count"], row["bytes"]) == (truth.count, truth.bytes)
    assert row["backward_count"] == truth.backward_count
    assert row["unique_least"] == row["unique_most"] == truth.unique


def test_nothing_is_counted_unless_it_is_asked_for(observed: ObservedKernel, place: Path) -> None:
    """Control: the maps are there, and have no room."""
    assert observed.kernel.files is None
    write_file(place / "a.bin", MIB).read_bytes()
    assert isinstance(observed.kernel, LocalBackend)
    maps = observed.kernel._probes.maps(file_counts.ENTRIES)
    assert len(file_counts.FileCounts(maps).take().rows) == 0


def test_what_is_left_at_the_end_is_kept(place: Path) -> None:
    file = write_file(place / "a.bin", MIB)
    counting = observing()
    watch(counting, place)
    file.read_bytes()
    files = counting.kernel.files
    counting.stop()
    assert files is not None
    found = files.take()
    assert of_file(found, file)["bytes"] == MIB
    assert np.array_equal(files.take().rows, found.rows[:0])
