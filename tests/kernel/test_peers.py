"""Bytes by peer: to whom, in which epoch and phase, against what was sent."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from tests.kernel.counted import observing, take
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import in_child, in_worker
from trainobs.core.abi import FileClass, Op, Phase, Role
from trainobs.core.file_rows import IoRows
from trainobs.core.peer_rows import NOT_CONNECTED
from trainobs.probes import file_counts, shared
from trainobs.probes.local_backend import LocalBackend

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.needs_program("tobs_send"),
    pytest.mark.needs_program("tobs_receive"),
]

Amounts = tuple[int, int, int, int]
"""Messages and bytes sent, messages and bytes received."""


class Connection:
    """Both ends of a TCP connection in this process: `end` was connected to an address."""

    def __init__(self, address: str) -> None:
        self.address = address
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family) as server:
            self.end = socket.create_connection(server.getsockname()[:2])
            self.other, _ = server.accept()

    def send(self, *sizes: int) -> None:
        """One message of each size, received whole."""
        for size in sizes:
            self.end.sendall(bytes(size))
            assert len(self.other.recv(size, socket.MSG_WAITALL)) == size

    @property
    def ports(self) -> tuple[int, int]:
        """Of the end that sends, and of the other."""
        return self.end.getsockname()[1], self.other.getsockname()[1]

    def close(self) -> None:
        self.end.close()
        self.other.close()


@pytest.fixture
def connect() -> Iterator[Callable[[str], Connection]]:
    with ExitStack() as stack:
        yield lambda address: stack.enter_context(closing(Connection(address)))


def amounts(found: IoRows, peer: str, own_port: int, **of: int) -> Amounts:
    """The one row of a connection's end, in a phase, of a role, ..."""
    rows = found.peers
    own = (rows["peer"] == peer.encode()) & (rows["own_port"] == own_port)
    for name, value in of.items():
        own &= rows[name] == value
    assert own.sum() == 1, rows
    return tuple(rows[own][0].tolist()[-4:])


def assert_all_is_told(found: IoRows, *steps: Counts) -> None:
    """The rows together are what the steps have."""
    for op, column in ((Op.SEND, "sent"), (Op.RECEIVE, "received")):
        total = sum(step.bytes(op, FileClass.SOCKET) for step in steps)
        assert found.peers[f"{column}_bytes"].sum() == total
        count = sum(step.count(op, FileClass.SOCKET) for step in steps)
        assert found.peers[f"{column}_count"].sum() == count


def test_each_peer_has_what_it_was_sent_in_each_phase(
    counting: ObservedKernel, connect: Callable[[str], Connection]
) -> None:
    one, two, six = map(connect, ("127.0.0.1", "127.0.0.2", "::1"))

    def forward() -> None:
        one.send(1009, 2003)
        six.send(77)

    def backward() -> None:
        two.send(5003)
        one.send(11)

    steps = [
        counting.during(forward, Phase.FORWARD),
        counting.during(backward, Phase.BACKWARD),
        counting.during(lambda: two.send(499)),
    ]
    found = take(counting)
    assert_all_is_told(found, *steps)
    for connection, phase, count, size in (
        (one, Phase.FORWARD, 2, 3012),
        (six, Phase.FORWARD, 1, 77),
        (two, Phase.BACKWARD, 1, 5003),
        (one, Phase.BACKWARD, 1, 11),
        (two, Phase.OTHER, 1, 499),
    ):
        own_port, port = connection.ports
        sent = amounts(found, connection.address, own_port, port=port, phase=phase)
        assert sent == (count, size, 0, 0)
        back = "127.0.0.1" if "." in connection.address else connection.address
        received = amounts(found, back, port, port=own_port, phase=phase)
        assert received == (0, 0, count, size)
    assert len(found.peers) == 10
    assert set(found.peers["role"]) == {Role.MAIN}
    assert len(take(counting).peers) == 0, "told once"


def test_each_epoch_has_its_own(
    counting: ObservedKernel, connect: Callable[[str], Connection]
) -> None:
    one = connect("127.0.0.1")
    for epoch in range(3):
        counting.kernel.clock[1] = epoch
        one.send(1009 + epoch)
    found = take(counting, before=2)
    for epoch in range(2):
        assert amounts(found, "127.0.0.1", one.ports[0], epoch=epoch) == (1, 1009 + epoch, 0, 0)
    assert set(found.peers["epoch"]) == {0, 1}
    assert set(take(counting).peers["epoch"]) == {2}


def test_whoever_sends_it_is_told(
    counting: ObservedKernel, connect: Callable[[str], Connection]
) -> None:
    one = connect("127.0.0.1")
    in_worker(lambda: one.send(1009))
    in_child(lambda: one.send(13))
    found = take(counting)
    assert amounts(found, "127.0.0.1", one.ports[0], role=Role.WORKER) == (1, 1009, 0, 0)
    assert amounts(found, "127.0.0.1", one.ports[0], role=Role.CHILD) == (1, 13, 0, 0)
    assert len(found.peers) == 4


