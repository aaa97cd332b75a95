"""Slots: who gets which, and when again."""

from __future__ import annotations

import ctypes as C
import errno
import os
import socket
from collections.abc import Iterator

import pytest

from trainobs.core.abi import SLOTS
from trainobs.probes import session_maps
from trainobs.probes.libbpf import open_library
from trainobs.probes.shared import SharedProbes
from trainobs.service.connection import Connection, Peer
from trainobs.service.sessions import REST_S, Sessions
from trainobs.service.shares import Allowance, Refusal
from trainobs.service.user_log import UserLog

pytestmark = pytest.mark.needs_bpf


LIMIT, PER_USER = 8, 2


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def probes() -> Iterator[SharedProbes]:
    probes = SharedProbes(["net"])
    yield probes
    probes.stop()
    vars(probes).clear()  # what is mapped holds the maps, and pytest holds the fixture


@pytest.fixture
def sessions(probes: SharedProbes, clock: Clock) -> Iterator[Sessions]:
    sessions = Sessions(probes, limit=LIMIT, per_user=PER_USER, now=clock)
    yield sessions
    for slot in list(sessions._sessions):
        sessions.end(slot)


@pytest.mark.parametrize("refused", session_maps.KINDS)
def test_a_session_that_the_kernel_refuses_in_the_middle_leaves_no_maps(
    probes: SharedProbes, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    kind = session_maps.KINDS[refused]
    other = kind._replace(key_bytes=4, value_bytes=8, entries=1 if kind.entries > 1 else 2)
    monkeypatch.setitem(session_maps.KINDS, refused, other)
    with pytest.raises(OSError, match="cannot make the maps of a session"):
        probes.open(0)
    for name, descriptor in probes.maps(session_maps.KINDS).items():
        found = open_library().bpf_map_lookup_elem(
            descriptor, C.byref(C.c_uint32(0)), C.byref(C.c_uint32())
        )
        assert found == -errno.ENOENT, name


def begin(sessions: Sessions, tgid: int, uid: int = 7) -> int:
    slot, maps = sessions.begin(uid, tgid)
    maps.close()
    return slot


def test_a_slot_rests_before_another_session_gets_it(sessions: Sessions, clock: Clock) -> None:
    assert begin(sessions, 1) == 0
    sessions.end(0)
    assert begin(sessions, 2) == 1
    sessions.end(1)
    clock.now += REST_S
    assert begin(sessions, 3) == 0
    assert sessions.count == 1


def test_where_no_slot_has_rested_it_is_the_one_that_rested_longest(
    sessions: Sessions, clock: Clock
) -> None:
    for number in range(SLOTS):
        clock.now += 0.1
        sessions.end(begin(sessions, number, uid=number))
    assert begin(sessions, 1) == 0


def test_a_user_has_a_share_and_a_process_one_session(sessions: Sessions) -> None:
    begin(sessions, 1)
    with pytest.raises(Refusal, match="has a session already"):
        begin(sessions, 1)
    begin(sessions, 2)
    with pytest.raises(Refusal, match="2 sessions already"):
        begin(sessions, 3)
    assert begin(sessions, 3, uid=8) == 2


def test_a_user_regains_the_right_to_begin_with_time(sessions: Sessions, clock: Clock) -> None:
    for number in range(4):
        sessions.end(begin(sessions, number))
    with pytest.raises(Refusal, match="faster than is allowed"):
        begin(sessions, 5)
    begin(sessions, 5, uid=8)
    clock.now += 1
    begin(sessions, 5)


def test_the_last_slots_are_for_users_who_have_none(sessions: Sessions) -> None:
    for number in range(LIMIT - LIMIT // 8):
        begin(sessions, number, uid=number // 2)
    with pytest.raises(Refusal, match="for users who have none"):
        begin(sessions, LIMIT, uid=LIMIT // 2 - 1)
    begin(sessions, LIMIT, uid=LIMIT)
    with pytest.raises(Refusal, match="are taken"):
        begin(sessions, LIMIT + 1, uid=LIMIT + 1)


def test_a_session_is_guarded_until_it_follows_nobody(
    probes: SharedProbes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a program with more rights would be followed that one of its processes runs meanwhile."""
    call, seen = SharedProbes._call, set()

    def look(self: SharedProbes, program: str, slot: int) -> int:
        seen.add((program, *self._settings_of(slot)[:2]))
        return call(self, program, slot)

    probes.open(0, guarded=True).close()
    monkeypatch.setattr(SharedProbes, "_call", look)
    probes.close(0)
    assert seen == {("tobs_release", 0, 1)}


def test_a_session_that_cannot_be_ended_keeps_no_descriptor_of_its_client(
    sessions: Sessions, probes: SharedProbes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(slot: int) -> None:
        raise OSError(errno.EMFILE, "no descriptor to watch its maps by")

    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.close()
    log, questions = UserLog(), Allowance(1, 1)
    connection = Connection(ours, Peer(os.getpid(), 7), probes, sessions, log, questions)
    connection._slot = begin(sessions, os.getpid())
    monkeypatch.setattr(sessions, "end", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="to watch its maps by"):
        connection.serve()
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == before - 1
