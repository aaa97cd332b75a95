"""Steps as the kernel writes them down, read back."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from trainobs.attach.clock import KernelStepClock, OverrunError
from trainobs.core.abi import RING, SEEN, Event, Phase
from trainobs.core.records import SETUP
from trainobs.steps.rule import Rule

RULE = Rule(Event.FETCH, Event.OPTIMIZER, "", tid=7)


class Kernel:
    """What bpf/seen.bpf.c does, by hand."""

    def __init__(self) -> None:
        self.seen = np.zeros(1, SEEN)
        self.word = memoryview(mmap.mmap(-1, 64)).cast("Q")
        self.clock = KernelStepClock(self.word, self.seen, now=lambda: 1000)

    def begin(self, at_ns: int, loader_ns: int = 0) -> None:
        serial = (self.word[0] >> 8) + 1
        step = self.seen[0]["steps"][serial % RING]
        step["begin_ns"], step["loader_ns"], step["counts"] = at_ns, loader_ns, (3, 1, 3)
        self.word[0] = serial << 8


def test_what_came_before_the_first_step_is_the_set_up() -> None:
    kernel = Kernel()
    kernel.clock.read()
    assert not kernel.clock.closed
    kernel.begin(5000)
    kernel.clock.read()
    (setup,) = kernel.clock.closed
    assert (setup.serial, setup.step, setup.start_ns, setup.end_ns) == (0, SETUP, 1000, 5000)
    assert kernel.clock.step_count == 0


def test_a_step_ends_where_the_next_begins_and_the_last_is_left_open() -> None:
    kernel = Kernel()
    kernel.clock.start(RULE, times_fetches=True)
    for at_ns, loader_ns in ((5000, 100), (6000, 200), (8000, 0)):
        kernel.begin(at_ns, loader_ns)
    kernel.clock.read()
    _, first, second = kernel.clock.closed
    assert [(s.step, s.start_ns, s.end_ns) for s in (first, second)] == [
        (0, 5000, 6000),
        (1, 6000, 8000),
    ]
    assert second.phase_ns[Phase.LOADER] == 200
    assert second.phase_ns[Phase.OTHER] == 1800
    assert kernel.clock.measured == {Phase.LOADER, Phase.OTHER}
    assert kernel.clock.counts.tolist() == [6, 2, 6]
    assert kernel.clock.step_count == 2


def test_no_phase_is_measured_where_the_end_of_fetches_is_not_seen() -> None:
    kernel = Kernel()
    kernel.clock.start(RULE, times_fetches=False)
    assert kernel.clock.measured == set()
    assert kernel.seen[0][["opens", "needs", "timed"]].tolist() == (4, 2, 0)


def test_a_ring_that_came_round_is_told() -> None:
    kernel = Kernel()
    for number in range(RING - 1):
        kernel.begin(2000 + number)
    with pytest.raises(OverrunError, match="127 steps"):
        kernel.clock.read()
    assert not kernel.clock.closed


def test_steps_that_come_meanwhile_wait_for_the_next_read() -> None:
    kernel = Kernel()
    numbers = []
    for number in range(1000):
        kernel.begin(2000 + number)
        if number % 100 == 99:
            kernel.clock.read()
            numbers += [step.step for step in kernel.clock.closed]
            kernel.clock.closed.clear()
    assert numbers == [SETUP, *range(999)]


def test_at_the_end_no_step_begins_any_more() -> None:
    kernel = Kernel()
    kernel.clock.start(RULE, times_fetches=True)
    kernel.begin(5000)
    kernel.clock.finish()
    assert kernel.seen[0][["opens", "timed"]].tolist() == (0, 0)
    assert [step.step for step in kernel.clock.closed] == [SETUP]
    assert kernel.clock.over
