"""Another user, without any capability, gets counts as exact as root's, and only its own."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.kernel.ground_truth import PRIMES, calls_of, read_whole, write_file, write_files
from tests.kernel.processes import fork, in_child, in_thread, in_worker, join, start_job
from tests.service.service import MAIN, SOMEBODY, Observed, Service, Turns, as_user, data_of
from tests.session.jobs import wait_for
from trainobs.core.abi import FileClass, Op, Role
from trainobs.probes.block_requests import OVERDUE_NS
from trainobs.probes.service_backend import ServiceBackend

pytestmark = pytest.mark.needs_bpf

DATA = FileClass.DATA

LEAVES_OUT = f"""
from itertools import count
from trainobs.probes.shared import SharedProbes
runs = count(7)
SharedProbes.missed_runs = lambda self: next(runs)
{MAIN}
"""
"""A service of programs of which one run more was left out each time that it looks."""

IS_TOLD_NO_END = f"""
from trainobs.probes.shared import SharedProbes
start = SharedProbes._start
def without_ends(self, *arguments):
    start(self, *arguments)
    self._loader.detach("tobs_blk_done")
SharedProbes._start = without_ends
{MAIN}
"""
"""A service that sees block requests begin, and none end."""


def test_reads_of_a_user_without_capabilities_are_counted_exactly(
    service: Service, open_place: Path
) -> None:
    files = write_files(open_place / "data")

    def work() -> None:
        assert os.geteuid()
        assert "CapEff:\t0000000000000000" in Path("/proc/self/status").read_text()
        observed = Observed(service.path)
        assert set(observed.kernel.status.values()) == {"on"}
        got = data_of(observed, open_place, lambda: [read_whole(path) for path in files])
        assert got.bytes(Op.READ, DATA, Role.MAIN) == got.bytes(Op.READ, DATA) == sum(PRIMES)
        assert got.count(Op.READ, DATA) == calls_of(PRIMES)
        assert got.count(Op.OPEN, DATA) == len(PRIMES) == 23
        assert got.bytes(Op.BLOCK_READ, DATA, Role.MAIN) > 0
        assert got.ns(Op.OFFCPU, role=Role.MAIN) > 0
        again = observed.during(lambda: None)
        assert again.count(Op.READ, DATA) == 0
        observed.stop()

    join(as_user(work))


def test_requests_that_never_ended_are_lost_as_the_session_ends(open_place: Path) -> None:
    files = write_files(open_place / "data")
    service = Service(open_place / "probed", code=IS_TOLD_NO_END)

    def work() -> None:
        observed = Observed(service.path)
        got = data_of(observed, open_place, lambda: [read_whole(path) for path in files])
        assert got.bytes(Op.READ, DATA) == sum(PRIMES)
        assert not got.bytes(Op.BLOCK_READ, DATA)
        time.sleep(2 * OVERDUE_NS / 1e9)
        observed.kernel.stop()
        assert observed.kernel.losses()["requests"] > 0
        observed.stop()

    try:
        join(as_user(work))
    finally:
        service.stop()


def test_threads_workers_and_children_have_their_roles(service: Service, open_place: Path) -> None:
    path = write_file(open_place / "data", 4096)

    def work() -> None:
        observed = Observed(service.path)

        def read() -> None:
            read_whole(path)

        def all_of_them() -> None:
            read()
            in_thread(read)
            in_worker(read)
            in_child(read)

        got = data_of(observed, open_place, all_of_them)
        for role in (Role.MAIN, Role.THREAD, Role.WORKER, Role.CHILD):
            assert got.bytes(Op.READ, DATA, role) == 4096, role
        got = observed.during(lambda: in_thread(lambda: (observed.kernel.leave(), read())))
        assert got.bytes(Op.READ, DATA) == 0
        observed.stop()

    join(as_user(work))


def test_two_users_at_once_see_their_own_counts_and_roots_alone(
    service: Service, open_place: Path
) -> None:
    path = write_file(open_place / "data" / "file", 4096)
    ready, go = Turns(), Turns()

    def with_a_root() -> None:
        observed = Observed(service.path)
        got = data_of(
            observed,
            path.parent,
            lambda: (ready.pass_on(), go.wait(), read_whole(path)),
        )
        assert got.bytes(Op.READ, DATA) == 4096
        observed.stop()

    def without() -> None:
        observed = Observed(service.path)
        ready.wait()
        got = observed.during(lambda: [read_whole(path) for _ in range(5)])
        assert got.bytes(Op.READ, FileClass.OTHER, Role.MAIN) >= 5 * 4096
        assert got.count(Op.READ, DATA) == got.count(Op.OPEN, DATA) == 0
        go.pass_on()
        observed.stop()

    children = [as_user(with_a_root), as_user(without, uid=SOMEBODY)]
    for child in children:
        join(child)
    ready.close()
    go.close()


def test_what_another_users_sync_writes_is_counted_where_the_file_is_known(
    service: Service, open_place: Path
) -> None:
    folder = open_place / "checkpoints"
    folder.mkdir()
    folder.chmod(0o777)
    with Turns() as written, Turns() as synced:

        def owner() -> None:
            observed = Observed(service.path)
            observed.kernel.add_root(folder, FileClass.CHECKPOINT)
            write = lambda: (folder / "model").write_bytes(os.urandom(1 << 20))  # noqa: E731
            assert observed.during(write).bytes(Op.WRITE, FileClass.CHECKPOINT) == 1 << 20
            got = observed.during(lambda: (written.pass_on(), synced.wait()))
            kernel = got.bytes(Op.BLOCK_WRITE, FileClass.CHECKPOINT, Role.KERNEL)
            assert kernel == got.bytes(Op.BLOCK_WRITE, FileClass.CHECKPOINT) == 1 << 20
            observed.stop()

        def other() -> None:
            observed = Observed(service.path)
            written.wait()
            got = observed.during(lambda: subprocess.run(["sync", "-f", folder], check=True))
            assert got.bytes(Op.BLOCK_WRITE, FileClass.CHECKPOINT) == 0
            # The flusher submits the file; `sync` itself what the file system keeps about it.
            assert got.bytes(Op.BLOCK_WRITE, FileClass.OTHER, Role.CHILD) > 0
            synced.pass_on()
            observed.stop()

        for child in (as_user(owner), as_user(other, uid=SOMEBODY)):
            join(child)


def test_a_child_that_registers_itself_is_counted_by_its_own_session_alone(
    service: Service, open_place: Path
) -> None:
    """Rank 1, which Lightning starts as a child of rank 0; each order in which they may begin."""
    path = write_file(open_place / "data", 4096)
    ready, go = Turns(), Turns()

    def rank_1() -> None:
        observed = Observed(service.path)
        ready.pass_on()
        go.wait()
        in_worker(lambda: read_whole(path))
        got = data_of(
            observed, open_place, lambda: (read_whole(path), in_worker(lambda: read_whole(path)))
        )
        assert got.bytes(Op.READ, DATA, Role.MAIN) == 4096
        assert got.bytes(Op.READ, DATA, Role.WORKER) == 4096
        observed.stop()

    def rank_0(register_first: bool) -> None:
        observed = Observed(service.path) if register_first else None
        child = fork(rank_1)
        ready.wait()
        observed = observed or Observed(service.path)

        def wait() -> None:
            go.pass_on()
            join(child)

        got = data_of(observed, open_place, wait)
        assert got.bytes(Op.READ, DATA) == 0
        assert data_of(observed, open_place, lambda: read_whole(path)).bytes(Op.READ, DATA) == 4096
        observed.stop()

    for register_first in (True, False):
        join(as_user(lambda first=register_first: rank_0(first)))
    ready.close()
    go.close()


def test_what_was_data_to_the_session_of_an_ancestor_is_none_to_its_own(
    service: Service, open_place: Path
) -> None:
    """To a thread that goes on reading the same file."""
    path = write_file(open_place / "data" / "file", 4096)
    (open_place / "other").mkdir()

    def rank_1() -> None:
        turn, read = threading.Event(), threading.Event()

        def read_twice() -> None:
            fd = os.open(path, os.O_RDONLY)
            assert len(os.pread(fd, 4096, 0)) == 4096
            read.set()
            turn.wait()
            assert len(os.pread(fd, 4096, 0)) == 4096

        thread = threading.Thread(target=read_twice)
        thread.start()
        read.wait()
        observed = Observed(service.path)
        got = data_of(observed, open_place / "other", lambda: (turn.set(), thread.join()))
        assert got.bytes(Op.READ, DATA) == 0
        assert got.bytes(Op.READ, FileClass.OTHER, Role.THREAD) == 4096
        observed.stop()

    def rank_0() -> None:
        observed = Observed(service.path)
        got = data_of(observed, path.parent, lambda: in_child(rank_1))
        assert got.bytes(Op.READ, DATA, Role.CHILD) == 4096
        observed.stop()

    join(as_user(rank_0))


def test_a_process_in_a_name_space_of_its_own_is_served(service: Service, open_place: Path) -> None:
    write_files(open_place / "data")
    job = start_job(
        "served",
        before=["unshare", "--pid", "--fork", "--mount-proc"],
        socket=str(service.path),
        data=str(open_place / "data"),
    )
    output, _ = job.communicate()
    assert job.returncode == 0, output
    assert f"process 1 read {sum(PRIMES)}" in output


def test_after_the_session_of_a_killed_process_its_children_count_for_nobody(
    service: Service, open_place: Path
) -> None:
    path = write_file(open_place / "data", 4096)
    told, over, ready = Turns(), Turns(), Turns()

    def orphan() -> None:
        told.wait()
        read_whole(path)
        over.pass_on()

    def killed() -> None:
        observed = Observed(service.path)
        fork(orphan)
        ready.pass_on()
        signal.pause()
        observed.stop()

    victim = as_user(killed)
    ready.wait()
    assert service.sessions() == 1
    os.kill(victim, signal.SIGKILL)
    os.waitpid(victim, 0)
    service.is_free_again()

    def next_one() -> None:
        observed = Observed(service.path)
        got = data_of(observed, open_place, lambda: (told.pass_on(), over.wait()))
        assert got.count(Op.READ, DATA) == 0
        assert observed.during(lambda: read_whole(path)).bytes(Op.READ, DATA) == 4096
        observed.stop()

    join(as_user(next_one))
    for turns in (told, over, ready):
        turns.close()


def test_runs_that_the_kernel_left_out_are_told_to_whom_the_service_serves(
    open_place: Path,
) -> None:
    service = Service(open_place / "probed.sock", code=LEAVES_OUT)
    try:
        backend = ServiceBackend(service.path)
        assert backend.losses()["runs"] == 0
        wait_for(lambda: backend.losses()["runs"] == 1)  # it asks once a second
        backend.stop()
        assert backend.losses()["runs"] == 2
    finally:
        service.stop()
