"""Memory of loader workers, against what they take and fault in."""

from __future__ import annotations

import math
import mmap
import os
import time
from collections.abc import Iterator
from multiprocessing import forkserver, get_context, resource_tracker
from pathlib import Path
from typing import Any

import pytest

from trainobs.host.memory import WorkerMemory, own_faults

MIB = 1 << 20
PAGES = 64


def be_a_worker(pipe: Any, name: bytes) -> None:
    """Does what it is told: takes memory, or touches a page of a mapped file after the other."""
    Path("/proc/self/comm").write_bytes(name)
    held = []
    pipe.send("here")
    while (order := pipe.recv()) != "end":
        if isinstance(order, int):
            held.append(fresh_memory(order))
            pipe.send(None)
        else:
            pipe.send(touch(order))
    pipe.send(None)


def fresh_memory(size: int) -> mmap.mmap:
    """Pages of its own: a forked heap may hold as many that are free."""
    region = mmap.mmap(-1, size)
    for at in range(0, size, mmap.PAGESIZE):
        region[at] = 1
    return region


def touch(path: str) -> None:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        mapped.madvise(mmap.MADV_RANDOM)
        for at in range(0, len(mapped), mmap.PAGESIZE):
            mapped[at]


class Worker:
    def __init__(self, method: str = "fork", name: bytes = b"pt_data_worker") -> None:
        context = get_context(method)
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=be_a_worker, args=(theirs, name))
        self.process.start()
        self.pipe.recv()

    def do(self, order: int | str) -> None:
        self.pipe.send(order)
        self.pipe.recv()

    def end(self) -> None:
        if self.process.is_alive():
            self.do("end")
        self.process.join()


@pytest.fixture
def workers() -> Iterator[list[Worker]]:
    made: list[Worker] = []
    yield made
    for worker in made:
        worker.end()
    # What multiprocessing keeps until the interpreter exits are children of this process as well.
    forkserver._forkserver._stop()
    resource_tracker._resource_tracker._stop()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_a_worker_takes_is_seen(workers, method):
    memory = WorkerMemory()
    assert math.isnan(memory.read()[0])
    workers += [Worker(method), Worker(method)]
    before = memory.read()[0]
    workers[0].do(50 * MIB)
    workers[1].do(30 * MIB)
    assert memory.read()[0] - before == pytest.approx(80 * MIB, rel=0.02)
    resident = sum(statm(worker.process.pid) for worker in workers)
    assert memory.read()[0] == pytest.approx(resident, rel=0.02)


def statm(tgid: int) -> int:
    return int(Path(f"/proc/{tgid}/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_other_children_and_the_workers_of_other_ranks_are_not_counted(workers):
    memory = WorkerMemory()
    workers.append(Worker(name=b"helper"))
    assert math.isnan(memory.read()[0])
    tgid = os.fork()  # another rank, with a worker of its own
    if tgid == 0:
        Worker()
        time.sleep(600)
    try:
        deadline = time.monotonic() + 60
        while not any(map(is_worker, grandchildren(tgid))) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert any(map(is_worker, grandchildren(tgid)))
        assert math.isnan(memory.read()[0])
    finally:
        for child in [*grandchildren(tgid), tgid]:
            os.kill(child, 9)
        os.waitpid(tgid, 0)


def grandchildren(tgid: int) -> list[int]:
    return [int(t) for t in Path(f"/proc/{tgid}/task/{tgid}/children").read_text().split()]


def is_worker(tgid: int) -> bool:
    return Path(f"/proc/{tgid}/comm").read_bytes() == b"pt_data_worker\n"


def test_major_faults_of_workers_and_of_this_process_are_counted_apart(
    workers, drop_caches, tmp_path
):
    path = tmp_path / "mapped"
    path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE))
    if os.statvfs(tmp_path).f_fsid == os.statvfs("/dev/shm").f_fsid:
        pytest.fail("the temporary directory is in memory: set TMPDIR", pytrace=False)
    memory = WorkerMemory()
    workers.append(Worker())
    before = memory.read()[1], own_faults()
    drop_caches()
    workers[0].do(str(path))
    between = memory.read()[1], own_faults()
    assert between[0] - before[0] >= PAGES
    assert between[1] - before[1] < PAGES // 2
    drop_caches()
    touch(str(path))
    after = memory.read()[1], own_faults()
    assert after[1] - between[1] >= PAGES
    assert after[0] - between[0] < PAGES // 2


def test_faults_of_a_worker_that_ended_stay(workers, drop_caches, tmp_path):
    path = tmp_path / "mapped"
    path.write_bytes(os.urandom(PAGES * mmap.PAGESIZE))
    memory = WorkerMemory()
    workers.append(Worker())
    drop_caches()
    workers[0].do(str(path))
    seen = memory.read()[1]
    workers[0].end()
    assert memory.read()[1] == seen >= PAGES
