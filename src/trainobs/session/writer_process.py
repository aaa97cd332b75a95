"""The writer process, as the training sees it: a process that holds the sinks of a run.

What encodes and writes the record takes memory, CPU time and the interpreter's lock. In a process
of its own it takes none of the training's, and outlives a training that is killed.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from trainobs.core.files import close_all
from trainobs.core.interpreter import fresh_python
from trainobs.core.pidfd import pidfd_open
from trainobs.core.unforked import unforked
from trainobs.session.messages import unpack
from trainobs.session.writer_proxies import WriterReply

LAUNCH_S = 10.0
"""How long the launcher may take, which ends as soon as it has forked."""

MOST_WAITING, MOST_BYTES = 64, 64 << 20
"""Calls that it may be behind, and their bytes; then steps wait with the collector."""

MOST_WORDS = 1000
"""Bytes of what a writer process says that fails."""

_CODE = (
    "import os; line = int(sys.argv[1]); pid = os.fork(); "
    "pid and os._exit(os.write(line, b'%d' % pid) < 1); "
    "from trainobs.session.writer_main import main; "
    "main(line, int(sys.argv[2]), sys.argv[3].split())"
)
"""Forks once more, so that the writer process is no child of the training that somebody might wait
for, and tells its pid."""

_OWN_SETTINGS = {
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "OPENBLAS_NUM_THREADS": "1",
}
"""What writes a few MB in one thread needs no pools of memory, and no threads."""


class SentCall(NamedTuple):
    """A call that was sent: its number, and descriptor and size of the message."""

    number: int
    fd: int
    size: int


class WriterProcess:
    """Sends calls of the sinks; tells what became of them.

    After a flush it hands back what the sinks have become. Until then all calls are kept, in memory
    that is mapped nowhere, for who takes over if it ends too early.

    Args:
        state: descriptor of the packed sinks; from now on it belongs to this object.
        sources: names of those that sinks ask.

    Attributes:
        replied: number of the last call that it has made.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, state: int, sources: Iterable[str]) -> None:
        self.replied = 0
        self._state = state
        self._since: deque[SentCall] = deque()
        self._number = 0
        with unforked():  # a child would have the other end, too
            self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._line.setblocking(False)
            try:
                with theirs:
                    _launch(theirs.fileno(), sources)
                self._pid = int(self._line.recv(MOST_WORDS))
                self._put(state)
            except BaseException:
                self.close()
                raise

    @property
    def is_done(self) -> bool:
        """Whether it has made all calls."""
        return self.replied == self._number

    @property
    def is_behind(self) -> bool:
        """Whether it is slower than the calls come."""
        waiting = [sent.size for sent in self._since if sent.number > self.replied]
        return len(waiting) > MOST_WAITING or sum(waiting) > MOST_BYTES

    def send(self, fd: int) -> None:
        """Have it make a call.

        Args:
            fd: descriptor of the packed `SinkCall`; from now on it belongs to this object.

        Raises:
            OSError: it is gone; the call is among those that `state` tells.
        """
        self._number += 1
        self._since.append(SentCall(self._number, fd, os.fstat(fd).st_size))
        self._put(fd)

    def replies(self, wait_s: float = 0.0) -> list[WriterReply]:
        """What it has told since it was asked last.

        Args:
            wait_s: how long to wait for the first one.

        Raises:
            OSError: it is gone.
        """
        if wait_s:
            self._hears(wait_s)
        found: list[WriterReply] = []
        try:
            while not self.is_done:
                found.append(self._receive())
        except BlockingIOError:
            pass
        except OSError:
            if not found:  # or it is told the next time
                raise
        return found

    def state(self) -> tuple[int, list[SentCall]]:
        """Descriptor of the sinks as they were handed back last, and the calls since."""
        return self._state, list(self._since)

    def kill(self) -> None:
        """End it, if it has not ended: somebody else makes its calls."""
        if not self._has_ended():
            with suppress(OSError):
                os.kill(self._pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> None:
        """Wait until it is gone, once it has made its last call or was killed."""
        self._hears(LAUNCH_S)
        if self._has_ended():
            with suppress(OSError):  # only where this is the first process of a container
                os.waitpid(self._pid, 0)

    def close(self) -> None:
        """Let go of it: it makes the calls that it was sent, and ends. May be called twice."""
        self._line.close()
        fds = [self._state, *(sent.fd for sent in self._since)]
        self._since.clear()
        self._state = -1
        close_all(fd for fd in fds if fd >= 0)

    def _hears(self, wait_s: float) -> None:
        """Wait until it says something, or ends."""
        waiting = select.poll()  # unlike `select` for descriptors above 1,023, too
        waiting.register(self._line, select.POLLIN)
        waiting.poll(wait_s * 1000)

    def _has_ended(self) -> bool:
        try:
            return not self._line.recv(1, socket.MSG_PEEK)
        except OSError as error:
            return not isinstance(error, BlockingIOError)

    def _put(self, fd: int) -> None:
        socket.send_fds(self._line, [b"."], [fd])

    def _receive(self) -> WriterReply:
        last_words, fds, _, _ = socket.recv_fds(self._line, MOST_WORDS, 2)
        if not fds:
            raise ConnectionResetError(last_words.decode(errors="replace") or "it has ended")
        reply, *state = fds
        try:
            found = unpack(reply)
        finally:
            os.close(reply)
        assert isinstance(found, WriterReply)
        self.replied = found.number
        for fd in state:
            os.close(self._state)
            self._state = fd
            while self._since and self._since[0].number <= found.number:
                os.close(self._since.popleft().fd)
        return found


def _launch(line: int, sources: Iterable[str]) -> None:
    """Start it with what this interpreter imports, and none of its settings."""
    environment = {**os.environ, **_OWN_SETTINGS}
    environment.pop("LD_PRELOAD", None)  # it is meant for the training
    training = _pidfd()
    try:
        launcher = subprocess.Popen(
            fresh_python(_CODE, str(line), str(training), " ".join(sources)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=[fd for fd in (line, training) if fd >= 0],
            start_new_session=True,
        )
    finally:
        if training >= 0:
            os.close(training)
    try:
        status = launcher.wait(LAUNCH_S)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()
        raise TimeoutError(f"its interpreter has not started within {LAUNCH_S:.0f} s") from None
    if status:
        raise ChildProcessError(f"its interpreter ended with status {status}")


def _pidfd() -> int:
    """By which the end of this process is seen; -1 before Linux 5.3."""
    try:
        return pidfd_open(os.getpid())
    except OSError:
        return -1
