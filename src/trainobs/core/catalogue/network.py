"""Bytes on sockets."""

from __future__ import annotations

from trainobs.core.abi import FileClass, Op
from trainobs.core.catalogue.making import kernel
from trainobs.core.metrics import Cells, Metric

NETWORK: tuple[Metric, ...] = (
    kernel(
        "net/sent_bytes",
        Cells("bytes", (Op.SEND,), (FileClass.SOCKET,)),
        "Bytes sent on internet sockets, loopback included.",
        source="sock_send_length",
        blind="RDMA, and GPU-direct transports, bypass sockets; what network file systems send.",
        chart="Sent over the network",
    ),
    kernel(
        "net/received_bytes",
        Cells("bytes", (Op.RECEIVE,), (FileClass.SOCKET,)),
        "Bytes received on internet sockets, loopback included.",
        source="sock_recv_length",
        blind="RDMA, and GPU-direct transports, bypass sockets; what splice moves out of a socket, "
        "and what network file systems receive.",
        chart="Received over the network",
    ),
)
