"""Files whose pages are not in the requests for them: compressed, or beneath an overlay."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.kernel.ground_truth import MIB, PAGE, evict, write_file
from tests.kernel.mounts import mounted
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import Outsider
from tests.kernel.runlog import RunTables
from trainobs import observe
from trainobs.core.abi import FileClass, Op, Phase

pytestmark = pytest.mark.needs_bpf

DATA, CHECKPOINT = FileClass.DATA, FileClass.CHECKPOINT
SIZE = 8 * MIB


def need(kind: str) -> None:
    known = Path("/proc/filesystems").read_text().split()
    if kind not in known and subprocess.run(["modprobe", "-q", kind], check=False).returncode:
        pytest.skip(f"this kernel has no {kind}")


def touch_all(path: Path) -> None:
    """Read a byte of each page through a mapping."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        sum(mapping[0::PAGE])


@pytest.fixture
def compressed(tmp_path: Path) -> Iterator[Path]:
    """An empty btrfs that compresses what is written to it."""
    need("btrfs")
    image, directory = tmp_path / "image", tmp_path / "disk"
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(512 * MIB)
    subprocess.run(["mkfs.btrfs", "-q", image], check=True)
    with mounted("loop", image, directory):
        subprocess.run(["mount", "-o", "remount,compress-force=zstd", directory], check=True)
        yield directory


