"""Reads that a worker of the kernel begins, of which no session is known to have asked for them."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.kernel.ground_truth import MIB, write_file
from tests.kernel.processes import fork
from trainobs.core.abi import SUMS
from trainobs.probes.map_entries import mapping
from trainobs.probes.shared import SharedProbes

pytestmark = pytest.mark.needs_bpf


@pytest.fixture
def probes() -> Iterator[SharedProbes]:
    probes = SharedProbes()
    yield probes
    probes.stop()
    vars(probes).clear()  # what is mapped holds the maps, and pytest holds the fixture


@pytest.fixture
def others_read(place: Path) -> Iterator[Callable[[], object]]:
    """A read of a loop device by nobody who is followed, which a worker of the kernel begins."""
    image = write_file(place / "image", 4 * MIB)
    find = subprocess.run(["losetup", "-f", "--show", image], capture_output=True, check=True)
    device = find.stdout.decode().strip()

    def read() -> None:
        with image.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        subprocess.run(["blockdev", "--flushbufs", device], check=True)
        Path(device).read_bytes()

    yield read
    subprocess.run(["losetup", "-d", device], check=True)


class Followed:
    """A process with a session of its own, in a slot; it reads a file directly when told to."""

    def __init__(self, probes: SharedProbes, slot: int, path: Path) -> None:
        self._told, self._tell = os.pipe()
        self._read, self._tell_read = os.pipe()
        self._pid = fork(lambda: self._serve(path))
        os.close(self._told)
        os.close(self._tell_read)
        with_sums = probes.open(slot)
        self._sums = np.frombuffer(mapping(with_sums.sums_fd, SUMS.itemsize), SUMS, 1)[0]
        with_sums.close()
        assert probes.adopt(slot, self._pid, self._pid)

    def read_directly(self) -> None:
        os.write(self._tell, b"r")
        assert os.read(self._read, 1) == b"x"

    def lost(self) -> int:
        return int(self._sums["losses"]["requests"])

    def end(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._tell)
        os.close(self._read)
        vars(self).clear()

    def _serve(self, path: Path) -> None:
        while os.read(self._told, 1):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
            with mmap.mmap(-1, MIB) as buffer:
                assert os.readv(fd, [buffer]) == MIB
            os.close(fd)
            os.write(self._tell_read, b"x")


@pytest.fixture
def follow(probes: SharedProbes, place: Path) -> Iterator[Callable[[int], Followed]]:
    """Begins the session of a slot."""
    path, followed = write_file(place / "file", MIB), list[Followed]()

    def begin(slot: int) -> Followed:
        followed.append(Followed(probes, slot, path))
        return followed[-1]

    yield begin
    for process in followed:
        process.end()


def undisturbed(read: Callable[[], object], *sessions: Followed) -> bool:
    """Whether a read costs sessions nothing; again where an end may have been kept from everybody.

    See `ObservedKernel.undisturbed`.
    """

    def costs_nothing() -> bool:
        before = [session.lost() for session in sessions]
        read()
        return before == [session.lost() for session in sessions]

    return any(costs_nothing() for _ in range(8))


def test_a_direct_read_of_one_session_costs_no_other_a_block_request(
    probes: SharedProbes,
    follow: Callable[[int], Followed],
    others_read: Callable[[], object],
) -> None:
    reader, bystander = follow(0), follow(1)
    assert undisturbed(others_read, reader, bystander)
    reader.read_directly()
    before = reader.lost()
    assert undisturbed(others_read, bystander)
    if probes._limits_hidden:  # whether these were the reader's, nobody knows
        assert reader.lost() > before
    probes.close(0)
    later = follow(0)
    assert undisturbed(others_read, later, bystander)
