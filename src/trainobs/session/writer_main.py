"""What the writer process does: it makes the calls of sinks that a training hands over."""

from __future__ import annotations

import io
import logging
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from trainobs.core.records import RunInfo
from trainobs.session.delivery import Deliveries
from trainobs.session.messages import pack, unpack
from trainobs.session.writer_process import MOST_WORDS
from trainobs.session.writer_proxies import (
    EVENTS,
    INFO,
    EventForwarder,
    LogCaptureHandler,
    SinkCall,
    Source,
    WriterReply,
)

logger = logging.getLogger("trainobs")

NAME = "trainobs-writer"
"""What `ps` and `top` show of it."""

STATE_BYTES = 8 << 20
"""Calls since the sinks were handed back, in bytes, after which they are once more."""

NICENESS = 5
"""The training comes first where CPUs are scarce; what it hands over waits in memory."""

FIRST_TO_GO = 1000
"""The kernel kills the writer process before any other when memory is short: the training goes on
without it."""


def main(line: int, training: int, sources: list[str]) -> None:
    """Hold the sinks of a run until it ends.

    Args:
        line: descriptor of the socket to the training.
        training: pidfd of it, or -1.
        sources: names of those that sinks ask.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the training, and after it
    with suppress(OSError):
        os.nice(NICENESS)
    _tell_kernel("comm", NAME)
    _tell_kernel("oom_score_adj", str(FIRST_TO_GO))
    os.chdir("/")
    socket_line = socket.socket(fileno=line)
    try:
        _WriterLoop(socket_line, training, sources).run()
    except BaseException as error:
        last_words = f"{type(error).__name__}: {error}".encode()[:MOST_WORDS]
        with suppress(OSError):
            socket_line.send(last_words)
        os._exit(1)
    os._exit(0)  # nothing here needs an orderly end


class _WriterLoop:
    """The sinks, and what stands for the training."""

    def __init__(self, line: socket.socket, training: int, sources: list[str]) -> None:
        self._line = line
        self._training = training
        self._info = RunInfo("")
        self._events = EventForwarder()
        self._sources = {name: Source() for name in sources}
        self._stay: dict[str, Any] = {INFO: self._info, EVENTS: self._events, **self._sources}
        self._names = {id(thing): name for name, thing in self._stay.items()}
        self._logged = LogCaptureHandler()
        self._said = sys.stderr = io.StringIO()
        self._unsafe = 0
        logger.addHandler(self._logged)
        logger.setLevel(logging.DEBUG)
        logger.propagate = False

    def run(self) -> None:
        """Make calls until the training ends, or is gone."""
        deliveries: Deliveries | None = None
        for number, fd in enumerate(self._messages()):
            if deliveries is None:
                found = unpack(fd, self._stay)
                assert isinstance(found, Deliveries)
                deliveries = found
            else:
                call = unpack(fd)
                assert isinstance(call, SinkCall)
                self._unsafe += os.fstat(fd).st_size
                self._make(deliveries, call)
                self._reply(deliveries, number, is_safe=call.name == "flush")
                if call.name == "end":
                    return
            os.close(fd)
        if deliveries:  # the training was killed
            deliveries.flush()

    def _make(self, deliveries: Deliveries, call: SinkCall) -> None:
        vars(self._info).update(call.facts)
        self._events.fault = call.fault
        for name, answer in call.answers.items():
            self._sources[name].answer = answer
        getattr(deliveries, call.name)(*call.args)

    def _reply(self, deliveries: Deliveries, number: int, *, is_safe: bool) -> None:
        said = self._said.getvalue()
        self._said.seek(0)
        self._said.truncate()
        logged, self._logged.records = self._logged.records, []
        events, self._events.made = self._events.made, []
        fds = [pack(WriterReply(number, logged, said, events))]
        if is_safe or self._unsafe > STATE_BYTES:
            fds.append(pack(deliveries, self._names))
            self._unsafe = 0
        with suppress(OSError):  # it is gone: its calls are made all the same
            socket.send_fds(self._line, [b"."], fds)
        for fd in fds:
            os.close(fd)

    def _messages(self) -> Iterator[int]:
        """What the training sends, until it is gone.

        A forked child of it may have the other end of the line, too, and outlive it.
        """
        watched: list[socket.socket | int] = [
            self._line,
            *([self._training] if self._training >= 0 else []),
        ]
        while True:
            ready, _, _ = select.select(watched, [], [])
            try:
                flags = 0 if self._line in ready else socket.MSG_DONTWAIT
                data, fds, _, _ = socket.recv_fds(self._line, 1, 1, flags)
            except OSError:  # the training has ended, and nothing is left
                return
            if not data:
                return
            yield fds[0]


def _tell_kernel(what: str, value: str) -> None:
    with suppress(OSError), open(f"/proc/self/{what}", "w") as file:
        file.write(value)
