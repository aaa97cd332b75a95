"""Two sides, each of one run or of several equal ones: is one faster, by how much, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

from trainobs.analysis import no_steps
from trainobs.analysis.comparison.changes import OTHERS, changes, mixed, others_share, predicted
from trainobs.analysis.comparison.conditions import Condition, conditions
from trainobs.analysis.comparison.intervals import SIDES, Gain, Intervals, PartDifference
from trainobs.analysis.comparison.part_means import (
    Part,
    RunMeans,
    causes_known,
    not_in_all,
    parts_of,
)
from trainobs.analysis.comparison.step_kinds import unlike
from trainobs.analysis.comparison.step_work import StepWork, work_of, work_ratio
from trainobs.analysis.observed import observed_by
from trainobs.analysis.stored import go_back, gone, missing_steps, rows_at_odds
from trainobs.analysis.summary import summarize
from trainobs.core.errors import TrainobsError, shown
from trainobs.core.labels import LABELS, label_of
from trainobs.core.records import SETUP
from trainobs.core.text import counted
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import STEPS
from trainobs.verdict.metric_names import LOADER, STEP


class ComparedRun(TypedDict):
    """One of the runs; `unreadable` is file -> why."""

    run: str
    steps: int
    step_ns: float
    rank: int
    ranks: int
    level: str | None
    observed_by: str
    outcome: str | None
    unreadable: dict[str, str]


class Comparison(Gain):
    """Runs of A compared with those of B; what is unknown is None.

    Attributes:
        per: "step"; "sample" or "batch", and `work` says why, where their steps take different
            numbers of these: the gain is that of the time of one.
        changes: name -> pair, of settings that differ.
        predicted: least and most gain of these changes by a replay of the first run of A, or None
            and `why_not`.
        left_out: what that leaves room for, in words.
        holds: whether `gain` lies in it; None where the interval is wider.
        runs: of "A" and "B".
        notes: sentences on what else to know.
    """

    per: str
    work: str | None
    parts: list[PartDifference]
    conditions: list[Condition]
    changes: dict[str, list[Any]]
    predicted: list[float] | None
    why_not: str | None
    left_out: str | None
    holds: bool | None
    runs: dict[str, list[ComparedRun]]
    notes: list[str]


def compare(old: Sequence[RunLog], new: Sequence[RunLog]) -> Comparison:
    """Compare runs, `old` (A) with `new` (B); of each run its lowest rank.

    Raises:
        TrainobsError: a side has no runs, a run was given twice, or has fewer than two steps.
    """
    sides = (old, new)
    _refuse(old, new)
    means = [[_means_of(run) for run in side] for side in sides]
    every = [*means[0], *means[1]]
    found = changes(old, new)
    others = [others_share(run) for run in (*old, *new)]
    is_in_turn = _are_in_turn(old, new)
    works = [[work_of(run) for run in side] for side in sides]
    work = work_ratio(*works)
    interval = Intervals(
        means, others, work, is_in_turn=is_in_turn, unlike=unlike(old, new) or work.unknown
    )
    gain, parts = interval.gain(), parts_of(every)
    prediction = predicted(old[0], found)
    return {
        **gain,
        "per": work.unit if gain["gain"] else "step",
        "work": (gain["gain"] and work.told) or None,
        "parts": list(interval.told(parts, _rows(parts))),
        "conditions": conditions(old, new),
        "changes": found,
        "predicted": prediction.gain,
        "why_not": prediction.why_not,
        "left_out": prediction.left_out,
        "holds": _holds(prediction.gain, gain["gain"], gain["gain_interval"]),
        "runs": {
            name: [_run(*one) for one in zip(side, own, strict=True)]
            for name, side, own in zip(SIDES, sides, means, strict=True)
        },
        "notes": [*_notes(sides, works, means, found), *([_IN_TURN] if is_in_turn else [])],
    }


def _rows(parts: Sequence[Part]) -> int:
    """Parts, and those of parts, that took any time."""
    taken = sum(any(one.all for one in part.runs) for part in parts)
    return taken + sum(_rows(part.parts) for part in parts)


def _holds(
    prediction: Sequence[float] | None, gain: float | None, interval: Sequence[float] | None
) -> bool | None:
    if prediction is None or gain is None or interval is None:
        return None
    if interval[1] < prediction[0] or interval[0] > prediction[1]:
        return False
    is_shown = interval[0] > 1.0 or interval[1] < 1.0  # else nothing came that could be told
    return True if is_shown and prediction[0] <= gain <= prediction[1] else None


def _refuse(old: Sequence[RunLog], new: Sequence[RunLog]) -> None:
    """Refuse what is no comparison."""
    for name, side in zip(SIDES, (old, new), strict=True):
        if not side:
            raise _no_comparison(f"no run for {name}", "give at least one run for each side")
    seen: dict[object, RunLog] = {}
    for run in (*old, *new):
        identity = _identity(run)
        if identity in seen:
            paths = f"{shown(str(seen[identity].path))} and {shown(str(run.path))}"
            raise _no_comparison(f"{paths} are the same run", "give each run once")
        seen[identity] = run


def _identity(run: RunLog) -> object:
    """What no other run has, and copies of it have: when it began on its host."""
    clock = run.info["clock"]
    began = clock.get("wall_ns"), clock.get("monotonic_ns")
    host = run.info.get("host", {}).get("hostname")
    return str(run.path.resolve()) if None in began else (host, *began)


_IN_TURN = (
    "the runs of A and B did not alternate, or nobody knows when they were made: alternate them"
)


def _are_in_turn(old: Sequence[RunLog], new: Sequence[RunLog]) -> bool:
    """Whether several runs a side were made one side after the other, or nobody knows."""
    if len(old) == len(new) == 1:  # whatever their order
        return False
    a, b = ([run.info["clock"].get("wall_ns", 0) for run in side] for side in (old, new))
    return bool(max(a) <= min(b) or max(b) <= min(a))


def _means_of(run: RunLog) -> RunMeans:
    means = RunMeans.from_run(run)
    if not means.steps or means.of[STEP].all <= 0:
        found = f"{shown(str(run.path))} has fewer than two steps"
        if not (run.rank.step() != SETUP).any():
            found += f": {no_steps.reason(summarize(run), 'in its report').removesuffix('.')}"
        raise _no_comparison(found, "give runs that trained for a while")
    return means


def _no_comparison(found: str, do: str) -> TrainobsError:
    return TrainobsError(failed="The runs cannot be compared.", found=found, do=do)


def _run(run: RunLog, means: RunMeans) -> ComparedRun:
    return {
        "run": str(run.path),
        "steps": means.steps,
        "step_ns": means.of[STEP].all,
        "rank": run.rank.rank,
        "ranks": len(run.ranks),
        "level": run.info.get("level"),
        "observed_by": observed_by(run.info.get("level"), run.info.get("capabilities")),
        "outcome": (run.info.get("summary") or {}).get("outcome"),
        "unreadable": {str(path): why for path, why in run.unreadable.items()},
    }


def _notes(
    sides: Sequence[Sequence[RunLog]],
    works: Sequence[Sequence[StepWork]],
    means: Sequence[Sequence[RunMeans]],
    found: Mapping[str, Sequence[Any]],
) -> Iterator[str]:
    """What else to know, most important first."""
    if OTHERS in found:
        more = SIDES[found[OTHERS][1] > found[OTHERS][0]]
        yield f"other processes took more of the CPUs of {more}: a difference may be theirs"
    every = [run for side in sides for run in side]
    if any(work.has_loaders and work.batches is None for side in works for work in side):
        yield "how many batches a step has is not known of all runs: it is taken to be the same"
    for run in every:
        if go_back(run, run.rank) or STEPS in rows_at_odds(run, run.rank):
            yield f"steps of {run.path} are there twice, or those of another run: trust no number"
        yield from _lost(run)
    if any(len(run.ranks) > 1 for run in every):
        yield "of each run its lowest rank is compared"
    for name, side in zip(SIDES, sides, strict=True):
        if names := mixed(side):
            yield f"the runs of {name} are taken as equal, but differ in {', '.join(names)}"
    yield from _unknown(means)


def _lost(run: RunLog) -> Iterator[str]:
    """What files of a run are gone or cannot be read, and whether steps are missing for that."""
    missing, own = missing_steps(run, run.rank), run.rank.files
    if missing:
        yield f"{counted(missing, 'step')} of {run.path} {'is' if missing == 1 else 'are'} missing"
    elif missing is None or own.unreadable(STEPS).keys() - set(own[STEPS]):
        yield f"steps of {run.path} may be missing: files of steps are gone or cannot be read"
    if files := {*run.unreadable, *gone(run, run.rank)}:
        yield f"files of {run.path} that are gone or cannot be read: {len(files)}"


def _unknown(means: Sequence[Sequence[RunMeans]]) -> Iterator[str]:
    """What is known of one side alone, so that it cannot be compared."""
    every = [run for side in means for run in side]
    for name in not_in_all(every):
        who = _those(means, lambda run, name=name: name in run.of)  # type: ignore[misc]
        yield f"{label_of(name)} is marked in {who} alone, and so is within everything else here"
    if any(map(causes_known, every)) and not all(map(causes_known, every)):
        yield f"what {LABELS[LOADER]} was for is known of {_those(means, causes_known)} alone"


def _those(means: Sequence[Sequence[RunMeans]], has: Callable[[RunMeans], bool]) -> str:
    sides = [name for name, side in zip(SIDES, means, strict=True) if all(map(has, side))]
    return sides[0] if sides else "some of the runs"