@pytest.fixture
def packed(tmp_path: Path) -> Iterator[Path]:
    """A file on EROFS, of which a part is random and a part zeros."""
    need("erofs")
    if not shutil.which("mkfs.erofs"):
        pytest.skip("mkfs.erofs is missing")
    source, image, directory = (tmp_path / name for name in ("source", "image", "disk"))
    source.mkdir()
    directory.mkdir()
    (source / "shard").write_bytes(os.urandom(SIZE // 2) + bytes(SIZE // 2))
    subprocess.run(["mkfs.erofs", "-zlz4", image, source], check=True, capture_output=True)
    with mounted("loop", image, directory):
        yield directory / "shard"


@pytest.fixture
def overlay(place: Path, outsider: Outsider) -> Iterator[Path]:
    """A directory on overlayfs; what lies beneath is in `lower` and `upper` beside it."""
    need("overlay")
    parts = {name: place / name for name in ("lower", "upper", "work", "merged")}
    for part in parts.values():
        part.mkdir()
    outsider.do(write_file, parts["lower"] / "shard", SIZE)  # what a run writes may be scratch
    options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
    command = ["mount", "-t", "overlay", "-o", options, "overlay", parts["merged"]]
    subprocess.run(command, check=True)
    with ExitStack() as stack:
        stack.callback(subprocess.run, ["umount", "--lazy", parts["merged"]], check=True)
        yield parts["merged"]


def counted(observed: ObservedKernel, path: Path, read: Callable[[Path], object]) -> Counts:
    """What is counted, in a wait for the loader, of reading a file that is not in memory."""

    def attempt() -> Counts:
        evict(path)
        return observed.during(lambda: read(path), Phase.LOADER)

    return observed.undisturbed(attempt, path)


@pytest.mark.needs_program("tobs_fault")
def test_what_faults_read_of_a_compressed_file_is_data(
    observed: ObservedKernel, compressed: Path
) -> None:
    path = compressed / "shard"
    path.write_bytes(os.urandom(PAGE) * 2 + bytes(SIZE - 2 * PAGE))
    os.sync()
    observed.data(compressed)
    got = counted(observed, path, touch_all)
    assert got.bytes(Op.FAULT_FILL, DATA) == SIZE
    assert 0 < got.bytes(Op.BLOCK_READ, DATA) < SIZE
    assert got.bytes(Op.BLOCK_READ, DATA) == got.bytes(Op.BLOCK_READ)


@pytest.mark.parametrize(
    "into", ["memory", pytest.param("a mapping", marks=pytest.mark.needs_program("tobs_fault"))]
)
def test_a_compressed_file_is_read_by_way_of_the_page_cache_under_o_direct_too(
    observed: ObservedKernel, compressed: Path, into: str
) -> None:
    path, mapped = compressed / "shard", compressed / "buffer"
    path.write_bytes(bytes(SIZE))
    mapped.write_bytes(bytes(SIZE))
    os.sync()
    observed.data(compressed)

    def read(path: Path) -> None:
        evict(mapped)
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        with mapped.open("rb") as file:
            number = file.fileno() if into == "a mapping" else -1
            with mmap.mmap(number, SIZE, mmap.MAP_PRIVATE) as buffer:
                assert os.readv(descriptor, [buffer]) == SIZE
        os.close(descriptor)

    got = counted(observed, path, read)
    assert got.bytes(Op.CACHE_READ, DATA) == got.bytes(Op.CACHE_MISS, DATA) == SIZE
    assert got.count(Op.DIRECT_READ, DATA) == 0
    assert got.bytes(Op.FAULT_FILL, DATA) == (SIZE if into == "a mapping" else 0)


@pytest.mark.parametrize("read", [Path.read_bytes, touch_all])
def test_what_is_read_of_a_packed_file_is_data(
    observed: ObservedKernel, packed: Path, read: Callable[[Path], object]
) -> None:
    """EROFS keeps packed pages by itself; they are read once, as the file was never read here."""
    observed.data(packed)
    got = observed.during(lambda: read(packed), Phase.LOADER)
    assert SIZE // 2 <= got.bytes(Op.BLOCK_READ, DATA) < SIZE
    assert got.bytes(Op.BLOCK_READ, FileClass.OTHER) < SIZE // 16  # its metadata


@pytest.mark.needs_program("tobs_fault")
def test_a_mapping_of_named_data_on_an_overlay_is_data(
    observed: ObservedKernel, overlay: Path
) -> None:
    path = overlay / "shard"
    observed.data(overlay)
    got = counted(observed, path, touch_all)
    assert got.count(Op.FAULT, DATA) > 0
    assert got.bytes(Op.FAULT_FILL, DATA) == got.bytes(Op.BLOCK_READ, DATA) == SIZE


def test_an_overlay_does_not_make_what_is_not_on_it_data(
    observed: ObservedKernel, overlay: Path, place: Path
) -> None:
    other = write_file(place / "index", SIZE)
    observed.data(overlay)
    got = counted(observed, other, Path.read_bytes)
    assert got.bytes(Op.READ) == SIZE
    assert got.count(Op.READ, DATA) == 0


def test_write_back_of_a_checkpoint_on_an_overlay_is_the_checkpoint_s(
    observed: ObservedKernel, overlay: Path, place: Path
) -> None:
    def save() -> None:
        (overlay / "saved").write_bytes(os.urandom(SIZE))
        subprocess.run(["sync", "-f", place], check=True)

    got = observed.undisturbed(lambda: observed.during(save, Phase.CHECKPOINT))
    assert got.bytes(Op.WRITE, CHECKPOINT) == SIZE
    assert got.bytes(Op.BLOCK_WRITE, CHECKPOINT) == SIZE


def test_without_the_program_that_knows_their_pages_files_on_an_overlay_are_unknown(
    overlay: Path, place: Path, tmp_path: Path
) -> None:
    probes = ["syscalls", "block"]
    with observe(run_dir=tmp_path / "run", data_roots=[overlay], probes=probes, quiet=True) as obs:
        evict(overlay / "shard")
        with obs.step(), obs.phase("checkpoint"):
            (overlay / "saved").write_bytes(os.urandom(SIZE))
            subprocess.run(["sync", "-f", place], check=True)
            touch_all(overlay / "shard")
    run = RunTables(tmp_path / "run")
    step = run.steps[-1]
    assert step["io/checkpoint_write_bytes"] == SIZE
    assert step["block/read_bytes"] >= SIZE
    for name in ("checkpoint_write_bytes", "write_bytes", "data_read_bytes"):
        assert step[f"block/{name}"] is None
    assert not run.total("bytes", "block_write")


def test_a_copy_onto_an_overlay_does_not_make_its_source_a_checkpoint(
    observed: ObservedKernel, overlay: Path, place: Path
) -> None:
    source = write_file(place / "source", SIZE)

    def copy() -> None:
        with source.open("rb") as read, (overlay / "saved").open("wb") as written:
            while os.sendfile(written.fileno(), read.fileno(), None, MIB):
                pass

    got = observed.undisturbed(lambda: observed.during(copy, Phase.CHECKPOINT), source)
    assert got.bytes(Op.WRITE, CHECKPOINT) == SIZE
    assert got.bytes(Op.READ, CHECKPOINT) == 0
