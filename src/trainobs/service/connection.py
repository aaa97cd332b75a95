"""One client of the service, from its first question to its end."""

from __future__ import annotations

import fcntl
import logging
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, NamedTuple

from trainobs.core.abi import FileClass
from trainobs.core.pidfd import pidfd_open
from trainobs.core.version import __version__
from trainobs.probes import protocol
from trainobs.probes.shared import SharedProbes
from trainobs.service.sessions import Sessions
from trainobs.service.shares import Allowance, Refusal
from trainobs.service.user_log import UserLog

FIRST_QUESTION_S = 5.0
"""How long a client without a session may be silent."""

REST_S = 0.05
"""How long a client waits for its next turn after a question for which all tasks are gone through,
or after any if its user asks without end: nobody must hold up the others."""

_REASON_CHARACTERS = 120
_MAX_TID = 1 << 22  # PID_MAX_LIMIT of include/linux/threads.h
_MAX_AHEAD_NS = 1 << 63
_PEER_PIDFD = 77  # SO_PEERPIDFD, v6.5
_CREDENTIALS = struct.Struct("iII")  # struct ucred

Question = Mapping[str, Any]


class Peer(NamedTuple):
    """Who has connected, as the kernel says: `SO_PEERCRED` of unix(7)."""

    tgid: int
    uid: int

    @classmethod
    def from_socket(cls, connection: socket.socket) -> Peer:
        """The process that has connected this socket."""
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        tgid, uid, _ = _CREDENTIALS.unpack(raw)
        return cls(tgid, uid)


