"""What sinks know of the training reaches a writer process; what they make for it comes back."""

from __future__ import annotations

import errno
import os
import signal
import time

import pytest

from tests.session.jobs import wait_for
from tests.session.writers import writer_of
from trainobs.session import observer
from trainobs.session.runs import open_session
from trainobs.session.settings import Settings
from trainobs.session.sink_router import SWITCH
from trainobs.session.writer_proxies import EventForwarder, EventReceiver, Source
from trainobs.tensorboard import protos

TAG = "trainobs/step/duration_ms"


class Writer:
    """A user's writer of events, which may be full."""

    def __init__(self) -> None:
        self.events: list[protos.Event] = []
        self.flushes = 0
        self.is_full = False

    def add_event(self, event: protos.Event) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.events.append(event)

    def flush(self) -> None:
        self.flushes += 1

    def close(self) -> None:
        self.flush()


def made(*steps: int) -> list[bytes]:
    back = EventForwarder()
    for step in steps:
        back.add_event(protos.Event(step=step))
    back.flush()
    return back.made


def test_events_that_are_refused_are_kept_in_order_and_the_writer_process_is_told():
    writer = Writer()
    here, back = EventReceiver(writer), EventForwarder()
    writer.is_full = True
    here.take(made(1, 2))
    assert here.fault == (errno.ENOSPC, "No space left on device")
    back.fault = here.fault
    with pytest.raises(OSError, match="No space left"):
        back.add_event(protos.Event(step=3))
    writer.is_full = False
    here.take(made(3))
    assert here.fault is None
    assert [event.step for event in writer.events] == [1, 2, 3]
    assert writer.flushes == 2


def test_a_source_says_what_came_with_the_call_once_and_raises_what_it_met():
    here = Source(lambda is_last: ("asked", is_last))
    there = Source()
    there.answer = here.asked(is_last=True)
    assert there() == ("asked", True)
    here.answer = there.answer
    assert here(False) == ("asked", False)

    def fail(is_last: bool) -> None:
        raise OSError(errno.EBADF, "gone")

    there.answer = Source(fail).asked(is_last=False)
    with pytest.raises(OSError, match="gone") as raised:
        there()
    assert raised.value.errno == errno.EBADF


@pytest.mark.parametrize("is_killed", [False, True])
def test_points_go_to_the_users_writer_once_and_in_order(tmp_path, monkeypatch, is_killed):
    monkeypatch.setenv(SWITCH, "process")
    monkeypatch.setattr(observer, "HAND_OVER_S", 0.1)
    monkeypatch.setattr(observer, "FLUSH_S", 0.1)
    writer = Writer()
    session, _ = open_session(
        Settings.parse("off", quiet=True), tmp_path / "run", writer=writer, log_every_n_steps=1
    )
    steps = 0

    def step_on() -> bool:
        nonlocal steps
        for _ in range(20):
            session.clock.begin_batch()
            time.sleep(0.001)
            session.clock.end_step()
        steps += 20
        return len(writer.events) > 40

    wait_for(step_on)
    assert (process := writer_of(os.getpid()))
    if is_killed:
        os.kill(process, signal.SIGKILL)
        for _ in range(10):
            step_on()
    session.stop()
    values = ((event.step, value.tag) for event in writer.events for value in event.summary.value)
    assert [step for step, tag in values if tag == TAG] == list(range(steps))
    written_by = session.info.settings["written_by"]
    assert written_by == "process" or is_killed
    assert writer.flushes
