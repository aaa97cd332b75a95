"""What is in C does what its reference in Python does, whatever comes, and in whatever order."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import weakref
from array import array
from collections.abc import Callable
from typing import Any

import pytest

from tests.architecture.rooms import ROOT
from tests.steps.ticking import KINDS, Ticking
from trainobs.core.abi import Phase
from trainobs.steps import fast_path, fast_path_python
from trainobs.steps.clock import StepClock
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.states import StepsBy

pytestmark = pytest.mark.skipif(fast_path.LANGUAGE != "C", reason="the part in C is not built")


class Fault(Exception):
    pass


FAULTS = (Fault, KeyboardInterrupt, StopIteration, GeneratorExit)
"""What is raised in the midst of things."""


class Twin:
    """A step clock of one kind, with all that may fail in it, as chance has it."""

    def __init__(self, kind: str, seed: int) -> None:
        self.chance = random.Random(seed)
        self.told: list[object] = []
        self.ticking = Ticking(
            sample=self.maybe("sample") if seed % 3 == 0 else None,
            on_close=self.maybe("close"),
            kind=KINDS[kind],
        )
        self.clock = self.ticking.clock
        self.clock.steps_by = StepsBy.MARKS if seed % 2 else StepsBy.FETCHES
        self.clock.may_wait = seed % 5
        self.optimizes = seed % 4 < 2
        self.clock.on_cancel = self.maybe("cancel")
        if seed % 7 == 0:
            self.clock.on_switch = self.maybe("switch")

    def maybe(self, what: str) -> Callable[..., Any]:
        def told(*args: Any) -> list[int]:
            came = self.chance.randrange(20)
            if came == 0:
                raise self.chance.choice(FAULTS)(what)
            self.told.append((what, *args))
            if came == 1:  # as a signal's handler does
                self.clock.leave()
            elif came == 2:
                self.clock.end_step()
            if what == "sample" and self.chance.randrange(20) == 0:
                self.clock.name_phase(self.chance.choice("abcdef"))
            return [len(self.told)]

        return told

    def act(self) -> object:
        """Do anything."""
        chance, clock = self.chance, self.clock
        self.ticking.ns += chance.randrange(50)
        leads = chance.randrange(4) > 0
        if clock.steps_by == StepsBy.OPTIMIZER and chance.randrange(9) == 0:
            clock.supply.run_dry()
        number = chance.choice([None, None, chance.randrange(2**62)])
        phases = [*range(len(Phase)), *range(len(Phase), len(Phase) + len(clock.named))]
        actions: list[tuple[str, tuple[Any, ...]]] = [
            *[("enter", (chance.choice(phases),)), ("leave", ())] * 3,
            *[("begin_fetch", (leads,)), ("end_fetch", ())] * 3,
            *[("begin_batch", (number, chance.choice([None, 3]), leads)), ("end_step", ())] * 3,
            ("begin_step", (number,)) if chance.randrange(9) == 0 else ("end_step", ()),
            *[("explain", ()), ("doubt", ()), ("cancel", ()), ("begin_epoch", ())],
            *[("stepped", ()), ("begin_pass", ())] * (2 if self.optimizes else 0),
            ("by_marks", ()) if chance.randrange(99) == 0 else ("leave", ()),
            ("name_phase", (chance.choice("abcdef"),)),
            ("detach", ()) if chance.randrange(99) == 0 else ("leave", ()),
        ]
        return self.do(*chance.choice(actions))

    def do(self, name: str, args: tuple[Any, ...] = ()) -> object:
        """Call a method; what is to be seen of the clock then."""
        clock = self.clock
        try:
            came: object = getattr(clock, name)(*args)
        except FAULTS as error:
            came = repr(error)
        known = clock.serial, clock.step, clock.epoch, clock.phase, clock.in_phase
        more = clock.over, clock.unended_batches, clock.steps_by, clock.goes_on_ns
        more = *more, clock._state, clock.supply.is_out
        closed = [(step, type(step).__name__) for step in clock.closed]
        return name, came, known, more, closed, self.ticking.word.history[-3:], self.told[-3:]


@pytest.mark.parametrize("seed", range(70))
def test_the_clock_in_c_does_what_that_in_python_does(seed):
    ours, reference = Twin("C", seed), Twin("Python", seed)
    for _ in range(600):
        assert ours.act() == reference.act()
    for _ in range(20):  # until nothing fails
        assert ours.do("finish") == reference.do("finish")
    assert reference.clock.over
    assert len(reference.clock.closed) > 5


FLAGS = [
    *((1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 0, 0, 0), (1, 0, 1, 0, 0)),
    *((1, 0, 0, 1, 0), (1, 0, 0, 1, 1), (1, 0, 0, 0, 1)),
]
"""Of those that are told: `loop`, `opens`, `aside`, `found`, `unmatched`."""


class Watch:
    """Who is told of fetches, and by what: classes of C, or of Python."""

    def __init__(self, kind: str, seed: int) -> None:
        self.chance = chance = random.Random(seed)
        self.clock = clock = KINDS[kind]([0])
        self.clock.steps_by = StepsBy.MARKS if seed % 2 else StepsBy.FETCHES
        self.clock.other_loaders, self.clock.delivering = seed % 3 == 0, seed % 5 == 0
        module: Any = fast_path if kind == "C" else fast_path_python
        self.fetched: list[bytearray] = []
        fail = self.fail

        def fetched(fetch: bytearray) -> None:
            self.fetched.append(fetch)
            fail()

        class FetchListener(module.FetchListener):  # type: ignore[misc]
            def _ask_first(self) -> None:
                fail()
                self.leads = clock.fetches.lead(self._name, trains=True)
                self.epoch = 4

            def _look(self) -> None:
                fail()
                self.loop = chance.randrange(3) > 0
                if self.loop and chance.randrange(9) == 0:
                    clock.end_step()

        class PassTracker(module.PassTracker):  # type: ignore[misc]
            def _tell(self, watches: object) -> None:
                fail()
                self.watches = watches

            def _look_at(self, iterator: object) -> None:
                fail()
                self.exact = self.exact and chance.randrange(9) > 0

            def _note(self, iterator: object, batch: object) -> None:
                fail()
                self.due = self.number + chance.randrange(1, 9)

        self.at = PassTracker()
        self.at.loader, self.at.workers = 7, chance.randrange(4)
        self.at.exact, self.at.until_one_ends = chance.randrange(4) > 0, seed % 4 == 0
        self.at.due = seed % 2
        if seed % 6 == 0:
            self.at.marks = module.TaskMarks(0, 7, self.fail, ())
        self.listeners = []
        for loop, opens, aside, found, unmatched in FLAGS:
            listener = FetchListener()
            listener.clock, listener.fetched, listener._name = clock, fetched, object()
            listener.loop, listener.opens = bool(loop), bool(opens)
            listener.aside, listener.found = bool(aside), bool(found)
            listener.unmatched = bool(unmatched)
            self.listeners.append(listener)

    def fail(self, _: object = None) -> int:
        if self.chance.randrange(40) == 0:
            raise self.chance.choice(FAULTS)
        return 5

    def act(self) -> object:
        chance, clock, at = self.chance, self.clock, self.at
        at.listeners = tuple(chance.sample(self.listeners, chance.choice([1, 1, 2, 0])))
        if chance.randrange(5) == 0:
            clock.enter(chance.randrange(len(Phase)))
        came = ""
        try:
            told = at.ask(chance.choice([self, 1]))
            assert told == at.listeners
            at.got(told, None, object())
        except FAULTS as error:
            came = repr(error)
        if chance.randrange(3) == 0:
            clock.end_step()
        if chance.randrange(9) == 0:
            clock.begin_step()
        while clock.in_phase and chance.randrange(3):
            clock.leave()
        fetches = [array("q", bytes(fetch)) for fetch in self.fetched]
        untimed = [fetch[:5] + fetch[7:] for fetch in fetches]
        assert all(fetch[5] <= fetch[6] for fetch in fetches)
        steps = map(ClosedStep, clock.closed)
        closed = [(s.serial, s.step, s.epoch, s.switches, s.unexplained) for s in steps]
        known = [(bool(t.loop), bool(t.opened), int(t.leads), t.epoch) for t in self.listeners]
        where = at.number, at.exact, at.due, clock.phase, clock.unended_batches, clock.in_phase
        return came, untimed, closed, known, where


@pytest.mark.parametrize("seed", range(40))
def test_a_fetch_told_of_in_c_is_that_of_python(seed):
    ours, reference = Watch("C", seed), Watch("Python", seed)
    for _ in range(100):
        assert ours.act() == reference.act()


def test_what_is_kept_of_a_step_brings_no_full_garbage_collection_nearer():
    """Python counts what outlives two collections, and looks at everything when that is much."""
    watch = Watch("C", 3)
    for _ in range(100):
        watch.act()
    for kept in (watch.clock.closed[-1], watch.fetched[-1]):
        assert not gc.is_tracked(kept)
    assert fast_path.untracked(5) == fast_path_python.untracked(5) == 5  # is never tracked


@pytest.mark.parametrize("module", [fast_path, fast_path_python], ids=["C", "Python"])
def test_a_context_swallows_faults_of_its_own_and_lets_the_loops_through(module):
    handled: list[object] = []

    def fail(_: object = None) -> None:
        raise Fault("ours")

    def note() -> None:
        handled.append(sys.exc_info()[1])

    def interrupt(_: object = None) -> None:
        raise KeyboardInterrupt

    with module.CallbackContext(fail, 1, fail, note, "value") as value:
        assert value == "value"
    assert [str(error) for error in handled] == ["ours", "ours"]
    assert all(error.__traceback__ for error in handled)  # that of a signal's handler is looked for
    assert sys.exc_info() == (None, None, None)
    with pytest.raises(ZeroDivisionError), module.CallbackContext(None, None, None, note):
        raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt), module.CallbackContext(interrupt, 1, None, note):
        pass
    with pytest.raises(Fault), module.CallbackContext(fail, 1, None, fail):
        pass
    assert len(handled) == 2


def test_memory_that_the_kernel_reads_is_written_until_the_clock_lets_go_of_it():
    memory = bytearray(16)
    clock = StepClock(memoryview(memory).cast("Q"))
    clock.begin_batch()
    clock.enter(Phase.FORWARD)
    clock.read_for(5)
    assert memory == (1 << 8 | Phase.FORWARD).to_bytes(8, "little") + (5).to_bytes(8, "little")
    with pytest.raises(BufferError):
        memory.extend(b"1")
    clock.detach()
    clock.leave()
    memory.extend(b"1")  # nobody holds it any more
    assert memory[0] == Phase.FORWARD


def test_phases_nest_as_deep_as_a_loop_does():
    clock = StepClock([0])
    for _ in range(5000):
        clock.enter(Phase.FORWARD)
    for _ in range(5000):
        assert clock.in_phase
        clock.leave()
    assert not clock.in_phase


def test_what_c_cannot_hold_is_refused_and_changes_nothing():
    clock = StepClock([0])
    for phase in (-1, len(Phase), 64, 2**70):
        with pytest.raises((IndexError, OverflowError)):
            clock.enter(phase)
    with pytest.raises(ValueError, match="65 phases"):
        clock._phase_ns = [0] * 65
    with pytest.raises(TypeError):
        clock.begin_batch("one")
    with pytest.raises(AttributeError):
        clock.phase = 70
    assert (clock.phase, clock.in_phase, clock.step) == (Phase.OTHER, False, -1)


def test_a_clock_that_knows_who_knows_it_is_freed():
    class Owner:
        def __init__(self) -> None:
            self.clock = StepClock([0], on_close=self.told)
            self.context = fast_path.CallbackContext(
                self.clock.enter, 1, self.clock.leave, self.told
            )

        def told(self) -> None:
            pass

    owner = Owner()
    gone = weakref.ref(owner)
    del owner
    gc.collect()
    assert gone() is None


def test_an_environment_without_it_is_in_python():
    script = "from trainobs.steps import fast_path; print(fast_path.LANGUAGE)"
    for pure, language in {"": "C", "1": "Python"}.items():
        environment = {**os.environ, fast_path.PURE: pure}
        command = [sys.executable, "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
        assert done.stdout == f"{language}\n", done.stderr
