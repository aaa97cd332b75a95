"""When the observer's thread calls the sinks of a run."""

from __future__ import annotations

import time

import pytest

from trainobs.core.records import StepTable
from trainobs.core.sink import Sink
from trainobs.session import observer, sink_router
from trainobs.session.session import Session
from trainobs.session.settings import Settings


class Noting(Sink):
    """A sink that notes its calls, and of how many steps those were."""

    name = "noting"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.steps: list[int] = []

    def look(self) -> None:
        self.calls.append("look")

    def write(self, table: StepTable) -> None:
        self.calls.append("write")
        self.steps.append(len(table))

    def flush(self) -> None:
        self.calls.append("flush")


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Noting:
    """A sink in this process, asked for what comes without steps as often as the thread wakes."""
    monkeypatch.delenv(sink_router.SWITCH, raising=False)
    monkeypatch.setattr(observer, "WAKE_S", 0.01)
    return Noting()


def train(sink: Sink, steps: int) -> None:
    """A run of steps of 2 ms."""
    session = Session(Settings.parse(probes="off"), [sink])
    for _ in range(steps):
        session.clock.begin_batch()
        time.sleep(0.002)
        session.clock.end_step()
    session.stop()


def test_steps_are_delivered_at_first_and_with_a_flush_and_sinks_look_meanwhile(calls):
    train(calls, 600)
    writes = [at for at, call in enumerate(calls.calls) if call == "write"]
    first, last = writes[0], writes[-1]  # on a busy machine there may be more
    assert calls.steps[0] < 300  # some four, but the thread may be kept from its CPU
    assert calls.calls[first + 1 : last].count("look") == last - first + 1 - len(writes) > 2
    assert calls.calls[last:] == ["write", "flush"]


def test_many_steps_are_delivered_before_it(calls, monkeypatch):
    monkeypatch.setattr(observer, "DELIVERED_STEPS", 50)
    train(calls, 200)
    before = calls.calls[: calls.calls.index("flush")]
    assert before.count("write") > 1
    assert sum(calls.steps) == 201  # with what was before the first


def test_each_flush_follows_a_delivery(calls, monkeypatch):
    monkeypatch.setattr(observer, "FLUSH_S", 0.1)
    train(calls, 200)
    told = [call for call in calls.calls if call != "look"]
    flushes = [place for place, call in enumerate(told) if call == "flush"]
    assert len(flushes) > 1
    assert all(told[place - 1] == "write" for place in flushes)
