"""Sockets: what left and what arrived, against what was sent."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.ground_truth import MIB
from tests.kernel.observed import ObservedKernel
from tests.kernel.processes import Outsider, finish_job, in_thread, start_job
from tests.kernel.runlog import RunTables
from trainobs.core.abi import FileClass, Op, Role

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.needs_program("tobs_send"),
    pytest.mark.needs_program("tobs_receive"),
]

SOCKET, PIPE = FileClass.SOCKET, FileClass.PIPE
MAIN, THREAD = Role.MAIN, Role.THREAD
SIZE = 3_000_017
"""More than one socket buffer, so that sending and receiving go on at the same time."""

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture(params=["127.0.0.1", "::1"])
def connection(request: pytest.FixtureRequest) -> Iterator[Ends]:
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    with socket.create_server((request.param, 0), family=family) as server:
        one = socket.create_connection(server.getsockname()[:2])
        other, _ = server.accept()
    with one, other:
        yield one, other


@pytest.fixture
def local() -> Iterator[Ends]:
    one, other = socket.socketpair()
    with one, other:
        yield one, other


def receive(end: socket.socket, size: int) -> None:
    while size:
        size -= len(end.recv(min(size, 65_536)))


def send_itself(size: int) -> None:
    """Both ends of a connection in one process."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    with one, other:
        one.sendall(bytes(size))
        receive(other, size)


def test_bytes_over_tcp_are_counted_once_at_each_end(
    observed: ObservedKernel, connection: Ends
) -> None:
    one, other = connection
    got = observed.during(
        lambda: in_thread(lambda: receive(other, SIZE), lambda: one.sendall(bytes(SIZE)))
    )
    assert got.bytes(Op.SEND, SOCKET, MAIN) == got.bytes(Op.SEND, SOCKET) == SIZE
    assert got.bytes(Op.RECEIVE, SOCKET, THREAD) == got.bytes(Op.RECEIVE, SOCKET) == SIZE
    assert got.metric("net/sent_bytes") == got.metric("net/received_bytes") == SIZE


@pytest.mark.parametrize("other", [socket.IPPROTO_TCP, socket.IPPROTO_MPTCP])
def test_a_socket_of_several_paths_is_the_run_s_and_not_the_kernel_s(
    observed: ObservedKernel, other: int
) -> None:
    """The kernel makes sockets of its own for it, and hands one out where the other end has TCP."""
    try:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
    except OSError:
        pytest.skip("this kernel has no MPTCP")
    client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, other)
    with server, client:
        server.bind(("127.0.0.1", 0))
        server.listen()
        client.connect(server.getsockname())
        accepted, _ = server.accept()
        with accepted:

            def talk() -> None:
                for one, to in ((client, accepted), (accepted, client)):
                    one.sendall(bytes(1009))
                    receive(to, 1009)

            got = observed.during(talk)
    assert got.bytes(Op.SEND, SOCKET) == got.bytes(Op.RECEIVE, SOCKET) == 2018


def test_a_look_ahead_is_not_received(observed: ObservedKernel, connection: Ends) -> None:
    one, other = connection

    def look_first() -> None:
        one.sendall(bytes(1009))
        for _ in range(5):
            assert len(other.recv(1009, socket.MSG_PEEK | socket.MSG_WAITALL)) == 1009
        receive(other, 1009)

    assert observed.during(look_first).bytes(Op.RECEIVE, SOCKET) == 1009


def test_local_sockets_are_not_the_network(observed: ObservedKernel, local: Ends) -> None:
    one, other = local

    def exchange() -> None:
        one.sendall(bytes(1009))
        receive(other, 1009)

    got = observed.during(exchange)
    # What stands in for the tracepoints is attached to the functions of internet sockets alone.
    seen = 1009 if observed.kernel.attach_points()["tobs_send"] == "sock_send_length" else 0
    assert got.bytes(Op.SEND, PIPE, MAIN) == got.bytes(Op.RECEIVE, PIPE, MAIN) == seen
    assert got.metric("net/sent_bytes") == got.metric("net/received_bytes") == 0


def test_a_read_call_on_a_socket_is_received_too(
    observed: ObservedKernel, connection: Ends
) -> None:
    one, other = connection

    def exchange() -> None:
        with one.makefile("wb", buffering=0) as out, other.makefile("rb", buffering=0) as into:
            out.write(bytes(1009))
            assert len(into.read(1009) or b"") == 1009

    assert observed.during(exchange).bytes(Op.RECEIVE, SOCKET, MAIN) == 1009


def test_what_others_send_is_not_counted(observed: ObservedKernel, outsider: Outsider) -> None:
    got = observed.during(lambda: outsider.do(send_itself, 1009))
    assert got.bytes(Op.SEND, SOCKET) == got.bytes(Op.RECEIVE, SOCKET) == 0
    got = observed.during(lambda: send_itself(1009))
    assert got.bytes(Op.SEND, SOCKET) == got.bytes(Op.RECEIVE, SOCKET) == 1009


def test_two_ranks_receive_what_they_send_each_other(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ranks = [
        start_job("gloo", rank=r, port=port, run_dir=f"{tmp_path}/run{r}", meeting=str(tmp_path))
        for r in (0, 1)
    ]
    for rank in ranks:
        finish_job(rank)
    runs = [RunTables(tmp_path / f"run{r}") for r in (0, 1)]
    payload = 10 * 4 * MIB
    sent = [run.total("bytes", "send", "socket") for run in runs]
    received = [run.total("bytes", "receive", "socket") for run in runs]
    assert sum(sent) == sum(received)  # the store of rank 0 answers rank 0 too
    for moved in (*sent, *received):
        assert payload <= moved < payload * 1.01
