"""Ranks show each other values through a store that may be slow, broken or gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist

from tests import needs, warm
from trainobs.hooks import distributed
from trainobs.hooks.distributed import TorchStore
from trainobs.session import exchange
from trainobs.session.exchange import Exchange

SERVER = """
import sys, time
import torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(100)
"""


class Memory:
    """A store in this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.refuse: type[Exception] | None = None
        self.hang = threading.Event()
        self.hang.set()

    def put(self, key: str, value: bytes) -> None:
        self._answer()
        self.values[key] = value

    def get(self, key: str) -> bytes | None:
        self._answer()
        return self.values.get(key)

    def delete(self, key: str) -> None:
        self._answer()
        self.values.pop(key, None)

    def _answer(self) -> None:
        self.hang.wait()
        if self.refuse:
            raise self.refuse("no longer there")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "ROUND_S", 0.01)
    monkeypatch.setattr(exchange, "PATIENCE_S", 0.3)
    monkeypatch.setattr(exchange, "_serials", iter(range(0, 1000, 1)))


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def pair(store: object) -> list[Exchange]:
    """Two ranks that begin their first session."""
    both = []
    for rank in (0, 1):
        exchange._serials = iter([0])
        both.append(Exchange(lambda prefix: store, rank, 2))
        both[-1].start()
    return both


def test_rank_0_sees_what_another_shows_last():
    first, second = pair(Memory())
    assert first.seen() == {}
    second.show(b"one")
    until(lambda: first.seen() == {1: b"one"})
    second.show(b"two")
    until(lambda: first.seen() == {1: b"two"})
    assert second.seen() == {}
    for rank in (second, first):
        rank.stop()


def test_the_last_value_is_shown_as_the_run_ends():
    store = Memory()
    first, second = pair(store)
    second.show(b"last")
    second.stop()
    first.stop()
    assert first.seen() == {1: b"last"}


@pytest.mark.parametrize("comes", [True, False])
def test_rank_0_stays_a_moment_for_what_others_show_as_they_end(comes, monkeypatch):
    if comes:
        monkeypatch.setattr(exchange, "PATIENCE_S", 500)
    first, second = pair(Memory())
    end = threading.Timer(0.05, lambda: (second.show(b"late"), second.stop()) if comes else None)
    end.start()
    first.stop(lambda: first.seen() == {1: b"late"})  # if not: for no longer than its patience
    end.join()
    second.stop()
    assert first.seen() == ({1: b"late"} if comes else {})


def test_sessions_that_follow_each_other_leave_one_key_of_each_rank():
    store = Memory()
    for serial in range(5):
        exchange._serials = iter([serial])
        run = Exchange(lambda prefix: store, 3, 4)
        run.start()
        run.show(b"%d" % serial)
        run.stop()
        assert store.values == {f"{serial}/3": b"%d" % serial}


def test_a_job_without_a_process_group_is_asked_again():
    stores = [None, None, Memory()]
    run = Exchange(lambda prefix: stores.pop(0) if len(stores) > 1 else stores[0], 1, 2)
    run.show(b"here")
    run.start()
    until(lambda: stores[0] and stores[0].values)
    run.stop()


def test_a_store_that_fails_ends_the_exchange_without_a_word(caplog):
    store = Memory()
    store.refuse = RuntimeError
    run = Exchange(lambda prefix: store, 0, 2)
    run.show(b"x")
    run.start()
    until(lambda: not run._thread.is_alive())
    run.stop()
    assert [record for record in caplog.records if record.levelname != "DEBUG"] == []


def test_a_store_that_hangs_delays_the_end_by_no_more_than_the_patience():
    store = Memory()
    store.hang.clear()
    run = Exchange(lambda prefix: store, 0, 2)
    run.show(b"x")
    run.start()
    time.sleep(0.05)
    began = time.monotonic()
    run.stop()
    run.stop()
    assert time.monotonic() - began > 0.2
    assert run._thread.is_alive()
    store.hang.set()
    until(lambda: not run._thread.is_alive())


@pytest.fixture
def server() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process with torch's own store, as rank 0 is one."""
    process = warm.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    yield process, int(process.stdout.readline())
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()
    process.stdout.close()


@needs.store_clone
def test_torchs_store_has_what_was_put_until_it_is_removed(server):
    shared = dist.TCPStore("127.0.0.1", server[1])
    before = shared.num_keys()
    ours = TorchStore(dist.PrefixStore("trainobs", shared.clone()))
    assert ours.get("0/1") is None
    ours.put("0/1", b"a\0b")
    ours.put("0/1", b"c")
    assert ours.get("0/1") == b"c"
    assert not shared.check(["0/1"])  # the job's own keys have other names
    ours.delete("0/1")
    assert ours.get("0/1") is None
    assert shared.num_keys() == before


@needs.store_clone
def test_a_job_that_waits_for_a_key_does_not_keep_the_exchange_from_going_on(server):
    shared = dist.TCPStore("127.0.0.1", server[1])
    ours = TorchStore(dist.PrefixStore("trainobs", shared.clone()))
    waiting = threading.Thread(target=lambda: shared.get("comes later"))
    waiting.start()
    time.sleep(0.1)
    ours.put("0/1", b"x")
    assert ours.get("0/1") == b"x"
    assert waiting.is_alive()
    dist.TCPStore("127.0.0.1", server[1]).set("comes later", "now")
    waiting.join(60)
    assert not waiting.is_alive()


@needs.store_clone
def test_a_rank_that_is_stopped_stops_nobody_else(server, monkeypatch):
    """Its store does not answer, and torch waits for it in C++; Python goes on meanwhile."""
    monkeypatch.setattr(distributed, "TIMEOUT_S", 500)
    process, port = server
    shared = dist.TCPStore("127.0.0.1", port)
    ours = TorchStore(dist.PrefixStore("trainobs", shared.clone()))
    run = Exchange(lambda prefix: ours, 0, 2)
    run.show(b"x")
    run.start()
    until(lambda: ours.get("0/0"))
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(0.1)
    assert longest_pause(0.5) < 60
    run.stop()
    assert run._thread.is_alive()  # it waits, and nobody for it
    os.kill(process.pid, signal.SIGCONT)
    until(lambda: not run._thread.is_alive())


def longest_pause(seconds: float) -> float:
    """The longest time that this thread could not run Python."""
    longest, last = 0.0, time.monotonic()
    end = last + seconds
    while last < end:
        time.sleep(0.001)
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    return longest
