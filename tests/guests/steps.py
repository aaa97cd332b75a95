"""A run of 12 steps of which everything is known, and what the report says of it.

usage: python -m tests.guests.steps DIRECTORY [PROBE...]

Prints one JSON object. Needs neither torch nor privileges of its own.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.guests.truth import Truth, judge, report_of
from trainobs import observe

PAGE = mmap.PAGESIZE
BLOCK = 4096  # of the guest's file system, whatever its pages
FILES, SIZE, BUFFER = 20, 300_000, 65_536  # five calls read one, a sixth finds its end
PAGES = -(-SIZE // PAGE)
CALLS = -(-SIZE // BUFFER) + 1
STEPS = 12
COLD_STEPS = 10  # two files each; the two steps after them read the first four again
DIRECT = 16 * PAGE
SAVED, SAVES = 100_000, 4
SENT_4, SENT_6, SENT_UDP, SENT_UNIX, SENT_FILE = 1000, 500, 100, 700, 20_000
NAP_S = 0.05
LITTLE_NS = 1_000_000  # for which a thread may wait for a CPU, or one be away
FORWARD_NAPS = 3


def write(path: Path, size: int) -> Path:
    """A file that is on the disk, and not in memory."""
    path.write_bytes(os.urandom(size))
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    return path


def read(path: Path) -> int:
    """Read a file to its end; how often a read slept: that opening it may is another matter."""
    fd = os.open(path, os.O_RDONLY)
    before = sleeps()
    while os.read(fd, BUFFER):
        pass
    slept = sleeps() - before
    os.close(fd)
    return slept


def read_directly(path: Path) -> None:
    """Read a file of `DIRECT` bytes around the page cache, in one call."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, DIRECT) as buffer:
        if os.preadv(fd, [buffer], 0) != DIRECT:
            raise OSError("a direct read came back short")
    os.close(fd)


def fault_in(path: Path) -> None:
    """Touch each page of a mapped file; no read-ahead, so that each is a fault that reads."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)
        for at in range(0, SIZE, PAGE):
            mapped[at]


def save(path: Path) -> None:
    """What a checkpoint does: write a file and make it safe."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(fd, bytes(SAVED))
    os.fsync(fd)
    os.close(fd)


def copy(source: Path, target: Path, moved: list[int]) -> None:
    """Save a copy of a file without a buffer of this process; `moved` gets the bytes by call."""
    with source.open("rb") as old, target.open("wb") as new:
        while done := os.copy_file_range(old.fileno(), new.fileno(), SIZE):
            moved.append(done)
        os.fsync(new.fileno())


def compute(times: list[float]) -> None:
    """Use a CPU; `times` gets the time on it: no more than what passed by the clock of the probes.

    The clock of CPU time is another one, and emulated CPUs do not keep the two together. It begins
    before the kernel tells of a switch, between which the host may take the CPU.
    """
    cpu_s, clock_s = time.thread_time(), time.monotonic()
    while time.thread_time() - cpu_s < NAP_S:
        pass
    least_s = min(time.thread_time() - cpu_s, time.monotonic() - clock_s)
    times.append(max(0.0, least_s - LITTLE_NS / 1e9))


class Sockets:
    """Pairs of sockets on this machine, whose both ends are in this process."""

    def __init__(self, sent_file: Path) -> None:
        self._four = self._stream(socket.AF_INET, "127.0.0.1")
        self._six = self._stream(socket.AF_INET6, "::1")
        self._unix = socket.socketpair()
        self._udp = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
        self._udp[1].bind(("127.0.0.1", 0))
        self._file = sent_file.open("rb")
        self._file.read()  # so that sending it reads nothing from the disk

    @staticmethod
    def _stream(family: int, host: str) -> tuple[socket.socket, socket.socket]:
        with socket.create_server((host, 0), family=family) as server:
            client = socket.create_connection(server.getsockname()[:2])
            return client, server.accept()[0]

    def talk(self) -> None:
        """Send `SENT_*` bytes on each, and take them."""
        for (sender, taker), size in (
            (self._four, SENT_4),
            (self._six, SENT_6),
            (self._unix, SENT_UNIX),
        ):
            sender.sendall(bytes(size))
            self._take(taker, size)
        self._udp[0].sendto(bytes(SENT_UDP), self._udp[1].getsockname())
        self._udp[1].recv(2 * SENT_UDP)

    def send_file(self, moved: list[int]) -> None:
        """Send a file of `SENT_FILE` bytes as `copy` does."""
        sent = 0
        while left := SENT_FILE - sent:
            source = self._file.fileno()
            moved.append(os.sendfile(self._four[0].fileno(), source, sent, left))
            sent += moved[-1]
        self._take(self._four[1], SENT_FILE)

    @staticmethod
    def _take(taker: socket.socket, size: int) -> None:
        while size:
            size -= len(taker.recv(size))


@contextmanager
def timed(times: list[float]) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    times.append(time.perf_counter() - begin)


@dataclass
class Naps:
    """Sleep of one thread.

    Attributes:
        least_s: what it slept at least. A thread may lose its CPU on the way into its sleep, where
            CPUs are busy or emulated, until the timer goes off. Such a nap is not counted here.
        times: how long each nap took.
    """

    least_s: float = 0.0
    times: list[float] = field(default_factory=list)

    def take(self) -> None:
        """Sleep once."""
        slept, waited_ns, cpu_s = sleeps(), waits_ns(), time.thread_time()
        with timed(self.times):
            time.sleep(NAP_S)
        cpu_s = time.thread_time() - cpu_s  # the timer runs before the thread leaves its CPU
        if sleeps() > slept and waits_ns() - waited_ns < LITTLE_NS:
            self.least_s += max(0.0, NAP_S - LITTLE_NS / 1e9 - cpu_s)


