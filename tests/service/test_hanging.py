"""Clients that send descriptors which take long to close hold up nobody else."""

from __future__ import annotations

import os
import signal
import socket
import struct
from contextlib import suppress

import pytest

from tests.kernel.processes import join
from tests.service.service import SOMEBODY, Raw, Service, Turns, as_user, serves

pytestmark = pytest.mark.needs_bpf


def lingering() -> tuple[int, list[socket.socket]]:
    """A descriptor that takes an hour to close, and what it takes that long for."""
    listener, full = socket.socket(), socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    full.connect(listener.getsockname())
    deaf, _ = listener.accept()
    full.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            full.send(bytes(1 << 16))
    full.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return full.detach(), [listener, deaf]


@pytest.mark.parametrize("said", [[b"{}"], [b"", b""], [b"{}", b"{}", b"{}"]])
def test_who_is_turned_away_with_a_descriptor_that_hangs_holds_up_nobody(
    small_service: Service, said: list[bytes]
) -> None:
    with Turns() as ready, Turns() as stopped, Turns() as over:

        def work() -> None:
            idle = [Raw(small_service.path) for _ in range(6)]
            assert idle[5].ask("hello")
            descriptor, ends = lingering()
            ready.pass_on()
            stopped.wait()
            raw = Raw(small_service.path)
            for data in said[:-1]:
                raw.say(data)
            raw.say(said[-1], [descriptor])
            os.close(descriptor)
            ready.pass_on()
            over.wait()
            raw.close()
            for end in ends:
                end.close()

        child = as_user(work)
        ready.wait()
        small_service.process.send_signal(signal.SIGSTOP)
        stopped.pass_on()
        ready.wait()
        small_service.process.send_signal(signal.SIGCONT)
        serves(small_service, SOMEBODY)
        over.pass_on()
        join(child)
