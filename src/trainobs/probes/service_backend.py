"""The kernel side of a process that may load nothing: one session of `trainobs-probed`."""

from __future__ import annotations

import grp
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainobs.core.abi import FileClass
from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.core.log import logger
from trainobs.core.now import now_s
from trainobs.probes import protocol
from trainobs.probes.backend import ProbeBackend
from trainobs.probes.obstacles import in_user_namespace
from trainobs.probes.own_programs import OwnProbe
from trainobs.probes.programs import PROBES, programs_of
from trainobs.probes.time_namespace import clock_ahead_ns

WITHOUT_RIGHTS = (
    "this process may load no programs, and trainobs-probed loads none but its own",
    "run as root, or give the process CAP_BPF and CAP_PERFMON",
)
"""What is found, and what to do, where programs of the user's cannot be loaded."""

_UNMAPPED_GID = 65534  # DEFAULT_OVERFLOWGID of linux/highuid.h
_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1  # of one who asks again
_COUNT_EVERY_NS = 1_000_000_000


class ServiceBackend(ProbeBackend):
    """Registers the calling process with the service on construction; `stop` ends its session.

    The service has one set of programs for all: which of them run is not for one session to choose.

    Args:
        path: socket of the service.
        probes: names of probes.
        required: whether each of them must work.
        tid: the training thread; None: the calling one.

    Raises:
        ProbeError: NO_SERVICE: no service answers, or it refuses; REFUSED, NO_TRACEPOINT: it lacks
            a probe that `required` names.
    """

    def __init__(
        self,
        path: Path,
        probes: Collection[str] = tuple(PROBES),
        *,
        required: bool = False,
        tid: int | None = None,
    ) -> None:
        super().__init__()
        self._path = path
        self._lock = threading.Lock()
        self._gone_since_ns: int | None = None
        self._socket: socket.socket | None = None
        try:
            tid = threading.get_native_id() if tid is None else tid
            self._socket, answer, maps = enter(
                path,
                "register",
                tid=tid,
                ahead_ns=clock_ahead_ns(),
                layout=protocol.LAYOUT,
                count=2,
            )
            self.status = {name: str(answer["status"].get(name)) for name in programs_of(probes)}
            self._runs_before = self._runs = int(answer["runs"])
            try:
                if not all(map(_is_of_the_kernel, maps)):
                    raise protocol.ProtocolError("it gave memory that is none of the kernel's")
                self._map(*maps)
            finally:
                for descriptor in maps:
                    os.close(descriptor)
            if required:
                self._require()
        except (OSError, EOFError, ValueError, TypeError, protocol.ProtocolError) as error:
            self._hang_up()
            raise refused(path, str(error)) from error
        except BaseException:
            self._hang_up()
            raise
        self._seen_ns = self._counted_ns = time.monotonic_ns()

    def adopt(self) -> None:
        """Follow the calling process: this thread as the training thread, and all it started."""
        self._tell("adopt", tid=threading.get_native_id(), ahead_ns=clock_ahead_ns())

    def leave(self) -> None:
        """Stop following the calling thread."""
        self._tell("leave", tid=threading.get_native_id())

    def load_own(self, probes: Sequence[OwnProbe]) -> None:
        """None: the service loads no program that a client gives it."""
        self.own.refuse(probes, *WITHOUT_RIGHTS)

    def infer_data(self, on: bool) -> None:
        """Whether what workers read from regular files of no known class counts as data."""
        self._tell("infer_data", on=on)

    def program_fds(self) -> dict[str, int]:
        """Nothing: the programs are the service's."""
        return {}

    def gone_since_ns(self) -> int | None:
        """CLOCK_MONOTONIC at which the service was last there, if it is not any more."""
        if self._socket and self._lock.acquire(blocking=False):  # else somebody is just asking
            try:
                self._look()
            finally:
                self._lock.release()
        return self._gone_since_ns

    def losses(self) -> dict[str, int]:
        """What the kernel side could not count; `service` is 1 once the service has gone.

        `runs` that were left out for any session of the service: the kernel does not tell for whom.
        """
        now_ns = time.monotonic_ns()
        if now_ns - self._counted_ns > _COUNT_EVERY_NS:
            self._counted_ns = now_ns
            self._take_runs(self._tell("losses"))
        gone = self.gone_since_ns() is not None
        return super().losses() | {"runs": self._runs - self._runs_before, "service": int(gone)}

    def stop(self) -> None:
        """End the session; the arrays stay readable. May be called twice."""
        self._release_roots()
        # A service that died after it was looked at last: what followed was counted by nobody.
        self.gone_since_ns()
        if self._socket:
            with suppress(OSError, EOFError, protocol.ProtocolError, ProbeError, ValueError):
                # So that a next session of this process is not the second.
                answer, _ = self._ask("end")
                self._take_runs(answer)
                self._overdue_requests = int(answer.get("requests", 0))
        self._hang_up()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's session."""
        self._release_roots()
        self._hang_up()

    def _register_root(self, descriptor: int, file_class: FileClass) -> None:
        self._tell("root", [descriptor], file_class=int(file_class))

    def _require(self) -> None:
        for name, state in self.status.items():
            if state != "on":
                raise refused(self._path, f"it does not have {name}: {state}")

    def _take_runs(self, answer: Mapping[str, Any]) -> None:
        self._runs = max(self._runs, int(answer.get("runs", 0)))

    def _tell(self, what: str, descriptors: Sequence[int] = (), **arguments: int) -> dict[str, Any]:
        """Ask for something; the answer, which is empty where there is none.

        A service that fails is told of once, and no more is asked of it.
        """
        connection = self._socket
        try:
            if connection:
                return self._ask(what, descriptors, **arguments)[0]
        except (OSError, EOFError, protocol.ProtocolError, ProbeError) as error:
            if self._socket is connection:  # else another thread has ended the session meanwhile
                self._lose(error.found if isinstance(error, ProbeError) else str(error))
        return {}

    def _ask(
        self, what: str, descriptors: Sequence[int] = (), *, count: int = 0, **arguments: int
    ) -> tuple[dict[str, Any], list[int]]:
        # Not for ever: a signal handler may end the session while its own thread is asking.
        if not self._lock.acquire(timeout=protocol.ANSWER_S):
            raise TimeoutError("another question is not answered")
        try:
            if self._socket is None:
                raise EOFError("the connection is closed")
            return ask(self._socket, self._path, what, descriptors, count=count, **arguments)
        finally:
            self._lock.release()

    def _look(self) -> None:
        """See whether the service is still there, without waiting: it says nothing unasked."""
        now_ns, connection = time.monotonic_ns(), self._socket
        poll = select.poll()
        try:
            poll.register(connection or -1, select.POLLIN)
        except ValueError:  # the session has just been ended
            return
        if not poll.poll(0):
            self._seen_ns = now_ns
        elif self._socket is connection:
            self._lose("it has hung up")

    def _lose(self, found: str) -> None:
        self._hang_up()
        if self._gone_since_ns is None:
            self._gone_since_ns = self._seen_ns
            logger.warning(
                "the kernel side of this run has ended; the training goes on\n"
                "  found: the service at %s is gone (%s)\n"
                "  do:    nothing for this run: from here on it has no counts of the kernel; the "
                "next one finds the service if it is there again",
                self._path,
                found,
            )

    def _hang_up(self) -> None:
        connection, self._socket = self._socket, None
        if connection:
            connection.close()


