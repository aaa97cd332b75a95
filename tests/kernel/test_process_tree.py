"""Who is followed, and as what: the process, its threads, its descendants, and nobody else."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.ground_truth import PRIMES, calls_of, read_whole, write_file, write_files
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import (
    WORKER_NAME,
    Outsider,
    fork,
    in_child,
    in_thread,
    in_worker,
    join,
    run_job,
)
from tests.kernel.runlog import RunTables
from trainobs.core.abi import FileClass, Op, Role

pytestmark = pytest.mark.needs_bpf

DATA = FileClass.DATA
MAIN, THREAD, WORKER, CHILD = Role.MAIN, Role.THREAD, Role.WORKER, Role.CHILD
SIZE = 10_007

During = Callable[[Callable[[], object]], Counts]


class Waiting:
    """Somebody who reads a file when told to, and ends."""

    def __init__(self, path: Path) -> None:
        self._told, self._tell = os.pipe()
        self.path = path

    def wait_and_read(self) -> None:
        os.read(self._told, 1)
        read_whole(self.path)

    def tell(self) -> None:
        os.write(self._tell, b"x")

    def close(self) -> None:
        os.close(self._told)
        os.close(self._tell)


@pytest.fixture
def data(place: Path) -> Path:
    return write_file(place / "data", SIZE)


@pytest.fixture
def waiting(data: Path) -> Iterator[Waiting]:
    found = Waiting(data)
    yield found
    found.close()


@pytest.fixture
def counts(observed: ObservedKernel, data: Path) -> During:
    observed.data(data)
    return observed.during


def only(got: Counts, role: Role, times: int = 1) -> bool:
    """Whether the file was read so many times in a role, and never in another."""
    truth = times * SIZE
    return got.bytes(Op.READ, DATA, role) == got.bytes(Op.READ, DATA) == truth


def test_the_registering_thread_is_main_and_a_later_one_a_thread(
    counts: During, data: Path
) -> None:
    assert only(counts(lambda: read_whole(data)), MAIN)
    assert only(counts(lambda: in_thread(lambda: read_whole(data))), THREAD)


def test_a_thread_that_was_there_before_is_a_thread(waiting: Waiting) -> None:
    thread = threading.Thread(target=waiting.wait_and_read)
    thread.start()
    observed = ObservedKernel()
    try:
        observed.data(waiting.path)

        def run() -> None:
            waiting.tell()
            thread.join()

        assert only(observed.during(run), THREAD)
    finally:
        observed.stop()


@pytest.mark.parametrize(
    ("name", "depth", "role"), [(None, 1, CHILD), (WORKER_NAME, 1, WORKER), (None, 40, CHILD)]
)
def test_a_descendant_that_was_there_before_is_known_by_its_name(
    waiting: Waiting, name: str | None, depth: int, role: Role
) -> None:
    ready, tell_ready = os.pipe()

    def work() -> None:
        os.write(tell_ready, b"x")
        waiting.wait_and_read()

    def nest(depth: int) -> int:
        return fork(work if depth == 1 else lambda: join(nest(depth - 1)), name)

    child = nest(depth)
    os.read(ready, 1)
    observed = ObservedKernel()
    try:
        observed.data(waiting.path)

        def run() -> None:
            waiting.tell()
            join(child)

        assert only(observed.during(run), role)
    finally:
        observed.stop()
        os.close(ready)
        os.close(tell_ready)


def test_children_are_workers_by_their_name(counts: During, data: Path) -> None:
    assert only(counts(lambda: in_child(lambda: read_whole(data))), CHILD)
    assert only(counts(lambda: in_worker(lambda: read_whole(data))), WORKER)
    assert only(counts(lambda: in_child(lambda: read_whole(data), "pt_data_pin")), CHILD)
    assert only(counts(lambda: in_child(lambda: read_whole(data), "pt_data_workers")), CHILD)


def test_a_thread_does_not_become_a_worker_by_its_name(counts: During, data: Path) -> None:
    def work() -> None:
        Path("/proc/thread-self/comm").write_text(WORKER_NAME)
        read_whole(data)

    assert only(counts(lambda: in_thread(work)), THREAD)


def test_a_thread_that_a_worker_had_before_its_name_is_a_worker_too(
    counts: During, waiting: Waiting
) -> None:
    """As a data set starts one where it is unpickled, in a worker that is spawned."""

    def work() -> None:
        def name_and_tell() -> None:
            Path("/proc/self/comm").write_text(WORKER_NAME)
            waiting.tell()

        in_thread(waiting.wait_and_read, meanwhile=name_and_tell)

    assert only(counts(lambda: in_child(work)), WORKER)


def test_what_a_worker_starts_is_a_worker_too(counts: During, data: Path) -> None:
    read = lambda: read_whole(data)  # noqa: E731
    assert only(counts(lambda: in_worker(lambda: in_thread(read))), WORKER)
    assert only(counts(lambda: in_worker(lambda: in_child(read))), WORKER)
    assert only(counts(lambda: in_child(lambda: in_child(read))), CHILD)
    assert only(counts(lambda: in_child(lambda: in_worker(read))), WORKER)


def test_an_orphan_is_still_followed(counts: During, waiting: Waiting) -> None:
    """Its parent is gone, so only the kernel's own record tells whose it is."""
    over, tell_over = os.pipe()

    def work() -> None:
        waiting.wait_and_read()
        os.write(tell_over, b"x")

    def run() -> None:
        in_child(lambda: fork(work))
        waiting.tell()
        os.read(over, 1)

    got = counts(run)
    os.close(over)
    os.close(tell_over)
    assert only(got, CHILD)