def test_phases_with_names_of_the_user_s_are_other_ones(
    counting: ObservedKernel, connect: Callable[[str], Connection]
) -> None:
    one = connect("127.0.0.1")
    counting.kernel.clock[0] = 7 << 8 | max(Phase) + 3
    one.send(1009)
    assert set(take(counting).peers["phase"]) == {Phase.OTHER}


def test_an_address_of_ipv4_in_a_socket_of_ipv6_is_one_of_ipv4(counting: ObservedKernel) -> None:
    with socket.create_server(("127.0.0.3", 0)) as server:
        end = socket.socket(socket.AF_INET6)
        end.connect(("::ffff:127.0.0.3", server.getsockname()[1]))
        other, _ = server.accept()
    with end, other:
        end.sendall(bytes(1009))
        other.recv(1009, socket.MSG_WAITALL)
        found = take(counting)
        assert amounts(found, "127.0.0.3", end.getsockname()[1]) == (1, 1009, 0, 0)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_who_is_sent_to_without_a_connection_is_unknown(
    counting: ObservedKernel, address: str
) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as end:
        for port in range(9000, 9005):
            end.sendto(bytes(101), (address, port))
    found = take(counting)
    assert amounts(found, NOT_CONNECTED, -1, port=-1) == (5, 505, 0, 0)
    assert len(found.peers) == 1


def test_who_finds_no_room_is_one_of_the_others(
    monkeypatch: pytest.MonkeyPatch, connect: Callable[[str], Connection]
) -> None:
    monkeypatch.setitem(file_counts.ENTRIES, "peers", 6)
    connections = [connect(f"127.0.1.{i}") for i in range(1, 13)]
    counting = observing()
    try:
        step = counting.during(lambda: [one.send(1000 + i) for i, one in enumerate(connections)])
        found = take(counting)
    finally:
        counting.stop()
    assert_all_is_told(found, step)
    others = found.peers[found.peers["peer"] == b""]
    assert len(found.peers) == 7
    assert len(others) == 1  # of one phase and role
    assert others["sent_bytes"] == others["received_bytes"] == sum(range(1003, 1012))
    assert others["port"] == others["own_port"] == -1


@pytest.mark.parametrize("program", ["send", "receive"])
def test_what_no_program_counts_is_unknown(
    connect: Callable[[str], Connection], program: str
) -> None:
    """Not zero."""
    one = connect("127.0.0.1")
    counting = ObservedKernel(kernel=_without(f"tobs_{program}"), required=False)
    try:
        one.send(1009)
        found = take(counting)
    finally:
        counting.stop()
    gone, kept = ("sent", "received")[:: 1 if program == "send" else -1]
    assert len(found.peers) == 1
    assert found.peers[f"{gone}_bytes"] == found.peers[f"{gone}_count"] == -1
    assert found.peers[f"{kept}_bytes"] == 1009


def _without(program: str) -> LocalBackend:
    """The kernel side, where the kernel refused a program."""
    with pytest.MonkeyPatch.context() as patch:
        choose = shared.choose

        def refuse(*given):
            ways, off = choose(*given)
            del ways[program]
            return ways, {**off, program: "refused"}

        patch.setattr(shared, "choose", refuse)
        return LocalBackend(counts_files=True)


def test_no_peers_are_counted_unless_that_is_asked_for(
    observed: ObservedKernel, connect: Callable[[str], Connection]
) -> None:
    """Control: the maps are there, and nothing comes into them."""
    step = observed.during(lambda: connect("127.0.0.1").send(1009))
    assert step.bytes(Op.SEND, FileClass.SOCKET) == 1009
    assert isinstance(observed.kernel, LocalBackend)
    maps = observed.kernel._probes.maps(file_counts.ENTRIES)
    assert len(file_counts.FileCounts(maps).take().peers) == 0


def test_the_object_without_the_kfunc_counts_the_same(
    monkeypatch: pytest.MonkeyPatch, connect: Callable[[str], Connection]
) -> None:
    paths = shared.object_files({shared.KFUNC}, counts_files=True)[1:]
    monkeypatch.setattr(shared, "object_files", lambda names, counts_files: paths)
    one, six = connect("127.0.0.2"), connect("::1")
    counting = observing()
    try:
        one.send(1009)
        six.send(11)
        found = take(counting)
    finally:
        counting.stop()
    assert amounts(found, "127.0.0.2", one.ports[0]) == (1, 1009, 0, 0)
    assert amounts(found, "::1", six.ports[0]) == (1, 11, 0, 0)
