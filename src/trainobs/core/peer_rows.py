"""What was sent to and received from each peer of internet sockets, as rows."""

from __future__ import annotations

import socket
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import PEER, Phase, Role
from trainobs.core.records import UNKNOWN

PEER_ROW = np.dtype(
    [
        ("epoch", "<i8"),
        ("phase", "<i1"),
        ("role", "<i1"),
        ("peer", "S48"),
        ("own_port", "<i8"),
        ("port", "<i8"),
        *((name, "<i8") for name in PEER.names or ()),
    ]
)
"""A row of the table `io_peers`. `peer` is empty for those that were not told apart; ports are -1
but of a peer on this machine."""

PEER_WORDS = {"phase": Phase, "role": Role}
"""Columns that are words in the run log."""

NOT_CONNECTED = "0.0.0.0"
"""Peer of sockets that have none: each of their messages goes its own way."""

_MAPPED = b"\0" * 10 + b"\xff\xff"  # before an address of IPv4, as IPv6 maps it

Rows = npt.NDArray[np.void]


def peer_rows(keys: Rows, peers: Rows, unknown: Collection[str] = ()) -> Rows:
    """Rows of `PEER_ROW`, by epoch, those with most bytes first.

    Args:
        keys: `PEER_KEY`, (n,).
        peers: `PEER`, (n,).
        unknown: "sent" or "received", where the kernel side does not count it.
    """
    rows = np.zeros(len(keys), PEER_ROW)
    for name in ("epoch", "phase", "role"):
        rows[name] = keys[name]
    for name in ("own_port", "port"):
        rows[name] = np.where(keys["port"] == 0, UNKNOWN, keys[name].astype(np.int64))
    for name in PEER.names or ():
        rows[name] = UNKNOWN if name.split("_")[0] in unknown else peers[name].astype(np.int64)
    addresses, of = np.unique(keys["address"], axis=0, return_inverse=True)
    names = np.array([_text(one.tobytes()) for one in addresses], rows.dtype["peer"])
    rows["peer"] = names[of.reshape(-1)]  # some versions of numpy give it another shape
    return rows[np.lexsort((-rows["sent_bytes"] - rows["received_bytes"], rows["epoch"]))]


def _text(address: bytes) -> bytes:
    """An address as people write it; empty for none."""
    if not any(address):
        return b""
    if address.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, address[12:]).encode()
    return socket.inet_ntop(socket.AF_INET6, address).encode()
