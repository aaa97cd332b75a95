"""File systems besides ext4: what of a file reaches the disk, and not what the file system adds."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.btf import Btf
from tests.kernel.ground_truth import (
    BLOCK,
    MAGICS,
    PAGE,
    PRIMES,
    evict,
    file_system,
    read_whole,
    rounded,
    write_files,
)
from tests.kernel.mounts import mounted
from tests.kernel.observed import Counts, ObservedKernel
from trainobs.core.abi import FileClass, Op

pytestmark = pytest.mark.needs_bpf

DATA = FileClass.DATA
SYNCED = 50


def test_requests_of_a_file_systems_own_are_marked_as_here() -> None:
    """`REQ_META` of bpf/vmlinux.h, which no relocation makes right."""
    kernel = Btf(Path("/sys/kernel/btf/vmlinux"))
    assert kernel.enumerators("req_flag_bits")["__REQ_META"] == 12


@pytest.fixture(params=["ext4", "xfs", "btrfs"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty file system of a kind, in a file."""
    kind, image, directory = request.param, tmp_path / "image", tmp_path / "disk"
    known = Path("/proc/filesystems").read_text().split()
    if kind not in known and subprocess.run(["modprobe", "-q", kind], check=False).returncode:
        pytest.skip(f"this kernel has no {kind}")
    directory.mkdir()
    with image.open("wb") as file:
        file.truncate(512 << 20)
    subprocess.run([f"mkfs.{kind}", "-q", image], check=True)
    with mounted("loop", image, directory):
        assert file_system(directory) == MAGICS[kind]
        yield directory


def test_bytes_of_files_are_told_from_the_logs_and_trees_around_them(
    observed: ObservedKernel, disk: Path
) -> None:
    files = write_files(disk)
    observed.data(disk)

    def save(number: int) -> None:
        with (disk / f"saved{number}").open("wb", buffering=0) as file:
            file.write(os.urandom(PAGE))
            os.fsync(file.fileno())

    def attempt() -> Counts:
        evict(*files)
        return observed.during(lambda: [*map(read_whole, files), *map(save, range(SYNCED))])

    got = observed.undisturbed(attempt)
    assert got.bytes(Op.READ, DATA) == sum(PRIMES)
    assert got.bytes(Op.BLOCK_READ, DATA) == sum(rounded(size, BLOCK) for size in PRIMES)
    assert got.bytes(Op.WRITE, DATA) == SYNCED * PAGE
    assert got.bytes(Op.BLOCK_WRITE, DATA) == SYNCED * PAGE
