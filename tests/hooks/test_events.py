"""Phases timed on a GPU, against a stand-in for CUDA's stream and events.

The stand-in keeps what CUDA documents: an event gets its time when the stream comes past it, a
query does not wait, an event that was not reached has no time, an event that is recorded anew
forgets the old time, and asking in the middle of a capture is an error. It was not run on a GPU:
tests/gpu/on_device.py is for that.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from trainobs.core.abi import Phase
from trainobs.hooks import events as module
from trainobs.hooks.events import PhaseEvents
from trainobs.steps.clock import StepClock
from trainobs.steps.closed_step import ClosedStep

TRANSFER, FORWARD, BACKWARD = Phase.TRANSFER.value, Phase.FORWARD.value, Phase.BACKWARD.value
OTHER, OPTIMIZER = Phase.OTHER.value, Phase.OPTIMIZER.value


class Stream:
    """A GPU that does what is put into its stream, as far as it is told to go."""

    def __init__(self) -> None:
        self.queue: list[object] = []
        self.ms = 0.0
        self.capturing = False
        self.made = 0
        self.lost = False

    def work(self, ms: float) -> None:
        """Put a kernel of some length into the stream."""
        self.queue.append(ms)

    def run(self, items: int | None = None) -> None:
        """Let the GPU do the next items of its stream, or all."""
        for item in self.queue[:items]:
            if isinstance(item, Event):
                item.at_ms = self.ms
            else:
                self.ms += item
        del self.queue[:items]

    def event(self) -> Event:
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.at_ms: float | None = None

    def record(self) -> None:
        self._check()
        assert self not in self.stream.queue, "an event in use was taken from the pool"
        self.at_ms = None
        self.stream.queue.append(self)

    def query(self) -> bool:
        self._check()
        return self.at_ms is not None

    def elapsed_time(self, end: Event) -> float:
        if self.at_ms is None or end.at_ms is None:
            raise RuntimeError("cudaErrorNotReady")
        return end.at_ms - self.at_ms

    def _check(self) -> None:
        if self.stream.capturing:
            raise RuntimeError("operation not permitted when stream is capturing")
        if self.stream.lost:
            raise RuntimeError("CUDA error: device-side assert triggered")


@pytest.fixture
def stream() -> Stream:
    return Stream()


@pytest.fixture
def events(stream) -> PhaseEvents:
    return PhaseEvents(stream.event, lambda: stream.capturing)


def closed(*serials: int, merged: tuple[int, ...] = ()) -> list[ClosedStep]:
    return [ClosedStep.from_numbers(serial, serial, (0, 1), merged=merged) for serial in serials]


def step(events: PhaseEvents, stream: Stream, serial: int, forward=3.0, backward=5.0) -> None:
    """A step as its marks come: the host is ahead, the GPU has done nothing yet."""
    events.mark(serial, FORWARD)
    stream.work(forward)
    events.mark(serial, OTHER)
    stream.work(1.0)
    events.mark(serial, BACKWARD)
    stream.work(backward)
    events.mark(serial, OTHER)


def ms(columns: dict, name: str) -> list[float]:
    return (columns[f"gpu/{name}_ns"] / 1e6).tolist()


def test_a_phase_has_the_time_of_its_own_work(events, stream):
    step(events, stream, 1)
    step(events, stream, 2, forward=7, backward=11)
    stream.run()
    events.mark(3, FORWARD)
    columns = events.columns(closed(1, 2))
    assert ms(columns, "forward") == [3, 7]
    assert ms(columns, "backward") == [5, 11]
    assert columns.keys() == {"gpu/forward_ns", "gpu/backward_ns"}


def test_of_steps_that_became_one_some_may_have_had_no_phase(events, stream):
    step(events, stream, 2)
    stream.run()
    events.mark(5, FORWARD)
    assert ms(events.columns(closed(4, merged=(1, 2, 3))), "forward") == [3]


def test_of_steps_that_became_one_nothing_is_told_where_one_is_not_known(events, stream):
    step(events, stream, 1)
    stream.capturing = True  # of this one, nothing can be timed
    step(events, stream, 2)
    stream.capturing = False
    step(events, stream, 3)
    stream.run()
    events.mark(4, FORWARD)
    assert math.isnan(ms(events.columns(closed(3, merged=(1, 2))), "forward")[0])


def test_steps_that_became_one_have_the_times_of_all(events, stream):
    for serial in range(1, 5):
        step(events, stream, serial, forward=serial)
    stream.run()
    events.mark(5, FORWARD)
    one = closed(3, merged=(1, 2))
    columns = events.columns(one + closed(4))
    assert ms(columns, "forward") == [6, 4]
    assert ms(columns, "backward") == [15, 5]


def test_a_phase_inside_another_has_its_time_alone(events, stream):
    """In the second step, too, whose events were used in the first."""
    for serial in (1, 2):
        nested = ((OPTIMIZER, 1), (FORWARD, 2), (OPTIMIZER, 4), (BACKWARD, 8), (OTHER, 0))
        for phase, work in nested:
            events.mark(serial, phase)
            stream.work(work * serial)
        stream.run()
    events.mark(3, FORWARD)
    columns = events.columns(closed(1, 2))
    assert ms(columns, "optimizer") == [5, 10]
    assert ms(columns, "forward") == [2, 4]
    assert ms(columns, "backward") == [8, 16]


def test_nothing_is_waited_for_and_a_step_is_ready_when_the_gpu_is_done(events, stream):
    step(events, stream, 1)
    assert not events.ready(*closed(1))
    stream.run(5)  # up to the begin of backward
    events.mark(2, FORWARD)
    assert not events.ready(*closed(1))
    assert events.ready(*closed(0))
    stream.run()
    events.mark(2, OTHER)
    assert events.ready(*closed(1))
    assert not events.ready(*closed(2))


def test_a_step_that_is_asked_for_too_early_is_null_and_never_counts_later(events, stream):
    step(events, stream, 1)
    step(events, stream, 2)
    stream.run(3)  # forward of the first step alone
    events.mark(3, FORWARD)
    columns = events.columns(closed(1))
    assert math.isnan(columns["gpu/forward_ns"][0])
    stream.run()
    events.mark(3, OTHER)
    assert ms(events.columns(closed(2)), "forward") == [3]
    assert 1 not in events._times


def test_a_step_without_phases_on_the_gpu_is_null_and_one_without_a_phase_has_none(events, stream):
    events.mark(2, FORWARD)
    stream.work(2)
    events.mark(2, BACKWARD)
    stream.work(1)
    events.mark(2, OTHER)
    events.mark(3, FORWARD)
    stream.work(3)
    events.mark(3, OTHER)
    stream.run()
    events.mark(4, FORWARD)
    columns = events.columns(closed(1, 2, 3))
    assert np.isnan(columns["gpu/forward_ns"][0])
    assert (columns["gpu/backward_ns"][1:] / 1e6).tolist() == [1, 0]


def test_events_are_used_again(events, stream):
    for serial in range(1, 500):
        step(events, stream, serial)
        stream.run()
        events.columns(closed(serial - 1))
    assert stream.made <= 12
    assert len(events._times) <= 2


def test_a_gpu_that_does_not_move_costs_no_more_than_a_bounded_number_of_events(events, stream):
    for serial in range(1, 2000):
        step(events, stream, serial)
    assert stream.made <= 2 * module.MAX_PENDING + 2
    stream.run()
    step(events, stream, 2000)
    columns = events.columns(closed(1, 1999))
    assert ms(columns, "forward")[0] == 3
    assert math.isnan(columns["gpu/forward_ns"][1])


def test_during_a_capture_nothing_is_asked_and_the_step_is_null(events, stream):
    step(events, stream, 1)
    events.mark(2, FORWARD)
    stream.capturing = True
    events.mark(2, OTHER)
    events.mark(2, BACKWARD)
    events.mark(2, OTHER)
    stream.capturing = False
    step(events, stream, 3)
    stream.run()
    events.mark(4, FORWARD)
    columns = events.columns(closed(1, 2, 3))
    assert ms(columns, "forward")[::2] == [3, 3]
    assert math.isnan(columns["gpu/forward_ns"][1])


def test_a_fault_of_cuda_ends_the_timing_and_reaches_nobody(events, stream):
    step(events, stream, 1)
    stream.lost = True
    events.mark(2, FORWARD)
    stream.lost = False
    step(events, stream, 2)
    stream.run()
    events.close()
    assert events.columns(closed(1, 2)) == {}
    assert events.ready(*closed(2))


def test_a_phase_that_begins_in_a_stream_that_is_behind_ends_no_timing(stream):
    side = Stream()
    made = iter([side.event(), stream.event(), stream.event(), stream.event()])
    events = PhaseEvents(lambda: next(made), lambda: False)
    events.mark(1, TRANSFER)
    side.work(2.0)
    events.mark(1, FORWARD)
    stream.work(3.0)
    events.mark(1, OTHER)
    stream.run()
    events.mark(2, FORWARD)
    assert not events.ready(*closed(1))
    side.run()
    events.mark(2, OTHER)
    assert ms(events.columns(closed(1)), "forward") == [3]


def test_at_the_end_what_is_done_is_taken_and_what_is_not_is_null(events, stream):
    step(events, stream, 1)
    stream.run()
    step(events, stream, 2)
    events.close()
    events.close()
    columns = events.columns(closed(1, 2))
    assert ms(columns, "forward")[0] == 3
    assert math.isnan(columns["gpu/forward_ns"][1])


def test_phases_without_gpu_work_cost_no_event(events, stream):
    for phase in (Phase.LOADER, Phase.VALIDATION, Phase.LOGGING, Phase.OTHER):
        events.mark(1, phase.value)
    assert stream.made == 0


def test_marks_come_from_the_clock_with_the_serial_of_the_step(events, stream):
    clock = StepClock([0])
    clock.on_switch = events.mark
    for work in (3, 4):
        clock.begin_fetch()
        clock.end_fetch()
        clock.begin_batch()
        clock.enter(FORWARD)
        stream.work(work)
        clock.leave()
        clock.end_step()
    clock.finish()
    stream.run()
    events.close()
    columns = events.columns(list(map(ClosedStep, clock.closed)))
    assert np.isnan(columns["gpu/forward_ns"][0])  # the set-up
    assert (columns["gpu/forward_ns"][1:] / 1e6).tolist() == [3, 4]
