"""Nobody registers or reads what is another's."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import shutil
import signal
import struct
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.kernel.ground_truth import read_whole, write_file
from tests.kernel.observed import map_update
from tests.kernel.own import Marked, source
from tests.kernel.privileges import NOBODY, become_nobody
from tests.kernel.processes import fork, join
from tests.kernel_state import bpf
from tests.service.service import (
    SOMEBODY,
    Observed,
    Raw,
    Service,
    Turns,
    as_user,
    data_of,
    refusal_of,
    serves,
)
from trainobs.core.abi import SUMS, FileClass, Op, Role
from trainobs.core.errors import ProbeCause, ProbeError, TrainobsError
from trainobs.probes import protocol
from trainobs.probes.choice import open_backend
from trainobs.probes.local_backend import LocalBackend
from trainobs.probes.own_probe import Probe
from trainobs.probes.service_backend import ServiceBackend
from trainobs.service.server import bind

pytestmark = pytest.mark.needs_bpf

DATA = FileClass.DATA
MAP_OPEN_BY_ID = 14  # BPF_MAP_GET_FD_BY_ID


def test_a_directory_that_others_may_write_to_is_no_place_for_the_socket(tmp_path: Path) -> None:
    """Somebody could put a link in the place of the socket, as it is given to its group."""
    mine, others = tmp_path / "mine", tmp_path / "others"
    for folder in (mine, others):
        folder.mkdir()
    os.chown(others, NOBODY, -1)
    with pytest.raises(TrainobsError) as caught:
        bind(others / "socket", SOMEBODY)
    assert f"user {NOBODY}" in caught.value.found
    mine.chmod(0o777)
    with pytest.raises(TrainobsError, match="mode 777"):
        bind(mine / "socket", SOMEBODY)
    mine.chmod(0o1777)  # where nobody can remove what is another's
    bind(mine / "socket", SOMEBODY).close()
    assert (mine / "socket").stat().st_gid == SOMEBODY


def test_what_is_no_map_of_the_kernel_is_not_mapped(tmp_path: Path) -> None:
    """Whoever has taken the place of the service could cut it short under a training that reads."""
    path, memory = tmp_path / "socket", os.memfd_create("map")
    os.ftruncate(memory, SUMS.itemsize + 4096)
    answer = {"ok": True, "status": {}, "runs": 0}
    with protocol.new_socket() as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            protocol.receive(connection, protocol.QUESTION_BYTES, 0)
            protocol.send(connection, answer, [memory, memory])
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ProbeError, match="none of the kernel's"):
            ServiceBackend(path)
        thread.join()
    os.close(memory)


def test_a_session_that_ends_while_another_thread_asks_has_lost_no_service(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    backend = ServiceBackend(service.path)
    before = backend.losses()
    backend._counted_ns = 0  # so that it asks again
    with backend._lock:
        thread = threading.Thread(target=backend.losses)
        thread.start()
        while backend._counted_ns == 0:
            time.sleep(0.001)
        time.sleep(0.05)  # now it waits for the lock
        backend._hang_up()
    thread.join()
    assert (backend.gone_since_ns(), backend.losses()) == (None, before)
    assert caplog.records == []


def test_a_user_outside_the_group_may_not_even_connect(service: Service) -> None:
    assert service.path.stat().st_mode & 0o777 == 0o660

    def work() -> None:
        with pytest.raises(ProbeError) as caught:
            ServiceBackend(service.path)
        assert caught.value.cause is ProbeCause.NO_SERVICE
        assert "Permission denied" in caught.value.found
        assert "nogroup" in caught.value.do

    join(as_user(work, gid=SOMEBODY))


def test_programs_of_a_user_s_are_nothing_for_the_service(
    service: Service,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(protocol.VARIABLE, str(service.path))
    probe = Probe(source(tmp_path))

    def work() -> None:
        backend = open_backend(own=[probe])
        assert isinstance(backend, ServiceBackend)
        assert backend.own.status["own.c"].startswith("cannot use own.c: this process may load no")
        assert backend.own_tables() is None
        lines = caplog.text.splitlines()[-3:]
        assert lines[0].endswith("cannot use own.c; it counts nothing, and the training goes on")
        assert "trainobs-probed loads none but its own" in lines[1]
        assert "CAP_BPF and CAP_PERFMON" in lines[2]
        backend.stop()

    join(as_user(work))


def test_who_may_load_programs_does_not_go_to_the_service_with_them(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(protocol.VARIABLE, str(service.path))
    backend = open_backend((), own=[Probe(source(tmp_path), attach=Marked(tmp_path).attach)])
    try:
        assert isinstance(backend, LocalBackend)
        assert backend.own.status == {"own.c": "on"}
        assert service.sessions() == 0
    finally:
        backend.stop()


def test_a_thread_of_another_process_is_not_registered(service: Service) -> None:
    def work() -> None:
        for tid in (os.getppid(), 1, service.process.pid):
            raw = Raw(service.path)
            assert "no thread" in refusal_of(raw.ask("register", tid=tid))
            raw.close()

    join(as_user(work))
    service.is_free_again()


def test_a_process_with_two_users_is_not_registered(service: Service) -> None:
    """A program with the rights of another user, such as a set-user-id one."""

    def work() -> None:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(0, NOBODY, 0)
        with pytest.raises(ProbeError, match="real, effective, saved") as caught:
            ServiceBackend(service.path)
        assert caught.value.cause is ProbeCause.NO_SERVICE

    join(fork(work))
    service.is_free_again()


def test_children_of_another_user_are_not_followed(service: Service) -> None:
    path = write_file(service.path.parent / "file", 4096)
    with Turns() as told, Turns() as over:

        def work() -> None:
            def roots() -> None:
                told.wait()
                read_whole(path)
                over.pass_on()

            fork(roots)
            become_nobody()
            observed = Observed(service.path)
            got = data_of(
                observed, path.parent, lambda: (told.pass_on(), over.wait(), read_whole(path))
            )
            assert got.bytes(Op.READ, DATA, Role.MAIN) == got.bytes(Op.READ, DATA) == 4096
            observed.stop()

        join(fork(work))


@pytest.mark.parametrize(("mode", "counted"), [(0o4755, False), (0o755, True)])
def test_a_program_with_rights_of_its_own_is_not_followed(
    service: Service, mode: int, counted: bool
) -> None:
    place = service.path.parent
    path = write_file(place / "file", 4096)
    program = Path(shutil.copy(shutil.which("sha256sum") or "", place))
    program.chmod(mode)

    def work() -> None:
        observed = Observed(service.path)

        def run() -> None:
            join(os.posix_spawn(program, [str(program), str(path)], {}))

        assert data_of(observed, path, run).bytes(Op.READ, DATA) == (4096 if counted else 0)
        observed.stop()

    join(as_user(work))


def test_a_dead_process_is_not_registered_though_its_child_has_the_socket(
    service: Service,
) -> None:
    with Turns() as dead, Turns() as over:

        def work() -> None:
            raw = Raw(service.path)

            def heir() -> None:
                dead.wait()
                with suppress(AssertionError):  # it hung up, or says why
                    assert "register" not in refusal_of(raw.ask("register", tid=os.getpid()))
                over.pass_on()

            fork(heir)

        child = as_user(work)
        join(child)
        dead.pass_on()
        over.wait()
    assert not service.said(f"follow process {child} ")
    service.is_free_again()


def test_a_session_ends_with_its_process_though_a_child_has_the_socket(service: Service) -> None:
    with Turns() as ready, Turns() as over:

        def work() -> None:
            raw = Raw(service.path)
            assert raw.ask("register", tid=os.getpid(), count=2)
            fork(over.wait)
            ready.pass_on()
            signal.pause()

        child = as_user(work)
        ready.wait()
        assert service.sessions() == 1
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        service.is_free_again()
        over.pass_on()


def test_a_process_that_dies_as_it_registers_leaves_no_session(service: Service) -> None:
    def work() -> None:
        raw = Raw(service.path)
        question = {"version": protocol.VERSION, "layout": protocol.LAYOUT, "ask": "register"}
        raw.say(json.dumps({**question, "tid": os.getpid()}).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(8):
        os.waitpid(as_user(work), 0)
    service.is_free_again()
    serves(service)


def test_descriptors_of_a_session_open_its_own_rows_to_be_read_alone(service: Service) -> None:
    def work() -> None:
        raw = Raw(service.path)
        answer = raw.ask("register", tid=os.getpid(), count=2)
        assert answer
        clock, sums = answer[1]
        pages = -(-SUMS.itemsize // mmap.PAGESIZE) * mmap.PAGESIZE
        with pytest.raises(PermissionError):
            mmap.mmap(sums, pages, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        readable = mmap.mmap(sums, pages, mmap.MAP_SHARED, mmap.PROT_READ)
        assert make_writable(readable) < 0
        with pytest.raises(PermissionError):
            map_update(sums, bytes(SUMS.itemsize))
        assert map_update(clock, bytes(64)) >= 0
        mmap.mmap(clock, mmap.PAGESIZE, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        for number in range(1, 1 << 12):  # no map is to be had by its number
            with pytest.raises(PermissionError):
                bpf(MAP_OPEN_BY_ID, struct_of(number))

    join(as_user(work))


def test_a_process_that_the_service_cannot_see_is_told_why(open_place: Path) -> None:
    service = Service(
        open_place / "probed.sock", before=["unshare", "--pid", "--fork", "--kill-child"]
    )
    try:
        with pytest.raises(ProbeError) as caught:
            ServiceBackend(service.path)
        assert "process name space" in caught.value.found
        assert "hostPID" in caught.value.do
    finally:
        service.stop(signal.SIGKILL)


def struct_of(number: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("III", number, 0, 0))


def make_writable(readable: mmap.mmap) -> int:
    libc = ctypes.CDLL(None)
    address = np.frombuffer(readable, np.uint8).ctypes.data
    return int(libc.mprotect(ctypes.c_void_p(address), mmap.PAGESIZE, 3))