def _is_of_the_kernel(descriptor: int) -> bool:
    """Whether it can be a map of the kernel, which is a file of no type.

    Whoever answers in the place of the service could cut a file short while we read it, which would
    end the training.
    """
    return not stat.S_IFMT(os.fstat(descriptor).st_mode)


class Busy(ProbeError):
    """The service has too much to do to serve this process at this moment."""


def enter(
    path: Path, what: str, *, count: int = 0, **arguments: int
) -> tuple[socket.socket, dict[str, Any], list[int]]:
    """Connect to the service and ask a first question, again while it is busy.

    Raises:
        ProbeError, OSError, EOFError, ProtocolError: as `connect` and `ask` do.
    """
    until, pause_s = now_s() + protocol.ANSWER_S, _PAUSE_S * (1 + os.getpid() % 8 / 8)
    while True:
        connection = None
        try:
            connection = connect(path)
            return connection, *ask(connection, path, what, (), count=count, **arguments)
        except BaseException as error:
            if connection:
                connection.close()
            # Turned away in the middle of the question, it is cut off without a word.
            again = isinstance(error, (Busy, EOFError, ConnectionResetError))
            if not again or now_s() + pause_s > until:
                raise
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def connect(path: Path) -> socket.socket:
    """Connect to the service.

    Raises:
        ProbeError: NO_SERVICE, with who may use it where that is the reason.
        Busy: too many others are just connecting.
    """
    connection = protocol.new_socket()
    connection.settimeout(protocol.ANSWER_S)
    try:
        connection.connect(os.fspath(path))
    except OSError as error:
        connection.close()
        found = error.strerror or str(error)
        if isinstance(error, PermissionError):
            do = f"have the user put into the group that may: {who_may(path)}"
            raise refused(path, found, do) from error
        busy = isinstance(error, BlockingIOError)
        raise refused(path, found, kind=Busy if busy else ProbeError) from error
    return connection


def ask(
    connection: socket.socket,
    path: Path,
    what: str,
    descriptors: Sequence[int] = (),
    *,
    count: int = 0,
    **arguments: int,
) -> tuple[dict[str, Any], list[int]]:
    """One question to the service, and its answer with exactly `count` descriptors.

    Raises:
        ProbeError: it refuses.
        Busy: it refuses for now.
        OSError, EOFError, ProtocolError: it is gone, or talks nonsense.
    """
    question = {"version": protocol.VERSION, "ask": what, **arguments}
    with suppress(BrokenPipeError):  # it has refused before it was asked
        protocol.send(connection, question, descriptors)
    answer, received = protocol.receive(connection, protocol.ANSWER_BYTES, count)
    if answer.get("ok") is True and len(received) == count:
        return answer, received
    for descriptor in received:
        os.close(descriptor)
    if answer.get("ok") is True:
        raise protocol.ProtocolError("an answer without what it should come with")
    kind = Busy if answer.get("again") is True else ProbeError
    raise refused(path, str(answer.get("found")), str(answer.get("do")), kind=kind)


def refused(
    path: Path,
    found: str,
    do: str = "see that trainobs-probed runs, and what it logs",
    kind: type[ProbeError] = ProbeError,
) -> ProbeError:
    """The service does not serve this process."""
    return kind(
        ProbeCause.NO_SERVICE, "cannot use the service of the probes", f"{path}: {found}", do
    )


def who_may(path: Path) -> str:
    """The group whose members may connect."""
    try:
        number = path.stat().st_gid
    except OSError:
        return f"the one that owns {path}"
    if number == _UNMAPPED_GID and in_user_namespace():
        return f"the one that owns {path} on the host, which has no number in this user namespace"
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:
        return str(number)
