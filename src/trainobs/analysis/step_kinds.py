"""Whether the steps of runs are the same thing: of a process that marks none they were found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trainobs.runlog.reader import RunLog

_NEAR = 1.05
"""Ratio of what two steps had, up to which they are the same: the mean of a short run is not exact,
and a comparison is off by no more than that."""

_NAMES = {
    "optimizer": ("optimizer step", "optimizer steps"),
    "backward": ("backward pass", "backward passes"),
}


@dataclass(frozen=True)
class StepKind:
    """Of what a step was made.

    Attributes:
        event: "optimizer"; or "backward", where no optimizer was seen to step.
        count: how many of them a step had.
    """

    event: str
    count: float

    def is_like(self, other: StepKind) -> bool:
        """Whether steps of both are the same thing."""
        low, high = sorted((self.count, other.count))
        return self.event == other.event and high <= _NEAR * low

    def told(self) -> str:
        """What it had, in words."""
        one, many = _NAMES[self.event]
        number = round(self.count, 1)
        return f"{number:g} {one if number == 1 else many}"


def events_of(run: RunLog) -> dict[str, float]:
    """How many of each event a step had; nothing where steps were marked, or found from inside."""
    note = run.info.get("settings", {}).get("attached") or {}
    return dict(note.get("events_per_step") or {})


def unlike(old: Sequence[RunLog], new: Sequence[RunLog]) -> str:
    """Why steps of A and of B are not the same thing, or those of one side; "" if they are."""
    kinds = [_kind_of(run) for run in (*old, *new)]
    for number, kind in enumerate(kinds):
        if not kind.is_like(kinds[0]):
            whose = "another of A" if number < len(old) else "one of B"
            return f"a step of A has {kinds[0].told()}, and {whose} has {kind.told()}"
    return ""


def _kind_of(run: RunLog) -> StepKind:
    """What a step of a run is; one that is marked is that of an optimizer."""
    events = events_of(run)
    event = "optimizer" if events.get("optimizer", 1.0) else "backward"
    return StepKind(event, events.get(event, 1.0))
