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
        number = f"{self.count:.3g}"
        return f"{number} {one if number == '1' else many}"


def events_of(run: RunLog) -> dict[str, float]:
    """How many of each event a step had; nothing where steps were marked, or found from inside."""
    note = run.info.get("settings", {}).get("attached") or {}
    return dict(note.get("events_per_step") or {})


def unlike(old: Sequence[RunLog], new: Sequence[RunLog]) -> str:
    """Why steps of A and of B are not the same thing, or those of one side; "" if they are."""
    sides = ["A"] * len(old) + ["B"] * len(new)
    found = [(side, _kind_of(run)) for side, run in zip(sides, (*old, *new), strict=True)]
    seen = [(side, kind) for side, kind in found if kind is not None]
    for side, kind in seen:
        if not kind.is_like(seen[0][1]):
            whose = f"another of {side}" if side == seen[0][0] else f"one of {side}"
            return f"a step of {seen[0][0]} has {seen[0][1].told()}, and {whose} has {kind.told()}"
        if len(seen) < len(found) and not kind.is_like(StepKind("optimizer", 1.0)):
            return f"a step of {side} has {kind.told()}; of others that is not known"
    return _of_several_batches(list(zip(sides, (*old, *new), strict=True)))


def _of_several_batches(runs: Sequence[tuple[str, RunLog]]) -> str:
    """Why steps of the optimizer are of different numbers of batches; "" if that is not seen."""
    passes = [(side, events_of(run).get("backward", 0.0)) for side, run in runs]
    first = StepKind("backward", passes[0][1])
    for side, count in passes[1:]:
        other = StepKind("backward", count)
        if first.count and count and not other.is_like(first):
            return f"a step of A has {first.told()}, and one of {side} has {other.told()}"
    return ""


def _kind_of(run: RunLog) -> StepKind | None:
    """What a step of a run is, as seen from outside; None where the training told its steps."""
    events = events_of(run)
    event = "optimizer" if events.get("optimizer") else "backward"
    return StepKind(event, events[event]) if event in events else None
