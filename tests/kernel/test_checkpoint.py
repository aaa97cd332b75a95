"""Checkpoints: what is written while one is saved, and what of it reaches the disk."""

from __future__ import annotations

import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.kernel.classified import SIZE, new
from tests.kernel.ground_truth import BLOCK, MIB, evict, rounded, write_file
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import Outsider, in_child
from tests.kernel_state import programs_off_here
from trainobs.core.abi import FileClass, Op, Phase, Role
from trainobs.probes.session_maps import KINDS

pytestmark = pytest.mark.needs_bpf

CHECKPOINT, DATA, OTHER = FileClass.CHECKPOINT, FileClass.DATA, FileClass.OTHER
MAIN = Role.MAIN


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    return {"w": torch.randn(2 * MIB + 13)}


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on a file system that has no disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


def sync_file_system(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    assert ctypes.CDLL(None).syncfs(fd) == 0
    os.close(fd)


def saving(observed: ObservedKernel, save: Callable[[], object]) -> Counts:
    return observed.during(save, Phase.CHECKPOINT)


def save_as_checkpoint(observed: ObservedKernel, save: Callable[[], object]) -> None:
    """Save in the checkpoint phase of a step in which more is done."""
    observed.clock.enter(Phase.CHECKPOINT)
    save()
    observed.clock.leave()


def test_a_checkpoint_that_is_synced_is_counted_down_to_the_disk(
    observed: ObservedKernel, place: Path, weights: dict[str, torch.Tensor]
) -> None:
    path = place / "last.ckpt"

    def save() -> None:
        with path.open("wb") as file:
            torch.save(weights, file)
            file.flush()
            os.fsync(file.fileno())

    got = observed.undisturbed(lambda: saving(observed, save))
    size = path.stat().st_size
    assert size > 8 * MIB
    assert got.bytes(Op.WRITE, CHECKPOINT, MAIN) == got.bytes(Op.WRITE) == size
    # Of any role, since somebody else on this machine may sync meanwhile.
    assert got.bytes(Op.BLOCK_WRITE, CHECKPOINT) == rounded(size, BLOCK)
    assert got.count(Op.FSYNC, CHECKPOINT, MAIN) == 1
    assert 0 < got.wait_ns(Op.FSYNC, CHECKPOINT) < got.ns(Op.FSYNC, CHECKPOINT)
    assert got.metric("io/checkpoint_write_bytes") == size
    assert got.metric("block/checkpoint_write_bytes") == rounded(size, BLOCK)


def test_the_same_outside_the_phase_is_no_checkpoint(observed: ObservedKernel, place: Path) -> None:
    path = place / "log.txt"
    got = observed.during(lambda: path.write_bytes(bytes(100_003)), Phase.LOGGING)
    assert got.bytes(Op.WRITE, OTHER, MAIN) == 100_003
    assert got.count(Op.WRITE, CHECKPOINT) == 0


@pytest.mark.parametrize("who", ["a child", "an outsider"])
def test_a_checkpoint_is_known_when_the_kernel_writes_it_back(
    observed: ObservedKernel,
    outsider: Outsider,
    place: Path,
    weights: dict[str, torch.Tensor],
    who: str,
) -> None:
    path = place / "last.ckpt"

    def save_and_sync() -> None:
        path.unlink(missing_ok=True)  # ext4 writes out at once what replaces an older file
        save_as_checkpoint(observed, lambda: torch.save(weights, path))
        if who == "a child":
            in_child(os.sync)
        else:
            outsider.do(sync_file_system, place)

    got = observed.undisturbed(lambda: observed.during(save_and_sync))
    size = path.stat().st_size
    assert got.bytes(Op.WRITE, CHECKPOINT, MAIN) == size
    assert got.bytes(Op.BLOCK_WRITE, CHECKPOINT) == rounded(size, BLOCK)
    assert got.roles(Op.BLOCK_WRITE, CHECKPOINT) <= {Role.KERNEL, Role.CHILD}


def test_a_checkpoint_is_known_after_more_files_than_are_remembered(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """So many that the kernel forgets classes, also of files that are looked up more than once."""
    few = KINDS["session_classes"]._replace(entries=512)
    monkeypatch.setitem(KINDS, "session_classes", few)
    others = [new(place / "data" / f"{number}") for number in range(4096)]
    observed = ObservedKernel()

    def read_by_turns(two: list[Path]) -> None:
        with two[0].open("rb") as first, two[1].open("rb") as second:
            first.read()
            second.read()

    def save_and_sync() -> None:
        path = place / "elsewhere.ckpt"
        path.unlink(missing_ok=True)
        save_as_checkpoint(observed, lambda: path.write_bytes(bytes(MIB)))
        for at in range(0, len(others), 2):
            read_by_turns(others[at : at + 2])
        sync_file_system(place)
        path.read_bytes()

    try:
        observed.data(place / "data")
        got = observed.undisturbed(lambda: observed.during(save_and_sync))
        assert got.bytes(Op.BLOCK_WRITE, CHECKPOINT) == MIB
        assert got.bytes(Op.READ, CHECKPOINT) == MIB
        assert got.bytes(Op.READ, DATA) == len(others) * SIZE
    finally:
        observed.stop()


def test_small_files_that_share_a_block_request_are_all_counted(
    observed: ObservedKernel, outsider: Outsider, place: Path
) -> None:
    observed.kernel.add_root(place, CHECKPOINT)
    shards = [place / f"shard{number}" for number in range(100)]

    def save() -> None:
        for shard in shards:
            shard.write_bytes(bytes(5003))
        outsider.do(sync_file_system, place)

    got = observed.undisturbed(lambda: observed.during(save))
    assert got.bytes(Op.WRITE, CHECKPOINT, MAIN) == 100 * 5003
    assert got.bytes(Op.BLOCK_WRITE, CHECKPOINT) == 100 * 8192
    assert got.count(Op.BLOCK_WRITE, CHECKPOINT) < 100


@pytest.mark.parametrize("across", [False, True])
def test_a_checkpoint_may_be_moved_to_its_place(
    observed: ObservedKernel, place: Path, memory: Path, across: bool
) -> None:
    """As Lightning saves: to a temporary file, which across file systems is copied."""
    temporary = memory if across else place / "temporary"
    temporary.mkdir(exist_ok=True)

    def save_and_sync() -> None:
        save_as_checkpoint(observed, lambda: written_and_moved(temporary, place / "last.ckpt"))
        sync_file_system(place)

    got = observed.undisturbed(lambda: observed.during(save_and_sync))
    written = 2 * 1_000_003 if across else 1_000_003
    assert got.bytes(Op.WRITE, CHECKPOINT, MAIN) == got.bytes(Op.WRITE) == written
    assert got.bytes(Op.BLOCK_WRITE, CHECKPOINT) == rounded(1_000_003, BLOCK)


def written_and_moved(temporary: Path, target: Path) -> None:
    handle, name = tempfile.mkstemp(dir=temporary)
    os.write(handle, bytes(1_000_003))
    os.close(handle)
    shutil.move(name, target)


def send(source: int, target: int) -> int:
    return os.sendfile(target, source, 0, 1_000_003)


def copy_range(source: int, target: int) -> int:
    return os.copy_file_range(source, target, 1_000_003)


def splice(source: int, target: int) -> int:
    """By way of a pipe, as the call wants it."""
    reader, writer = os.pipe()
    done = 0
    while done < 1_000_003:
        taken = os.splice(source, writer, min(65_536, 1_000_003 - done))
        done += os.splice(reader, target, taken)
    os.close(reader)
    os.close(writer)
    return done


@pytest.mark.parametrize("copy", [send, copy_range])
def test_what_a_copy_reads_from_a_device_has_no_class_of_its_target(
    observed: ObservedKernel, place: Path, outsider: Outsider, copy: Callable[[int, int], int]
) -> None:
    """As where data is staged."""
    source = place / "source"
    outsider.do(write_file, source, 1_000_003)
    (place / "data").mkdir()
    observed.data(place / "data")

    def attempt() -> Counts:
        evict(source)
        opened = os.open(source, os.O_RDONLY)
        target = os.open(place / "data" / "target", os.O_WRONLY | os.O_CREAT)
        got = observed.during(lambda: copy(opened, target))
        os.close(opened)
        os.close(target)
        return got

    got = observed.undisturbed(attempt, source)
    assert got.bytes(Op.BLOCK_READ, OTHER) == rounded(1_000_003, BLOCK)
    assert got.bytes(Op.BLOCK_READ, DATA) == 0


@pytest.mark.parametrize("copy", [send, copy_range, splice])
def test_a_copy_inside_the_kernel_is_a_read_of_its_source_and_a_write_to_its_target(
    observed: ObservedKernel, place: Path, copy: Callable[[int, int], int]
) -> None:
    (place / "data").mkdir()
    (place / "saved").mkdir()
    (place / "data" / "source").write_bytes(os.urandom(1_000_003))
    observed.data(place / "data")
    observed.kernel.add_root(place / "saved", CHECKPOINT)
    source = os.open(place / "data" / "source", os.O_RDONLY)
    target = os.open(place / "saved" / "target", os.O_WRONLY | os.O_CREAT)
    done = 0

    def run() -> None:
        nonlocal done
        done = copy(source, target)

    def run_cold() -> Counts:
        os.lseek(source, 0, os.SEEK_SET)
        os.lseek(target, 0, os.SEEK_SET)
        evict(place / "data" / "source")
        return observed.during(run)

    got = observed.undisturbed(run_cold, place / "data" / "source")
    os.close(source)
    os.close(target)
    assert done == 1_000_003
    calls = -(-done // 65_536) if copy is splice else 1
    assert got.bytes(Op.WRITE, CHECKPOINT, MAIN) == done
    assert got.count(Op.WRITE, CHECKPOINT) == calls
    assert got.count(Op.WRITE, DATA) == 0
    assert got.bytes(Op.READ, DATA, MAIN) == got.bytes(Op.READ, DATA) == done
    assert got.count(Op.READ, DATA) == calls
    if copy is not copy_range:  # which some file systems do without the page cache
        assert got.bytes(Op.CACHE_MISS, DATA) == rounded(done)
        waits_told = "tobs_ra_wait" not in programs_off_here()
        assert waits_told <= got.count(Op.DEMAND_MISS, DATA) <= calls * waits_told
    assert got.bytes(Op.FAULT_FILL, DATA) == 0


def test_a_file_that_is_read_while_a_checkpoint_is_saved_is_none(
    observed: ObservedKernel, place: Path
) -> None:
    (place / "config.yaml").write_bytes(bytes(5003))
    got = saving(observed, (place / "config.yaml").read_bytes)
    assert got.bytes(Op.READ, OTHER, MAIN) == 5003
    assert CHECKPOINT not in got.classes(Op.READ)


def test_what_a_worker_writes_while_a_checkpoint_is_saved_is_none(
    observed: ObservedKernel, place: Path
) -> None:
    got = saving(observed, lambda: in_child((place / "out").touch))
    assert got.count(Op.WRITE, CHECKPOINT) == 0
    got = saving(observed, lambda: in_child(lambda: (place / "out").write_bytes(bytes(5003))))
    assert got.bytes(Op.WRITE, OTHER, Role.CHILD) == 5003
    assert got.count(Op.WRITE, CHECKPOINT) == 0
