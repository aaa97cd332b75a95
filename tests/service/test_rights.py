"""What a user may not look into is not followed for that user, whoever started it, and when."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.ground_truth import read_whole, write_file
from tests.kernel.privileges import become_nobody, keep_capabilities, set_dumpable
from tests.kernel.processes import fork, join
from tests.service.service import (
    Observed,
    Raw,
    Service,
    Turns,
    as_user,
    data_of,
    refusal_of,
)
from tests.session.jobs import wait_for
from trainobs.core.abi import FileClass, Op
from trainobs.core.errors import ProbeError
from trainobs.probes import protocol
from trainobs.probes.service_backend import ServiceBackend

pytestmark = pytest.mark.needs_bpf

SIZE = 4096
CAP_NET_RAW = 13
NEW_USER = 0x10000000  # CLONE_NEWUSER


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    """One for all of these tests, which leave nothing of it behind."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    place.chmod(0o755)
    running = Service(place / "probed.sock")
    yield running
    running.stop()
    shutil.rmtree(place)


@pytest.fixture
def data(service: Service) -> Path:
    """A file of `SIZE` bytes that everybody may read."""
    return write_file(service.path.parent / "file", SIZE)


def program(place: Path, mode: int, capability: int = 0) -> Path:
    """A copy of `cat`, of a kind."""
    path = place / "cat"
    path.unlink(missing_ok=True)
    shutil.copy(shutil.which("cat") or "", path)
    path.chmod(mode)
    if capability:  # as `setcap cap_net_raw+ep` makes it: struct vfs_cap_data
        words = (0x02000001, 1 << capability, 0, 0, 0)
        value = b"".join(word.to_bytes(4, "little") for word in words)
        os.setxattr(path, "security.capability", value)
    return path


PROGRAMS = {
    "plain": (0o755, 0),
    "setuid": (0o4755, 0),
    "setgid": (0o2755, 0),
    "unreadable": (0o711, 0),
    "capable": (0o755, CAP_NET_RAW),
}


class Reader:
    """A program that waits for its input to end, and then reads a file."""

    def __init__(self, path: Path, file: Path) -> None:
        told, self._tell = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, told, 0)]
        arguments = [str(path), "-", str(file)]
        self._pid = os.posix_spawn(path, arguments, {}, file_actions=actions)
        os.close(told)

    def read(self) -> None:
        os.close(self._tell)
        join(self._pid)


@pytest.mark.parametrize("kind", PROGRAMS)
@pytest.mark.parametrize("adopted_again", [False, True])
def test_a_program_that_may_not_be_looked_into_is_not_followed(
    service: Service, data: Path, kind: str, adopted_again: bool
) -> None:
    path = program(service.path.parent, *PROGRAMS[kind])

    def work() -> None:
        observed = Observed(service.path)
        reader = Reader(path, data)
        if adopted_again:
            observed.kernel.adopt()
        got = data_of(observed, data, reader.read)
        assert got.bytes(Op.READ, FileClass.DATA) == (SIZE if kind == "plain" else 0)
        observed.stop()

    join(as_user(work))


@pytest.mark.parametrize("kind", PROGRAMS)
def test_what_has_connected_and_become_another_program_is_not_registered(
    service: Service, kind: str
) -> None:
    """A child that has its socket asks for it."""
    path = program(service.path.parent, *PROGRAMS[kind])

    def work() -> None:
        raw, parent = Raw(service.path), os.getpid()
        read_end, write_end = os.pipe()

        def heir() -> None:
            os.close(read_end)
            wait_for(lambda: Path(f"/proc/{parent}/comm").read_text() == "cat\n")
            answer = raw.ask("register", tid=parent, count=2 if kind == "plain" else 0)
            if kind == "plain":
                assert answer
                assert answer[0]["ok"]
            else:
                assert "no thread" in refusal_of(answer)
            os.write(write_end, b"well")

        fork(heir)
        os.dup2(read_end, 0)
        os.dup2(os.open(said, os.O_WRONLY), 1)
        os.execv(path, ["cat"])

    said = service.path.parent / "said"
    said.write_text("")
    said.chmod(0o666)
    join(as_user(work))
    assert said.read_text() == "well"


@pytest.mark.parametrize("dumpable", [0, 1])
@pytest.mark.parametrize("registered_before", [False, True])
def test_a_child_that_hides_from_others_of_its_user_is_not_followed(
    service: Service, data: Path, dumpable: int, registered_before: bool
) -> None:
    with Turns() as hidden, Turns() as go:

        def child() -> None:
            set_dumpable(dumpable)
            hidden.pass_on()
            go.wait()
            read_whole(data)

        assert counted(service, data, child, hidden, go, registered_before) == dumpable * SIZE


@pytest.mark.parametrize("own_name_space", [False, True])
def test_a_child_with_capabilities_is_followed_only_where_they_are_the_users_own(
    service: Service, data: Path, own_name_space: bool
) -> None:
    with Turns() as ready, Turns() as go:

        def child() -> None:
            if own_name_space:
                assert ctypes.CDLL(None).unshare(NEW_USER) == 0
            else:
                assert "CapPrm:\t0000000000002000" in Path("/proc/self/status").read_text()
            ready.pass_on()
            go.wait()
            read_whole(data)

        keep = () if own_name_space else (CAP_NET_RAW,)
        got = counted(service, data, child, ready, go, False, keep)
        assert got == own_name_space * SIZE


def counted(
    service: Service,
    data: Path,
    child: Callable[[], None],
    ready: Turns,
    go: Turns,
    registered_before: bool,
    capabilities: tuple[int, ...] = (),
) -> int:
    """Bytes that a process without capabilities is told of a child's reads.

    Args:
        capabilities: what the child has, and its parent gives up.
    """
    told = service.path.parent / "told"
    told.write_text("")
    told.chmod(0o666)

    def work() -> None:
        become_nobody(capabilities)
        observed = Observed(service.path) if registered_before else None
        pid = fork(child)
        ready.wait()
        keep_capabilities()
        observed = observed or Observed(service.path)
        got = data_of(observed, data, lambda: (go.pass_on(), join(pid)))
        told.write_text(str(got.bytes(Op.READ, FileClass.DATA)))
        observed.stop()

    join(fork(work))
    return int(told.read_text())


def test_a_process_that_hides_from_others_of_its_user_is_told_why_it_is_not_followed(
    service: Service,
) -> None:
    def work() -> None:
        set_dumpable(0)
        with pytest.raises(ProbeError, match="PR_SET_DUMPABLE"):
            ServiceBackend(service.path)

    join(as_user(work))


@pytest.mark.parametrize("flags", [os.O_PATH, os.O_WRONLY])
def test_a_file_that_is_not_open_for_reading_is_no_root(service: Service, flags: int) -> None:
    secret = write_file(service.path.parent / "secret", SIZE)
    secret.chmod(0o662)

    def work() -> None:
        raw = Raw(service.path)
        assert raw.ask("register", tid=os.getpid(), count=2)
        descriptor = os.open(secret, flags)
        question = {"version": protocol.VERSION, "ask": "root", "file_class": int(FileClass.DATA)}
        raw.say(json.dumps(question).encode(), [descriptor])
        assert "open for reading" in refusal_of(raw.answer())

    join(as_user(work))
