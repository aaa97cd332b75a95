"""Files that grow, are cut, have several names or none, or more bytes than anybody wrote."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from tests.kernel import patterns
from tests.kernel.counted import of_class, of_file, take, watch
from tests.kernel.ground_truth import write_file
from tests.kernel.observed import ObservedKernel
from tests.kernel.patterns import BLOCK, Read, Truth
from trainobs.core.abi import FileOp

pytestmark = pytest.mark.needs_bpf

MIB = 1 << 20


def test_of_a_file_that_is_written_behind_a_gap_the_bounds_hold(
    place: Path, counting: ObservedKernel
) -> None:
    """First what follows a header, in pieces smaller than a block, and then the header."""
    file = place / "a.bin"
    watch(counting, place)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    for begin in range(BLOCK, BLOCK + 50_000, 1000):
        os.pwrite(descriptor, bytes(1000), begin)
    os.pwrite(descriptor, bytes(BLOCK), 0)
    os.close(descriptor)
    row = of_file(take(counting), file, FileOp.WRITE)
    truth = BLOCK + 50_000
    assert truth - BLOCK < row["unique_least"] <= truth <= row["unique_most"] < truth + BLOCK


def test_of_a_file_that_grows_as_it_is_read_the_bounds_hold(
    place: Path, counting: ObservedKernel
) -> None:
    """What it grows by is seen by an open and by a read elsewhere before it is read."""
    file = write_file(place / "a.bin", BLOCK + 900)
    watch(counting, place)
    descriptor = os.open(file, os.O_RDONLY)
    os.pread(descriptor, 900, BLOCK)
    with file.open("ab") as stream:
        stream.write(bytes(BLOCK - 900))
    os.close(os.open(file, os.O_RDONLY))
    os.pread(descriptor, 100, 0)
    os.pread(descriptor, BLOCK - 900, BLOCK + 900)
    os.close(descriptor)
    row = of_file(take(counting), file)
    truth = BLOCK + 100
    assert row["unique_least"] <= truth <= row["unique_most"] <= 3 * BLOCK


def test_a_file_that_is_cut_and_written_anew_has_the_places_that_were_read(
    place: Path, counting: ObservedKernel
) -> None:
    file = write_file(place / "a.bin", 50_000)
    watch(counting, place)
    file.read_bytes()
    file.write_bytes(bytes(20_000))
    file.read_bytes()
    row = of_file(take(counting), file)
    assert (row["bytes"], row["unique_least"], row["unique_most"]) == (70_000, 50_000, 50_000)


def test_places_beyond_4_gib_are_told_apart(place: Path, counting: ObservedKernel) -> None:
    file = place / "a.bin"
    file.touch()
    os.truncate(file, (20 << 30) + 777)
    reads = [Read(0, begin, BLOCK) for begin in range(0, 20 << 30, 1 << 30)]
    watch(counting, place)
    patterns.make(file, [*reads, Read(0, 20 << 30, 777)])
    row, truth = of_file(take(counting), file), Truth.from_reads(reads)
    assert row["bytes"] == row["unique_least"] == row["unique_most"] == truth.unique + 777
    assert (row["first_count"], row["forward_count"]) == (1, len(reads))


def test_a_file_is_one_by_whatever_name_or_descriptor(
    place: Path, counting: ObservedKernel
) -> None:
    file, linked, symlinked = (place / name for name in ("a.bin", "b.bin", "c.bin"))
    write_file(file, MIB)
    os.link(file, linked)
    symlinked.symlink_to(file)
    watch(counting, place)
    linked.read_bytes()
    symlinked.read_bytes()
    descriptor = os.open(file, os.O_RDONLY)
    duplicate = os.dup(descriptor)
    os.read(descriptor, 1000)
    os.read(duplicate, 1000)  # consecutive, as all that follows
    os.close(descriptor)
    file.rename(place / "d.bin")
    os.read(duplicate, 1000)
    for name in ("b.bin", "d.bin"):
        (place / name).unlink()
    os.read(duplicate, 1000)
    inode = os.fstat(duplicate).st_ino
    os.close(duplicate)
    found = take(counting)
    row = of_class(found)
    assert (row["file_count"], row["open_count"]) == (1, 3)
    assert (row["first_count"], row["consecutive_count"]) == (3, 3)
    assert row["bytes"] == 2 * MIB + 4000
    assert row["unique_least"] == row["unique_most"] == MIB
    assert {name for name in found.rows["file"][found.rows["inode"] == inode] if name} == {
        f"{place.name[:31]}/b.bin".encode()
    }


def test_what_is_read_around_the_page_cache_has_its_places(
    place: Path, counting: ObservedKernel
) -> None:
    file = write_file(place / "a.bin", 2 * MIB)
    watch(counting, place)
    descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, 65_536) as buffer:
        while os.readv(descriptor, [buffer]):
            pass
        os.preadv(descriptor, [buffer], 0)
    os.close(descriptor)
    row = of_file(take(counting), file)
    assert (row["count"], row["consecutive_count"], row["backward_count"]) == (33, 31, 1)
    assert (row["empty_count"], row["aligned_count"]) == (1, 33)
    assert row["unique_least"] == row["unique_most"] == 2 * MIB


def test_copies_within_the_kernel_do_not_tell_where(place: Path, counting: ObservedKernel) -> None:
    file, copy = write_file(place / "a.bin", 2 * MIB), place / "b.bin"
    watch(counting, place)
    with file.open("rb") as source, copy.open("wb") as target:
        copied = os.copy_file_range(source.fileno(), target.fileno(), MIB)
        reader, writer = os.pipe()
        spliced = os.splice(source.fileno(), writer, 65_536)
        assert os.splice(reader, target.fileno(), spliced) == spliced
        os.close(reader)
        os.close(writer)
    found, moved = take(counting), copied + spliced
    for row in (of_file(found, file), of_file(found, copy, FileOp.WRITE)):
        assert (row["count"], row["bytes"], row["untold_bytes"]) == (2, moved, moved)


def test_calls_that_move_nothing_are_no_calls(place: Path, counting: ObservedKernel) -> None:
    file = write_file(place / "a.bin", 10_000)
    watch(counting, place)
    descriptor = os.open(file, os.O_RDONLY)
    assert len(os.pread(descriptor, 9999, 9000)) == 1000  # as much as there is
    assert (
        not os.pread(descriptor, 10, 20_000) + os.pread(descriptor, 0, 5) + os.read(descriptor, 0)
    )
    with pytest.raises(OSError, match="Invalid argument"):
        os.pread(descriptor, 10, -5)
    os.close(descriptor)
    row = of_file(take(counting), file)
    assert (row["count"], row["bytes"], row["first_count"]) == (1, 1000, 1)
    assert (row["empty_count"], row["failed_count"]) == (3, 1)
