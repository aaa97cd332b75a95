"""Steps of a loop that marks none, and in which no optimizer steps: one from each fetch.

Whether that is so is known late: under gradient accumulation the first mark, or step of an
optimizer, comes after several fetches. So the first steps that were taken from fetches are held
back, and become one if it comes.
"""

from __future__ import annotations

import weakref

from trainobs.core.records import SETUP
from trainobs.steps.closed_step import ClosedStep

MAX_HELD = 31
"""Steps held back: with the one that goes on 32 batches, a quarter of the kernel's ring."""

MAX_HELD_NS = 120_000_000_000
"""How long they are held back: a run that is killed loses them."""


class FetchSteps:
    """Says which fetches end steps, and holds the first of these steps back.

    Attributes:
        count: steps that were taken from fetches, and will not become one any more.
        took_ns: all that such steps took that are over.
        leader: the pass whose fetches end steps.
        has_led: whether there was one.
        in_phases: whether a batch was fetched in a pass that began inside of a phase, so that it
            could not lead; a validation is none.
        validated: whether a pass over a loader that was given began inside of a validation.
    """

    def __init__(self) -> None:
        self.count = 0
        self.took_ns = 0
        self.leader: object | None = None
        self.has_led = self.in_phases = self.validated = False
        self._led: object | None = None
        self._held: list[ClosedStep] | None = []  # None: it was decided

    @property
    def loader(self) -> object | None:
        """The loader of the pass that leads, where it is known."""
        return self._led() if isinstance(self._led, weakref.ref) else self._led

    def lead(self, one: object, *, trains: bool, of: object | None = None) -> bool:
        """Whether the fetches of a pass over a loader may end steps.

        Those of the outermost pass do, and not those of one that begins while it goes on. One over
        the same loader takes over: the other was broken off, as in `next(iter(loader))`.

        Args:
            one: the pass; to be told to `follow` when it is over.
            trains: whether gradients are taken in it; a pass without is none of training.
            of: what stands for the loader, where it is known; the same for each pass over it.
        """
        if not self.may_lead(trains=trains, of=of):
            return False
        self.leader, self._led, self.has_led = one, of, True
        return True

    def may_lead(self, *, trains: bool, of: object | None = None) -> bool:
        """Whether a pass that asked for its first batch now would lead."""
        return trains and (self.leader is None or (of is not None and self._led is of))

    def follow(self, one: object) -> None:
        """A pass is over; another one may lead."""
        if self.leader is one:
            self.leader = self._led = None

    def close(self, step: ClosedStep) -> list[ClosedStep]:
        """Take a step that a fetch ended; returns those that are steps for sure, oldest first."""
        if step.step == SETUP:
            return [step]
        self.took_ns += step.end_ns - step.start_ns
        if self._held is None:
            self.count += 1
            return [step]
        self._held.append(step)
        took_ns = step.end_ns - self._held[0].start_ns
        return self.release() if len(self._held) > MAX_HELD or took_ns > MAX_HELD_NS else []

    def release(self) -> list[ClosedStep]:
        """Hold back no more; returns what was held back."""
        held, self._held = self._held or [], None
        self.count += len(held)
        return held

    def marked(self) -> list[ClosedStep]:
        """The loop marks a step, and fetches end none any more; returns what belongs to it."""
        held, self._held = self._held or [], None
        return held