def test_another_program_that_a_child_runs_is_followed(counts: During, data: Path) -> None:
    command = ["sha256sum", str(data)]
    assert only(counts(lambda: subprocess.run(command, stdout=subprocess.DEVNULL)), CHILD)


def test_a_worker_that_is_killed_disturbs_no_other(observed: ObservedKernel, place: Path) -> None:
    files = write_files(place)
    observed.data(place)

    def run() -> None:
        victim = fork(signal.pause, WORKER_NAME)
        others = [fork(lambda: [read_whole(f) for f in files], WORKER_NAME) for _ in range(2)]
        os.kill(victim, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(victim, 0)[1]) == -signal.SIGKILL
        for other in others:
            join(other)

    for _ in range(5):
        got = observed.during(run)
        assert got.bytes(Op.READ, DATA, WORKER) == 2 * sum(PRIMES)
        assert got.count(Op.READ, DATA, WORKER) == 2 * calls_of(PRIMES)
        assert got.roles(Op.READ, DATA) == {WORKER}


def test_nobody_else_is_followed(counts: During, outsider: Outsider, data: Path) -> None:
    got = counts(lambda: outsider.do(read_whole, data))
    assert got.bytes(Op.READ, DATA) == got.count(Op.OPEN, DATA) == 0


def test_a_thread_that_leaves_is_not_followed_and_the_others_are(
    observed: ObservedKernel, counts: During, data: Path
) -> None:
    def leave_and_read() -> None:
        read_whole(data)
        observed.kernel.leave()
        read_whole(data)

    assert only(counts(lambda: in_thread(leave_and_read)), THREAD)
    assert only(counts(lambda: in_thread(lambda: read_whole(data))), THREAD)
    assert only(counts(lambda: read_whole(data)), MAIN)


def test_two_observers_of_one_process_count_the_same(counts: During, data: Path) -> None:
    other = ObservedKernel()
    try:
        other.data(data)
        seen: list[Counts] = []
        assert only(counts(lambda: seen.append(other.during(lambda: read_whole(data)))), MAIN)
        assert only(seen[0], MAIN)
    finally:
        other.stop()


def test_workers_in_a_process_name_space_of_their_own_are_counted(place: Path) -> None:
    write_files(place / "data")
    set_ups = [{"method": "fork", "roots": True}]
    output = run_job(
        "loaders",
        before=["unshare", "--pid", "--fork", "--mount-proc"],
        data=str(place / "data"),
        runs=str(place / "runs"),
        set_ups=set_ups,
    )
    assert "process 1" in output
    run = RunTables(place / "runs" / "0")
    assert run.by_epoch("bytes", "read", "data", "worker") == dict.fromkeys((0, 1), sum(PRIMES))
    assert run.by_epoch("count", "read", "data") == dict.fromkeys((0, 1), calls_of(PRIMES))
