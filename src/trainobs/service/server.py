"""The listening side of the service: who may connect, and a thread for each who did.

A thread each, since a client can make whoever closes its descriptors wait; it is then its own
thread that waits, and its own share of the connections that is used up. One who is turned away has
none: what it has sent is closed by a thread that does nothing else.
"""

from __future__ import annotations

import logging
import os
import queue
import select
import socket
import stat
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from trainobs.core.abi import SLOTS
from trainobs.core.errors import TrainobsError
from trainobs.probes import protocol
from trainobs.probes.shared import SharedProbes
from trainobs.service.connection import Connection, Peer
from trainobs.service.sessions import Sessions
from trainobs.service.shares import Allowance, Refusal, why_no_more
from trainobs.service.user_log import UserLog

logger = logging.getLogger("trainobs.service")

SOCKET_MODE = 0o660
"""Who may connect: the owner and the group of the socket."""

SPARE = 4
"""Connections that a user may have beside those with a session, such as a `trainobs doctor`."""

QUESTIONS, QUESTION_S = 512, 0.01
"""Questions of a user that are answered without a rest, and seconds until one more is."""

_CONNECTIONS = 4 * SLOTS
_BACKLOG = 1024  # a longer queue would make all wait longer where somebody fills it
_AT_ONCE = 64  # clients, between two looks at whether to end
_REST_MS = 1000
_STACK_BYTES = 512 * 1024


def bind(path: Path, group: int | None = None) -> socket.socket:
    """A socket at `path` for the members of a group, which does not listen yet.

    Raises:
        TrainobsError: another service has it, or the path is not to be had.
    """
    listener = protocol.new_socket()
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
            path.parent.chmod(0o755)  # whatever the umask: its users must get through
        _refuse_foreign(path)
        _remove_stale(path)
        before = os.umask(0o777 & ~SOCKET_MODE)
        try:
            listener.bind(os.fspath(path))
        finally:
            os.umask(before)
        if group is not None:
            os.chown(path, -1, group, follow_symlinks=False)
    except OSError as error:
        listener.close()
        raise TrainobsError(
            f"cannot listen at {path}",
            error.strerror or str(error),
            "give a path with --socket in a directory that this user may write to",
        ) from error
    except BaseException:
        listener.close()
        raise
    return listener


def _refuse_foreign(path: Path) -> None:
    """Refuse a directory in which another user could put a socket in the place of ours."""
    about = path.parent.stat()
    is_open = about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX
    if about.st_uid in (0, os.geteuid()) and not is_open:
        return
    raise TrainobsError(
        f"cannot listen at {path}",
        f"others may write to its directory: user {about.st_uid}, mode {about.st_mode & 0o7777:o}",
        "give a path with --socket in a directory of the service's user, of mode 755",
    )


def _remove_stale(path: Path) -> None:
    """Remove what a service that was killed has left."""
    if not path.is_socket():
        return
    with protocol.new_socket() as other:
        try:
            other.connect(os.fspath(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise TrainobsError(
        f"cannot listen at {path}",
        "another service answers there",
        "stop it, or give another path with --socket",
    )


class Server:
    """Accepts clients, and serves each in a thread of its own."""

    def __init__(
        self, listener: socket.socket, probes: SharedProbes, sessions: Sessions, *, per_user: int
    ) -> None:
        self._listener = listener
        self._probes = probes
        self._sessions = sessions
        self._most = per_user + SPARE
        self._log = UserLog()
        self._questions = Allowance(QUESTIONS, QUESTION_S)
        self._lock = threading.Lock()
        self._connected: Counter[int] = Counter()
        self._unclosed: queue.SimpleQueue[socket.socket] = queue.SimpleQueue()

    def serve(self, until: int) -> None:
        """Serve until something can be read from a descriptor, as after a signal."""
        threading.stack_size(_STACK_BYTES)
        threading.Thread(target=self._close_others, daemon=True).start()
        self._listener.setblocking(False)
        self._listener.listen(_BACKLOG)
        logger.info("listening at %s", self._listener.getsockname())
        poll = select.poll()
        poll.register(self._listener, select.POLLIN)
        poll.register(until, select.POLLIN)
        while until not in (
            ready := dict(poll.poll(_REST_MS if self._log.tell_left_out() else None))
        ):
            if ready:
                self._accept()

    def _accept(self) -> None:
        try:
            for _ in range(_AT_ONCE):
                self._admit(self._listener.accept()[0])
        except BlockingIOError:
            return  # that were all
        except OSError as error:  # too many descriptors: those in use will be closed
            logger.error("cannot accept a client: %s", error)
            time.sleep(0.1)

    def _admit(self, connection: socket.socket) -> None:
        peer = Peer.from_socket(connection)
        with self._lock:
            mine, taken = self._connected[peer.uid], self._connected.total()
            limits = {"each": self._most, "total": _CONNECTIONS}
            found = why_no_more("connections", mine, taken, **limits)
            if not found:
                self._connected[peer.uid] = mine + 1
        if found:
            self._turn_away(connection, found)
            return
        thread = threading.Thread(target=self._run, args=(connection, peer), daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # no more threads
            self._forget(peer)
            self._turn_away(connection, str(error))

    def _run(self, connection: socket.socket, peer: Peer) -> None:
        try:
            at_once = self._questions
            Connection(connection, peer, self._probes, self._sessions, self._log, at_once).serve()
        except Exception:
            text = "the connection of process %d of user %d failed"
            self._log.say(peer.uid, logging.ERROR, text, *peer, failure=True)
        finally:
            self._forget(peer)

    def _forget(self, peer: Peer) -> None:
        with self._lock:
            self._connected[peer.uid] -= 1
            if not self._connected[peer.uid]:
                del self._connected[peer.uid]

    def _turn_away(self, connection: socket.socket, found: str) -> None:
        """Refuse in no more time than it takes to connect."""
        refusal = Refusal(found, "try again later", again=True)
        with suppress(OSError):
            connection.setblocking(False)
            protocol.send(connection, refusal.message(), ())
        with suppress(OSError):
            if protocol.is_read_out(connection):
                connection.close()
                return
        self._unclosed.put(connection)

    def _close_others(self) -> None:
        """Close what may take long. The kernel bounds how many descriptors a user has sent."""
        while True:
            self._unclosed.get().close()