class Connection:
    """Answers the questions of one client, and ends its session when it goes, however it goes."""

    def __init__(
        self,
        connection: socket.socket,
        peer: Peer,
        probes: SharedProbes,
        sessions: Sessions,
        log: UserLog,
        questions: Allowance,
    ) -> None:
        self._connection = connection
        self._peer = peer
        self._probes = probes
        self._sessions = sessions
        self._log = log
        self._questions = questions
        self._slot: int | None = None
        self._answers: dict[str, Callable[[Question, Sequence[int]], None]] = {
            "hello": self._hello,
            "register": self._register,
            "adopt": self._adopt,
            "leave": self._leave,
            "root": self._root,
            "infer_data": self._infer_data,
            "losses": self._losses,
            "end": self._end,
        }

    def serve(self) -> None:
        """Run until the client hangs up, dies, says something wrong, or is silent too long."""
        self._connection.settimeout(protocol.ANSWER_S)
        pidfd = -1
        try:
            pidfd = self._open_process()
            while self._wait(pidfd):
                self._one_question()
        except Refusal as refusal:
            self._refuse(refusal)
        except protocol.ProtocolError as error:
            self._refuse(Refusal(str(error), "use the trainobs of the service's version"))
        except (EOFError, ConnectionError, TimeoutError):
            pass  # it has gone, or does not take its answers
        except OSError as error:
            found = f"the service cannot do it: {error}"
            self._refuse(Refusal(found, "see what the service logs"))
        finally:
            try:
                self._end_session()
            finally:
                self._connection.close()
                if pidfd >= 0:
                    os.close(pidfd)

    def _open_process(self) -> int:
        """A descriptor that becomes readable when the client dies, even if a child of it lives."""
        if not self._peer.tgid:
            raise Refusal(
                "the service cannot see this process, which is in another process name space",
                "run trainobs-probed in the name space of the host (hostPID: true)",
            )
        with suppress(OSError):
            return self._connection.getsockopt(socket.SOL_SOCKET, _PEER_PIDFD)
        try:
            return pidfd_open(self._peer.tgid)
        except ProcessLookupError:
            raise Refusal("the process that has connected is dead", "start it again") from None

    def _wait(self, pidfd: int) -> bool:
        """Whether there is a question, before the client is dead or silent too long."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        ready = poll.poll(None if self._slot is not None else FIRST_QUESTION_S * 1000)
        return bool(ready) and pidfd not in dict(ready)

    def _one_question(self) -> None:
        question, descriptors = protocol.receive(self._connection, protocol.QUESTION_BYTES, 1)
        try:
            answer = self._answers.get(str(question.get("ask")))
            if question.get("version") != protocol.VERSION or answer is None:
                raise protocol.ProtocolError(
                    f"a question that protocol {protocol.VERSION} does not have"
                )
            answer(question, descriptors)
            if not self._questions.spend(self._peer.uid):
                time.sleep(REST_S)
        finally:
            # By this thread alone: a file system of the client's own may let it hang here.
            for descriptor in descriptors:
                os.close(descriptor)

    def _say(self, descriptors: Sequence[int] = (), **facts: object) -> None:
        protocol.send(self._connection, {"ok": True, **facts}, descriptors)

    def _refuse(self, refusal: Refusal) -> None:
        self._note(logging.WARNING, "refused process %d of user %d: %s", refusal.found)
        self._end_session()  # before it is told, so that it may try again at once
        with suppress(OSError):
            protocol.send_last(self._connection, refusal.message())

    def _note(self, level: int, text: str, *values: object) -> None:
        self._log.say(self._peer.uid, level, text, *self._peer, *values)

    def _hello(self, question: Question, descriptors: Sequence[int]) -> None:
        self._say(
            version=__version__,
            sessions=self._sessions.count,
            max_sessions=self._sessions.limit,
            status=self._status(),
        )

    def _register(self, question: Question, descriptors: Sequence[int]) -> None:
        tid, ahead_ns = _number(question, "tid", _MAX_TID), _ahead_ns(question)
        if question.get("layout") != protocol.LAYOUT:
            raise Refusal(
                f"the service is of trainobs {__version__}, which counts in another way",
                "use the same version on both sides",
            )
        self._slot, maps = self._sessions.begin(self._peer.uid, self._peer.tgid)
        with closing(maps):
            self._follow(tid, ahead_ns)
            runs = self._probes.missed_runs()
            self._say([maps.clock_fd, maps.sums_fd], status=self._status(), runs=runs)
        self._note(logging.INFO, "follow process %d of user %d in slot %d", self._slot)

    def _adopt(self, question: Question, descriptors: Sequence[int]) -> None:
        self._own_slot()
        self._follow(_number(question, "tid", _MAX_TID), _ahead_ns(question))
        self._say()
        time.sleep(REST_S)

    def _leave(self, question: Question, descriptors: Sequence[int]) -> None:
        slot, tid = self._own_slot(), _number(question, "tid", _MAX_TID)
        self._say(found=self._probes.leave(slot, self._peer.tgid, tid))
        time.sleep(REST_S)

    def _root(self, question: Question, descriptors: Sequence[int]) -> None:
        slot, file_class = self._own_slot(), _number(question, "file_class", len(FileClass))
        if len(descriptors) != 1:
            raise protocol.ProtocolError("a root without a descriptor")
        if fcntl.fcntl(descriptors[0], fcntl.F_GETFL) & (os.O_PATH | os.O_WRONLY):
            raise protocol.ProtocolError("a root that is not open for reading")
        self._probes.add_root(slot, descriptors[0], FileClass(file_class))
        self._say()

    def _infer_data(self, question: Question, descriptors: Sequence[int]) -> None:
        self._probes.infer_data(self._own_slot(), bool(_number(question, "on", 2)))
        self._say()

    def _losses(self, question: Question, descriptors: Sequence[int]) -> None:
        self._own_slot()
        self._say(runs=self._probes.missed_runs())
        time.sleep(REST_S)

    def _end(self, question: Question, descriptors: Sequence[int]) -> None:
        requests = self._probes.overdue_requests(self._own_slot())
        self._end_session()
        self._say(runs=self._probes.missed_runs(), requests=requests)

    def _follow(self, tid: int, ahead_ns: int) -> None:
        """The kernel decides: it compares the rights of each task with those of the connection."""
        client = self._connection.fileno()
        if not self._probes.adopt(self._own_slot(), self._peer.tgid, tid, client, ahead_ns):
            raise Refusal(
                f"there is no thread {tid} in process {self._peer.tgid} that others of user "
                f"{self._peer.uid} may look into: one with the user, group and capabilities with "
                "which it connected (real, effective, saved), and dumpable (PR_SET_DUMPABLE)",
                "register from a living process that is nobody else's, after an exec if it has "
                "changed its user",
            )

    def _own_slot(self) -> int:
        if self._slot is None:
            raise protocol.ProtocolError("a question of a process that has not registered")
        return self._slot

    def _end_session(self) -> None:
        slot, self._slot = self._slot, None
        if slot is not None:
            self._sessions.end(slot)
            self._note(logging.INFO, "let go of process %d of user %d in slot %d", slot)

    def _status(self) -> dict[str, str]:
        return {name: state[:_REASON_CHARACTERS] for name, state in self._probes.status.items()}


def _number(question: Question, name: str, limit: int) -> int:
    """A whole number from 0 to below a limit, of a question that may hold anything."""
    value = question.get(name)
    if isinstance(value, bool) and limit == 2:
        return int(value)
    if type(value) is not int or not 0 <= value < limit:
        raise protocol.ProtocolError(f"a question without a proper {name}")
    return value


def _ahead_ns(question: Question) -> int:
    """How far the clock of a client is ahead, as it tells itself.

    The service may not look into it, and nobody else's counts depend on it.
    """
    value = question.get("ahead_ns", 0)
    if type(value) is not int or abs(value) >= _MAX_AHEAD_NS:
        raise protocol.ProtocolError("a question without a proper ahead_ns")
    return value
