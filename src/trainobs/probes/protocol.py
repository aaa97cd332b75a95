"""What a training process and `trainobs-probed` say to each other.

A Unix socket that keeps messages apart (SOCK_SEQPACKET). Every message is one JSON object; the
process asks, the service answers. With a question may come a descriptor (a directory to be a root),
with an answer two (the maps of the session).
"""

from __future__ import annotations

import array
import json
import os
import socket
import zlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainobs.core.abi import SUMS, FileClass, Op, Phase, Role

VERSION = 2
"""Of the protocol; a service answers no other."""

LAYOUT = zlib.crc32(repr((SUMS.descr, [list(e) for e in (Op, FileClass, Role, Phase)])).encode())
"""Of what the two share in memory: no number of it must mean something else to the other."""

SOCKET = Path("/run/trainobs/probed.sock")
"""Where the service listens unless it is told otherwise."""

VARIABLE = "TRAINOBS_PROBED"
"""Environment variable: another path of the socket, or nothing for no service."""

QUESTION_BYTES = 1024
"""Limit of a question."""

ANSWER_BYTES = 16384
"""Limit of an answer."""

ANSWER_S = 5.0
"""How long one side waits for the other."""

_CREDENTIALS_SPACE = socket.CMSG_SPACE(12)  # struct ucred


class ProtocolError(Exception):
    """The other side said what cannot be understood, or nothing any more."""


def socket_path() -> Path | None:
    """Where to look for the service; None: nowhere."""
    value = os.environ.get(VARIABLE)
    if value is None:
        return SOCKET
    return Path(value) if value else None


def new_socket() -> socket.socket:
    """An unconnected socket of the right kind."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(connection: socket.socket, message: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Send one message.

    Raises:
        OSError: the other side is gone, or does not take it in time.
    """
    data = json.dumps(message, separators=(",", ":")).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([data], rights if descriptors else [], socket.MSG_NOSIGNAL)


def send_last(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message to who may be talking meanwhile, before the connection is closed.

    A socket that is closed with something unread in it takes back what it has sent.

    Raises:
        OSError: the other side is gone, or does not take it in time.
    """
    send(connection, message, ())
    connection.shutdown(socket.SHUT_RD)
    connection.setblocking(False)
    while connection.recv(1):
        pass


def is_read_out(connection: socket.socket) -> bool:
    """Have the other side say no more, and read what it has said, up to a descriptor.

    Returns:
        Whether there is none, so that closing the connection waits for nobody.
    """
    # With each message something comes then, so that an empty one is not taken for the end.
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    connection.shutdown(socket.SHUT_RD)
    while True:
        with suppress(ConnectionResetError):  # told once, before what is there to read
            peeked = connection.recvmsg(1, _CREDENTIALS_SPACE, socket.MSG_PEEK)
            _, credentials, flags, _ = peeked
            if not credentials or flags & socket.MSG_CTRUNC:
                return not flags & socket.MSG_CTRUNC
            connection.recv(1)


def receive(
    connection: socket.socket, limit: int, descriptors: int
) -> tuple[dict[str, Any], list[int]]:
    """Receive one message, and up to some descriptors, which belong to the caller then.

    Raises:
        OSError: nothing came in time.
        EOFError: the other side has hung up.
        ProtocolError: it is too long, or no JSON object.
    """
    data, rights, flags, _ = connection.recvmsg(
        limit, socket.CMSG_SPACE(descriptors * 4) if descriptors else 0, socket.MSG_CMSG_CLOEXEC
    )
    received = _descriptors(rights)
    try:
        return _parse(data, flags), received
    except BaseException:
        for descriptor in received:
            os.close(descriptor)
        raise


def _descriptors(rights: Sequence[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in rights:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def _parse(data: bytes, flags: int) -> dict[str, Any]:
    if not data and not flags & socket.MSG_CTRUNC:
        raise EOFError("the other side has hung up")
    if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        raise ProtocolError("a message that is longer than allowed, or with too many descriptors")
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a message that is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError("a message that is no JSON object")
    return message
