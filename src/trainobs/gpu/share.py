"""One poller a node: processes of a user pass readings on to each other.

Whoever binds an abstract socket first is the poller; the name is free again as soon as that
process ends, however it ends. The others connect, say which device they use, and are sent what is
read of it, a packet of JSON each time. Both sides look at the user of the other.

Abstract names belong to a network namespace: containers that have one each have a poller each.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from trainobs.gpu.reading import Reading

NAME = f"\0trainobs-gpu-{os.getuid()}"

PACKET_BYTES = 8192
"""Longest packet; a reading has some 700 bytes."""

FOLLOWERS = 64
"""Processes served at most; more would be no ranks of a node."""

_CREDENTIALS = struct.Struct("3i")  # struct ucred of <sys/socket.h>: pid, uid, gid


def claim() -> socket.socket | None:
    """The socket of the node's poller, or None where there is one already."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        listener.bind(NAME)
        listener.listen(FOLLOWERS)
    except OSError:
        listener.close()
        return None
    return listener


def connect(uuid: str, visible: str) -> socket.socket | None:
    """A connection to the node's poller, that asks for a device.

    Args:
        uuid: of the device, as CUDA tells it.
        visible: CUDA_VISIBLE_DEVICES of this process, "" for none.

    Returns:
        None where there is no poller, or one of another user.
    """
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
    try:
        link.connect(NAME)
        if not same_user(link):
            raise PermissionError
        send(link, {"uuid": uuid, "visible": visible})
    except OSError:
        link.close()
        return None
    return link


def same_user(link: socket.socket) -> bool:
    """Whether the other side is a process of this user."""
    raw = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(raw)[1] == os.getuid())


def send(link: socket.socket, packet: Mapping[str, Any]) -> None:
    """Send a packet without waiting.

    Raises:
        OSError: the other side has gone, or does not read.
    """
    link.send(json.dumps(packet).encode(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(link: socket.socket) -> dict[str, Any] | None:
    """The next packet, which must be there; None at the end, or if it is no packet of ours."""
    try:
        packet = json.loads(link.recv(PACKET_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    return packet if isinstance(packet, dict) else None


def pack(reading: Reading) -> dict[str, Any]:
    """A reading as a packet."""
    return {"reading": asdict(reading)}


def unpack(packet: Mapping[str, Any]) -> Reading | None:
    """The reading of a packet, or None; values that are none are left out."""
    try:
        reading = packet["reading"]
        values = {str(k): float(v) for k, v in reading["values"].items()}
        return Reading(int(reading["begin_ns"]), int(reading["end_ns"]), values)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
