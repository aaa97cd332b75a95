"""Nobody registers, reads or disturbs what is another's."""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.kernel.ground_truth import read_whole, write_file
from tests.kernel.observed import map_update
from tests.kernel.privileges import NOBODY
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
)
from tests.session.jobs import wait_for
from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.core.kernel import SUMS, FileClass, Op, Role
from trainobs.probes.served import ServedSide

pytestmark = pytest.mark.needs_bpf

DATA = FileClass.DATA
MAP_OPEN_BY_ID = 14  # BPF_MAP_GET_FD_BY_ID


def serves(service: Service, uid: int = NOBODY) -> None:
    """See that an honest user is served, exactly and soon."""

    def honest() -> None:
        observed = Observed(service.path)
        path = service.path.parent
        got = data_of(observed, path, lambda: read_whole(path / "file"))
        assert got.bytes(Op.READ, DATA) == 4096
        observed.stop()

    if not (service.path.parent / "file").exists():
        write_file(service.path.parent / "file", 4096)
    begin = time.monotonic()
    join(as_user(honest, uid))
    assert time.monotonic() - begin < 5


def test_a_user_outside_the_group_may_not_even_connect(service: Service) -> None:
    assert service.path.stat().st_mode & 0o777 == 0o660

    def work() -> None:
        with pytest.raises(ProbeError) as caught:
            ServedSide(service.path)
        assert caught.value.cause is ProbeCause.NO_SERVICE
        assert "Permission denied" in caught.value.found
        assert "nogroup" in caught.value.do

    join(as_user(work, gid=SOMEBODY))


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
            ServedSide(service.path)
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
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
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
        raw.say(json.dumps({"version": 1, "ask": "register", "tid": os.getpid()}).encode())
        os.kill(os.getpid(), signal.SIGKILL)

    for _ in range(8):
        os.waitpid(as_user(work), 0)
    service.is_free_again()
    serves(service)


GARBAGE = {
    "nothing": b"",
    "a zero": b"\0",
    "half a question": b'{"version":1,"ask":"regis',
    "no object": b"[1]",
    "a number": b"7",
    "a deep one": b"[" * 1000,
    "not UTF-8": b'{"version":1,"ask":"\xff\xfe"}',
    "too long": b" " * 5000,
    "no version": b'{"ask":"hello"}',
    "another version": b'{"version":2,"ask":"hello"}',
    "an unknown question": b'{"version":1,"ask":"__init__"}',
    "no thread": b'{"version":1,"ask":"register"}',
    "a thread by name": b'{"version":1,"ask":"register","tid":"1"}',
    "a negative thread": b'{"version":1,"ask":"register","tid":-1}',
    "a huge thread": b'{"version":1,"ask":"register","tid":%d}' % 10**40,
    "a thread that is none": b'{"version":1,"ask":"register","tid":NaN}',
    "a root of nobody": b'{"version":1,"ask":"root","file_class":1}',
    "a leave of nobody": b'{"version":1,"ask":"leave","tid":1}',
    "an end of nothing": b'{"version":1,"ask":"end"}',
}


@pytest.mark.parametrize("data", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_refused_and_hurts_nobody(service: Service, data: bytes) -> None:
    def work() -> None:
        raw = Raw(service.path)
        raw.say(data)
        answer = raw.answer()
        assert answer is None or refusal_of(answer)
        assert raw.answer() is None, "it did not hang up"

    join(as_user(work))
    assert service.process.poll() is None
    assert not service.said("Traceback")
    assert service.sessions() == 0


def test_noise_and_unwanted_descriptors_are_refused_and_leak_none(service: Service) -> None:
    held = f"/proc/{service.process.pid}/fd"
    before = len(os.listdir(held))
    noise = random.Random(7)

    def work() -> None:
        for _ in range(300):
            raw = Raw(service.path)
            with suppress(OSError):
                raw.say(noise.randbytes(noise.randrange(1, 1500)), [0] * noise.randrange(4))
                assert refusal_of(raw.answer())
            raw.close()

    join(as_user(work))
    wait_for(lambda: len(os.listdir(held)) <= before)
    assert not service.said("Traceback")
    serves(service)


def test_garbage_in_a_session_ends_that_session_alone(service: Service) -> None:
    def work() -> None:
        observed = Observed(service.path)
        raw = Raw(service.path)
        assert "session already" in refusal_of(raw.ask("register", tid=os.getpid()))
        served = observed.kernel
        assert isinstance(served, ServedSide)
        served._socket.send(b"}{")
        wait_for(lambda: served.gone_since_ns() is not None)
        assert served.losses()["service"] == 1
        observed.stop()

    join(as_user(work))
    service.is_free_again()
    serves(service)


@pytest.fixture
def small_service(open_place: Path) -> Iterator[Service]:
    running = Service(open_place / "probed.sock", "--max-sessions", 4, "--max-sessions-per-user", 2)
    yield running
    running.stop()


def registered_until(path: Path, ready: Turns, over: Turns) -> Callable[[], None]:
    def work() -> None:
        observed = Observed(path)
        ready.pass_on()
        over.wait()
        observed.stop()

    return work


def test_a_flood_of_registrations_takes_no_more_than_the_users_share(
    small_service: Service,
) -> None:
    service = small_service
    with Turns() as ready, Turns() as over:
        children = [as_user(registered_until(service.path, ready, over)) for _ in range(2)]
        ready.wait()
        ready.wait()

        def flood() -> None:
            refused = 0
            until = time.monotonic() + 2
            while time.monotonic() < until:
                with suppress(OSError, ProbeError):
                    raw = Raw(service.path)
                    refused += "sessions" in refusal_of(raw.ask("register", tid=os.getpid()))
                    raw.close()
            assert refused > 20

        flooding = [as_user(flood) for _ in range(2)]
        serves(service, SOMEBODY)
        for child in flooding:
            join(child)
        for _ in children:
            over.pass_on()
        for child in children:
            join(child)
    service.is_free_again()


def test_beginning_and_ending_sessions_without_end_is_slowed_down(small_service: Service) -> None:
    def work() -> None:
        begun = 0
        refusal = ""
        while begun < 100 and not refusal:
            try:
                ServedSide(small_service.path).stop()
                begun += 1
            except ProbeError as error:
                refusal = error.found
        assert "faster than is allowed" in refusal
        assert begun in range(4, 12)

    join(as_user(work))
    serves(small_service, SOMEBODY)


def test_idle_connections_are_few_and_end(small_service: Service) -> None:
    def work() -> None:
        idle = [Raw(small_service.path) for _ in range(20)]
        words = [raw.answer() for raw in idle[6:]]
        assert all("connections" in refusal_of(answer) for answer in words)
        begin = time.monotonic()
        assert idle[0].answer() is None
        assert 1 < time.monotonic() - begin < 10

    child = as_user(work)
    serves(small_service, SOMEBODY)
    join(child)


def test_one_who_does_not_listen_holds_up_nobody(service: Service) -> None:
    def work() -> None:
        raw = Raw(service.path)
        assert raw.ask("register", tid=os.getpid(), count=2)
        raw.socket.settimeout(0.2)
        with suppress(OSError):
            while True:
                raw.say(json.dumps({"version": 1, "ask": "adopt", "tid": os.getpid()}).encode())
        service_answers.pass_on()
        over.wait()

    with Turns() as service_answers, Turns() as over:
        child = as_user(work)
        service_answers.wait()
        serves(service, SOMEBODY)
        over.pass_on()
        join(child)
    service.is_free_again()


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
            ServedSide(service.path)
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
