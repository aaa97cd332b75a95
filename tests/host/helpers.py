"""Real processes with known I/O, for the tests of `trainobs.host`."""

from __future__ import annotations

import mmap
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainobs.host import HostSampler

SELF_COST = 16_384
"""More than one refresh and some samples read from /proc themselves."""


CHILD_LIFE_S = 600
"""A child that hangs ends by itself, or it would keep pytest from ending."""


def limit_life() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(CHILD_LIFE_S)


def value(sampler: HostSampler, name: str) -> int:
    return int(sampler.sample()[sampler.available.index(name)])


def rested(sampler: HostSampler) -> HostSampler:
    """The sampler, once it reads all again: what took long to read rests a hundred times as long.

    On a busy machine a read may take long because its CPU was taken away in the middle.
    """
    while time.monotonic_ns() < max(sampler._workers._next_ns, sampler._pressure._next_ns):
        time.sleep(0.001)
    return sampler


def own_io(field: str) -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines[field])


def read_file(path: Path) -> int:
    """Reads a file in calls of 64 KiB, without the read at its end."""
    fd = os.open(path, os.O_RDONLY)
    size = os.fstat(fd).st_size
    done = 0
    while done < size:
        done += len(os.pread(fd, 65_536, done))
    os.close(fd)
    return done


def read_direct(path: Path) -> int:
    """Reads a file round the page cache."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    page = mmap.mmap(-1, 65_536)
    done = 0
    while got := os.preadv(fd, [page], done):
        done += got
    os.close(fd)
    return done


def become_worker() -> None:
    Path("/proc/self/comm").write_text("pt_data_worker")


class Child:
    """A forked child that runs `work` when told to, answers, and stays until it is told to end."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._go_read, self._go = os.pipe()
        self._answer, self._answer_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            self._serve(work)

    def _serve(self, work: Callable[[], object]) -> None:
        limit_life()
        os.close(self._go)
        status = 1
        try:
            while os.read(self._go_read, 1) == b"g":
                os.write(self._answer_write, f"{work()}\n".encode())
            status = 0
        finally:
            os._exit(status)

    def start(self) -> None:
        os.write(self._go, b"g")

    def answer(self) -> str:
        return os.read(self._answer, 100).decode().strip()

    def run(self) -> str:
        self.start()
        return self.answer()

    def end(self, reap: bool = True) -> None:
        """Tells it to end: closing the pipe would not do, later children hold copies of it."""
        os.write(self._go, b"e")
        for fd in (self._go_read, self._go, self._answer, self._answer_write):
            os.close(fd)
        if reap:
            assert os.waitpid(self.pid, 0)[1] == 0


@contextmanager
def sampling(proc: Path = Path("/proc")) -> Iterator[HostSampler]:
    sampler = HostSampler.open(proc)
    assert sampler is not None
    try:
        yield sampler
    finally:
        sampler.close()


def in_child(body: Callable[[], None]) -> None:
    """Runs `body` in a forked process, so that what it changes there ends with it."""
    pid = os.fork()
    if pid == 0:
        status = 1
        limit_life()
        try:
            body()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