def waits_ns() -> int:
    """How long this thread has been ready to run without a CPU, as the kernel counts it itself."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1])


def sleeps() -> int:
    """How often this thread has left the CPU to wait for something."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def observed(place: Path, run: Path, probes: Any = "auto") -> Truth:
    """Do the run; what is true of it."""
    data, saved = place / "data", place / "saved"
    for folder in (data, saved):
        folder.mkdir()
    files = [write(data / f"{number}", SIZE) for number in range(FILES)]
    mapped, direct = write(data / "mapped", SIZE), write(data / "direct", DIRECT)
    sent = write(data / "sent", SENT_FILE)
    sockets = Sockets(sent)
    forward, others = Naps(), Naps()
    stalls = 0
    whole: list[float] = []
    moved: list[int] = []
    computed: list[float] = []
    with timed(whole), observe(run_dir=run, data_roots=[data], probes=probes) as obs:
        for step in range(STEPS):
            with obs.step():
                stalls += sum(map(read, files[2 * (step % COLD_STEPS) :][:2]))
                sockets.talk()
                if step == 5:
                    fault_in(mapped)
                if step == 6:
                    read_directly(direct)
                if step == 7:
                    sockets.send_file(moved)
                if step == 9:
                    thread = threading.Thread(target=compute, args=(computed,))
                    thread.start()
                    thread.join()
                if step in (3, 8):
                    with obs.phase("checkpoint"):
                        for number in range(SAVES // 2):
                            save(saved / f"{step}-{number}")
                if step == 8:
                    with obs.phase("checkpoint"):
                        copy(sent, saved / "copy", moved)
                if step < FORWARD_NAPS:
                    with obs.phase("forward"):
                        forward.take()
                others.take()
    return known(forward, others, stalls, sum(whole), sum(computed), moved)


def known(
    forward: Naps, others: Naps, stalls: int, whole_s: float, cpu_s: float, moved: list[int]
) -> Truth:
    """What a run of `observed` must say.

    Args:
        forward: in the phase of that name.
        others: in no phase.
        stalls: how often a read slept; an emulated disk may answer before a task waits for it.
        whole_s: the run.
        cpu_s: CPU time of another thread than its own.
        moved: bytes of each call that sent or copied a file of data.
    """
    again = 2 * (STEPS - COLD_STEPS)
    reads, cold_pages = FILES + again, FILES * PAGES
    moved_pages = sum(-(-size // PAGE) for size in moved)
    saved_blocks = SAVES * -(-SAVED // BLOCK) + -(-SENT_FILE // BLOCK)
    slept_s = sum(forward.times + others.times)
    talked = STEPS * (SENT_4 + SENT_6 + SENT_UDP) + SENT_FILE
    return Truth(
        exact={
            "io/data_read_bytes": reads * SIZE + DIRECT + sum(moved),
            "io/data_read_count": reads * CALLS + 1 + len(moved),
            "io/data_open_count": reads + 3,  # the mapped, the direct and the copied one too
            "io/data_direct_read_bytes": DIRECT,
            "io/data_mmap_bytes": SIZE,
            "io/data_fault_count": PAGES,
            "io/checkpoint_write_bytes": SAVES * SAVED + SENT_FILE,
            "io/fsync_count": SAVES + 1,
            "cache/miss_bytes": cold_pages * PAGE,
            "cache/hit_ratio": (again * PAGES + moved_pages) / (reads * PAGES + moved_pages),
            "cache/fault_fill_bytes": PAGES * PAGE,
            "block/data_read_bytes": (FILES + 1) * -(-SIZE // BLOCK) * BLOCK + DIRECT,
            "block/checkpoint_write_bytes": saved_blocks * BLOCK,
            "net/sent_bytes": talked,
            "net/received_bytes": talked,
        },
        between={
            # A nap ends late, and not all of what is late is sleep.
            "sched/main_offcpu_ns": ((forward.least_s + others.least_s) * 1e9, whole_s * 1e9),
            "sched/forward_sleep_ns": (forward.least_s * 1e9, whole_s * 1e9),
            "sched/other_sleep_ns": (others.least_s * 1e9, whole_s * 1e9),
            "sched/thread_cpu_ns": (cpu_s * 1e9, whole_s * 1e9),
            "sched/main_iowait_ns": (bool(stalls), (whole_s - slept_s) * 1e9),
            "sched/main_runqueue_ns": (0, whole_s * 1e9),
            "io/data_read_ns": (1, (whole_s - slept_s) * 1e9),
            "block/read_ns": (1, whole_s * 1e9 * FILES),
            "cache/read_stall_ratio": (1e-6 * bool(stalls), 1),
            "cache/demand_hit_ratio": (
                1 - 2 * FILES / (reads * CALLS),
                1 - FILES / (reads * CALLS),
            ),
        },
    )


def main() -> int:
    """Run as a command."""
    place = Path(sys.argv[1])
    place.mkdir(exist_ok=True)
    run = place / "run"
    truth = observed(place, run, sys.argv[2:] or "auto")
    if not os.major(place.stat().st_dev):  # of a server
        for name in truth.exact.keys() | truth.between.keys():
            if name.startswith("block/"):
                truth.between.pop(name, None)
                truth.exact[name] = 0
    report = report_of(run)
    found = judge(report, truth)
    about = {name: report.get(name) for name in ("level", "lost", "steps", "capabilities")}
    print(json.dumps({"check": "steps", "uid": os.getuid(), **about, **found}))
    return bool(found["lies"])


if __name__ == "__main__":
    sys.exit(main())
