"""What is counted of each file, against patterns whose truth is known by definition."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kernel import patterns
from tests.kernel.counted import of_class, of_file, spread, take, watch
from tests.kernel.ground_truth import PRIMES, overlay, write_file, write_files
from tests.kernel.observed import ObservedKernel
from tests.kernel.patterns import BLOCK, Read, Truth
from tests.kernel.processes import in_worker
from trainobs.core.abi import FileClass, FileOp
from trainobs.core.file_rows import SpreadKind
from trainobs.session.file_watch import EPOCH

pytestmark = pytest.mark.needs_bpf

MIB = 1 << 20
SIZE = 3 * MIB + 1234
RWF_NOAPPEND = 0x20  # include/uapi/linux/fs.h


EXACT = {
    "sequential": patterns.sequential(SIZE),
    "byte by byte": patterns.sequential(5000, step=1),
    "in one read": patterns.sequential(SIZE, step=SIZE),
    "from the middle on": patterns.sequential(SIZE, step=1000, begin=MIB),
    "the end, then all": [Read(0, SIZE - 22, 22), *patterns.sequential(SIZE)],
    "read twice": patterns.sequential(SIZE) + patterns.sequential(SIZE, step=70_000, stream=1),
    "read again by the same open file": [*patterns.sequential(SIZE), *patterns.sequential(SIZE)],
    "strided": patterns.strided(SIZE),
    "random blocks": patterns.shuffled_blocks(SIZE, 3000),
    "two readers, one behind the other": [
        read
        for pair in zip(
            patterns.sequential(2 * MIB, step=BLOCK, stream=0),
            patterns.sequential(2 * MIB, step=BLOCK, stream=1, begin=0),
            strict=True,
        )
        for read in pair
    ],
    "overlapping": [Read(0, begin, 2 * BLOCK) for begin in range(0, 2 * MIB, BLOCK)],
    "backwards": patterns.sequential(SIZE - SIZE % BLOCK, step=BLOCK)[::-1],
}


def agrees(row: Any, truth: Truth) -> None:
    for name in Truth._fields[:-2]:
        assert row[name] == getattr(truth, name), name


@pytest.mark.parametrize("name", EXACT)
def test_known_patterns_are_counted_exactly(
    name: str, place: Path, counting: ObservedKernel
) -> None:
    file, reads = write_file(place / "a.bin", SIZE), EXACT[name]
    watch(counting, place)
    patterns.make(file, reads)
    found, truth = take(counting), Truth.from_reads(reads)
    for row in (of_class(found), of_file(found, file)):
        agrees(row, truth)
        assert row["unique_least"] == row["unique_most"] == truth.unique
        assert row["untold_bytes"] == row["failed_count"] == row["empty_count"] == 0
        assert row["open_count"] == len({read.stream for read in reads})
    assert spread(found, SpreadKind.CALL_BYTES) == truth.sizes
    assert of_file(found, file)["file"] == f"{place.name[:31]}/a.bin".encode()


def test_of_records_anywhere_the_different_bytes_lie_within_bounds(
    place: Path, counting: ObservedKernel
) -> None:
    file, reads = write_file(place / "a.bin", SIZE), patterns.shuffled_records(SIZE, 12)
    watch(counting, place)
    patterns.make(file, reads)
    row, truth = of_file(take(counting), file), Truth.from_reads(reads)
    agrees(row, truth)
    assert row["unique_least"] <= truth.unique <= row["unique_most"]
    assert row["unique_most"] - row["unique_least"] <= 2 * BLOCK * len(reads)


def test_reads_that_move_the_file_s_own_position(place: Path, counting: ObservedKernel) -> None:
    file = write_file(place / "a.bin", SIZE)
    watch(counting, place)
    with file.open("rb", buffering=0) as stream:
        stream.read(1000)
        stream.read(1000)  # consecutive
        stream.seek(5000)
        stream.readinto(bytearray(1000))  # forward
        stream.seek(0)
        os.readv(stream.fileno(), [bytearray(10), bytearray(20)])  # backward
        os.preadv(stream.fileno(), [bytearray(10)], 30)  # consecutive
        stream.seek(0, os.SEEK_END)
        assert stream.read(100) == b""
    row = of_file(take(counting), file)
    assert row["bytes"] == 3040
    orders = "first_count", "consecutive_count", "forward_count", "backward_count"
    assert [int(row[name]) for name in orders] == [1, 2, 1, 1]
    assert row["empty_count"] == 1
    assert (row["unique_least"], row["unique_most"]) == (2000, 2000 + BLOCK)


def test_shuffled_files_are_told_apart_by_epoch(place: Path, counting: ObservedKernel) -> None:
    """Each is read once in an epoch, one of them twice; the second epoch leaves half out."""
    files = write_files(place)
    watch(counting, place)
    chosen = random.Random(3)
    read: list[list[Path]] = [[*files, files[-1]], files[::2]]
    for epoch, some in enumerate(read):
        counting.kernel.clock[EPOCH] = epoch
        chosen.shuffle(some)
        for file in some:
            file.read_bytes()
    for epoch, some in enumerate(read):
        found = take(counting, epoch + 1)
        row = of_class(found)
        assert set(found.rows["epoch"]) == {epoch}
        assert row["bytes"] == sum(file.stat().st_size for file in some)
        assert row["unique_least"] == row["unique_most"] == sum(f.stat().st_size for f in set(some))
        assert row["open_count"] == len(some)
        assert row["file_count"] == len(set(some))
        assert row["first_count"] + row["consecutive_count"] == row["count"]
        twice = len(some) - len(set(some))
        assert spread(found, SpreadKind.FILE_OPENS) == ({0: 22, 1: 1} if twice else {0: len(some)})
        largest = found.rows[found.rows["file"] != b""]
        own = largest[largest["class"] == FileClass.DATA]
        assert own["bytes"].tolist() == sorted(own["bytes"].tolist(), reverse=True)


def in_children(count: int, work: Callable[[int], object]) -> None:
    children = []
    for number in range(count):
        child = os.fork()
        if not child:
            try:
                work(number)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0


def test_workers_that_share_a_data_set_are_one_reader_of_it(
    place: Path, counting: ObservedKernel
) -> None:
    """Three processes at a time: each reads a third of the files, and all of one of them."""
    files = write_files(place)
    shared_file = write_file(place / "shared.bin", SIZE)
    watch(counting, place)

    def work(number: int) -> None:
        for file in files[number::3]:
            file.read_bytes()
        patterns.make(shared_file, patterns.sequential(SIZE, step=1 << 14))

    in_children(3, work)
    found = take(counting)
    row = of_class(found)
    assert row["bytes"] == sum(PRIMES) + 3 * SIZE
    assert row["unique_least"] == row["unique_most"] == sum(PRIMES) + SIZE
    own = of_file(found, shared_file)
    reads = len(patterns.sequential(SIZE, step=1 << 14))
    assert (own["open_count"], own["first_count"]) == (3, 3)
    assert own["consecutive_count"] == 3 * (reads - 1)


def test_an_open_file_that_workers_share_is_read_as_all_of_them_read_it(
    place: Path, counting: ObservedKernel
) -> None:
    """As read-ahead sees it: the second worker begins where the first one has left off."""
    file = write_file(place / "a.bin", SIZE)
    watch(counting, place)
    descriptor = os.open(file, os.O_RDONLY)
    for begin in (0, MIB, 0):
        in_children(1, lambda _, at=begin: os.pread(descriptor, MIB, at))
    os.close(descriptor)
    row = of_file(take(counting), file)
    assert row["open_count"] == row["first_count"] == row["consecutive_count"] == 1
    assert row["backward_count"] == 1
    assert row["unique_most"] == row["unique_least"] == 2 * MIB


def test_many_at_once_lose_nothing(place: Path, counting: ObservedKernel) -> None:
    """Four processes race for the same blocks: each block is new to one of them."""
    file = write_file(place / "a.bin", 64 * BLOCK * 32)
    watch(counting, place)

    def work(number: int) -> None:
        chosen = random.Random(number)
        order = list(range(64 * 32))
        chosen.shuffle(order)
        patterns.make(file, [Read(0, block * BLOCK, BLOCK) for block in order])

    in_children(4, work)
    row = of_file(take(counting), file)
    assert row["count"] == 4 * 64 * 32
    assert row["unique_least"] == row["unique_most"] == 64 * BLOCK * 32


def test_where_a_read_lies_is_unknown_if_the_call_does_not_tell(
    place: Path, counting: ObservedKernel
) -> None:
    file, copy = write_file(place / "a.bin", MIB), place / "b.bin"
    watch(counting, place)
    with file.open("rb") as source, copy.open("wb") as target:
        assert os.sendfile(target.fileno(), source.fileno(), 0, MIB) == MIB
    found = take(counting)
    row, written = of_file(found, file), of_file(found, copy, FileOp.WRITE)
    for one in (row, written):
        assert one["bytes"] == one["untold_bytes"] == MIB
        assert one["unique_most"] == one["first_count"] == one["aligned_count"] == 0
    assert (row["open_count"], written["open_count"]) == (1, 1)


def test_writes_are_counted_apart_from_reads(place: Path, counting: ObservedKernel) -> None:
    file = place / "a.bin"
    watch(counting, place)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
    os.write(descriptor, bytes(10_000))
    os.write(descriptor, bytes(10_000))  # consecutive
    os.pwrite(descriptor, bytes(100), 0)  # backward
    os.pread(descriptor, 50, 0)
    os.close(descriptor)
    with file.open("ab", buffering=0) as stream:
        stream.write(bytes(7))
    found = take(counting)
    row = of_file(found, file, FileOp.WRITE)
    assert (row["count"], row["bytes"]) == (4, 20_107)
    assert (row["first_count"], row["consecutive_count"], row["backward_count"]) == (2, 1, 1)
    assert row["unique_least"] == row["unique_most"] == 20_007
    assert row["open_count"] == 1  # the other one may read, too
    assert of_file(found, file)["bytes"] == 50


def test_of_a_file_that_becomes_data_nobody_knows_which_bytes_were_read_before(
    place: Path, counting: ObservedKernel
) -> None:
    """A class has the bytes that it was the first to read; these stand in the one before."""
    file, other = write_file(place / "a.bin", MIB), write_file(place / "b.bin", MIB)
    take(counting)
    file.read_bytes()  # of no known class yet
    counting.data(place)
    file.read_bytes()
    other.read_bytes()
    row = of_class(take(counting))
    assert (row["bytes"], row["untold_bytes"]) == (2 * MIB, MIB)
    assert row["unique_least"] == row["unique_most"] == MIB


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_an_open_counts_for_what_its_file_becomes(
    place: Path, counting: ObservedKernel, flags: int
) -> None:
    file, other = (write_file(place / name, 5000) for name in ("a.bin", "b.bin"))
    counting.kernel.infer_data(True)
    take(counting)

    def read() -> None:
        for _ in range(3):
            descriptor = os.open(file, flags)
            assert len(os.read(descriptor, 5000)) == 5000
            os.close(descriptor)

    other.read_bytes()
    os.close(os.open(file, os.O_RDONLY))
    in_worker(read)
    found = take(counting)
    assert of_class(found)["open_count"] == of_file(found, file)["open_count"] == 4
    assert of_class(found, FileClass.OTHER)["open_count"] == 1


def test_a_file_that_is_but_named_is_not_opened(place: Path, counting: ObservedKernel) -> None:
    file = write_file(place / "a.bin", MIB)
    watch(counting, place)
    os.close(os.open(file, os.O_PATH))
    with file.open("rb") as stream:
        stream.read()
    found = take(counting)
    assert of_file(found, file)["open_count"] == 1
    assert FileOp.WRITE not in set(found.rows["op"])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="aarch64 has no such call")
def test_what_creat_opens_is_opened(place: Path, counting: ObservedKernel) -> None:
    watch(counting, place)
    libc = ctypes.CDLL(None)
    descriptor = libc.syscall(85, os.fsencode(place / "a.bin"), 0o644)
    os.write(descriptor, bytes(1000))
    os.close(descriptor)
    row = of_file(take(counting), place / "a.bin", FileOp.WRITE)
    assert (row["open_count"], row["first_count"], row["bytes"]) == (1, 1, 1000)


def test_a_new_file_is_not_the_deleted_one_on_overlayfs(
    place: Path, counting: ObservedKernel
) -> None:
    """Its generations do not tell them apart. What was read with gaps has blocks, which stay."""
    with overlay(place) as merged:
        watch(counting, merged)
        for number in range(5):
            file = merged / f"{number}.bin"
            file.write_bytes(bytes(MIB))
            file.read_bytes()
            file.unlink()
        found = take(counting)
        read = of_class(found)
        assert (read["bytes"], read["unique_least"], read["unique_most"]) == (5 * MIB,) * 3
        assert read["untold_bytes"] == 0
        assert read["file_count"] == of_class(found, op=FileOp.WRITE)["file_count"] == 5

        assert b"/4.bin" in found.rows["file"].tolist()  # the mount's root has no other name

        for number in range(2):
            file = write_file(merged / f"gap{number}.bin", MIB)
            with file.open("rb", buffering=0) as stream:
                os.pread(stream.fileno(), 1000, 500_000)
            file.unlink()
        row = of_class(take(counting))
        assert row["bytes"] == 2000
        assert row["unique_least"] <= 2000 <= row["unique_most"] + row["untold_bytes"]


def test_a_write_that_is_told_to_append_lies_nowhere_that_is_known(
    place: Path, counting: ObservedKernel
) -> None:
    """By a flag of the call as by one of the file (O_APPEND), unless the call takes that back."""
    file = place / "a.bin"
    watch(counting, place)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT)
    os.pwritev(descriptor, [bytes(3000)], 0)  # first
    os.pwritev(descriptor, [bytes(500)], 100, os.RWF_APPEND)
    assert os.stat(file).st_size == 3500
    os.pwritev(descriptor, [bytes(50)], 3500)  # the one before lies nowhere: not known
    os.pwritev(descriptor, [bytes(40)], 0)  # backward
    os.close(descriptor)
    row = of_file(take(counting), file, FileOp.WRITE)
    orders = "first_count", "consecutive_count", "forward_count", "backward_count"
    assert (row["count"], row["bytes"], row["untold_bytes"]) == (4, 3590, 500)
    assert [int(row[name]) for name in orders] == [1, 0, 0, 1]

    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
    written = os.pwritev(descriptor, [bytes(30)], 0)
    with contextlib.suppress(OSError):  # before Linux 6.9
        written += os.pwritev(descriptor, [bytes(20)], 0, RWF_NOAPPEND)
        assert os.stat(file).st_size == 3580
    os.close(descriptor)
    row = of_file(take(counting), file, FileOp.WRITE)
    assert (row["bytes"], row["untold_bytes"]) == (written, 30)


def test_mappings_are_counted_and_failed_calls_too(place: Path, counting: ObservedKernel) -> None:
    file = write_file(place / "a.bin", MIB)
    watch(counting, place)
    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[:10]
    descriptor = os.open(file, os.O_WRONLY)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.read(descriptor, 10)
    os.close(descriptor)
    row = of_file(take(counting), file)
    assert (row["mmap_count"], row["failed_count"], row["bytes"]) == (1, 1, 0)


def test_calls_about_files_are_counted(place: Path, counting: ObservedKernel) -> None:
    write_files(place)
    watch(counting, place)
    for _ in range(7):
        os.stat(place)
    with pytest.raises(FileNotFoundError):
        os.stat(place / "none")
    os.listdir(place)
    found = take(counting)
    asked = of_class(found, FileClass.OTHER, FileOp.STAT)
    # Opening a directory for `listdir` asks once more.
    assert (asked["count"], asked["failed_count"]) == (8, 1)
    assert of_class(found, FileClass.OTHER, FileOp.LIST)["count"] == 2  # the second finds no more
