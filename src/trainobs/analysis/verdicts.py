"""Verdicts on a run log: on each epoch, and on the whole run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict, cast

import numpy as np
import numpy.typing as npt

from trainobs.analysis.ranks.side_by_side import common_steps
from trainobs.analysis.stored import lacking
from trainobs.core.catalogue import named_phase_metric
from trainobs.core.records import SETUP
from trainobs.replay.predict import Replay
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES, STEPS
from trainobs.verdict.batch_columns import first_of, known_of
from trainobs.verdict.facts import Facts, facts_from
from trainobs.verdict.metric_names import BATCH_NEEDED, INPUTS, LOADER, NAMED, STEP
from trainobs.verdict.rules import judge, judge_by
from trainobs.verdict.sentence import lines, notes, sentence
from trainobs.verdict.summed_steps import StepInputs, SummedSteps
from trainobs.verdict.verdict import Verdict

_WAIT = "ranks/wait_ns"


class ToldEvidence(TypedDict):
    """See `verdict.verdict.Evidence`."""

    metric: str
    value: float
    unit: str
    share: float | None


class ToldAdvice(TypedDict):
    """See `verdict.verdict.Advice`."""

    text: str
    gain: tuple[float, float | None]
    change: dict[str, float | bool]


class ToldVerdict(TypedDict):
    """What a report tells of a verdict; in it is all of `Verdict.as_json`.

    Attributes:
        text: of the report, a list of lines, the first of which is the verdict in a sentence.
        notes: those of its lines that say what else to know.
    """

    kind: str | None
    cause: str | None
    evidence: list[ToldEvidence]
    advice: ToldAdvice | None
    abstained_because: str | None
    text: list[str]
    notes: list[str]


class ToldVerdicts(TypedDict):
    """The verdict on all steps, and those on each epoch."""

    run: ToldVerdict
    epochs: dict[int, ToldVerdict]


def verdicts(run: RunLog, steps: Steps, replay: Replay | None) -> ToldVerdicts:
    """Verdicts on one rank of a run.

    Args:
        run: its log, which says which rank.
        steps: what `summed_steps` found of that rank.
        replay: the replay of all of them, where there is one.
    """
    facts = _facts(run)
    whole = _told(judge_by(replay, steps.run, facts))
    if len(steps.epochs) == 1:
        return {"run": whole, "epochs": dict.fromkeys(steps.epochs, whole)}
    of_epochs = {epoch: _told(judge(summed, facts)) for epoch, summed in steps.epochs.items()}
    return {"run": whole, "epochs": of_epochs}


class Steps(NamedTuple):
    """The steps of a rank, as verdicts take them."""

    run: SummedSteps
    epochs: dict[int, SummedSteps]


def summed_steps(run: RunLog) -> Steps:
    """The steps of a run, all of which are there, and of each of its epochs; see `AllSteps`."""
    rank = run.rank
    found = AllSteps(rank, is_part=False, batches_are_whole=not lacking(run, rank, BATCHES))
    for part in rank.parts(STEPS, found.names):  # a long run's columns would take 2 GB
        found.take(part)
    return found.steps


class AllSteps:
    """The steps of a run, and those of each of its epochs, taken part by part.

    The first step of the run is left out, unless it is the only one: in it workers, caches and
    kernels are made.

    Args:
        rank: whose steps they are.
        is_part: whether these are only the newest, which have no first one.
        batches_are_whole: whether its batches are all there; else nothing is known of any.

    Attributes:
        names: columns of `STEPS` that are looked at.
        steps: those that were taken.
    """

    def __init__(self, rank: RankLog, *, is_part: bool, batches_are_whole: bool) -> None:
        is_taken = rank.step() != SETUP
        steps, start_ns = rank.step()[is_taken], rank.start_ns()[is_taken]
        batches = rank.columns(BATCHES, BATCH_NEEDED)
        if not batches_are_whole:
            batches = {name: column[:0] for name, column in batches.items()}
        of_batches = known_of(steps, start_ns, rank.metric(LOADER)[is_taken], batches)
        first_batch: Mapping[str, float] = {}
        if is_taken.sum() > 1 and not is_part:
            # Only others tell which loader the first one trained with.
            first_batch = first_of(of_batches)
            of_batches = {name: column[1:] for name, column in of_batches.items()}
            is_taken[is_taken.argmax()] = False
        self._is_taken = is_taken
        self._numbers, self._epochs = rank.step()[is_taken], rank.epoch()[is_taken]
        self._of_batches = of_batches
        self._row = self._taken = 0
        run = SummedSteps()
        run.first_batch, run.is_whole = first_batch, not is_part
        of_epochs = {epoch: SummedSteps() for epoch in np.unique(self._epochs).tolist()}
        if len(of_epochs) == 1:
            of_epochs = dict.fromkeys(of_epochs, run)
        self.steps = Steps(run, of_epochs)
        metrics = (name for name in INPUTS if not name.startswith("batch/") and name != NAMED)
        self.names = (*metrics, *map(named_phase_metric, rank.phases))

    def take(self, part: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take the next part of the table."""
        own = self._is_taken[self._row : self._row + len(part[STEP])]
        rows = slice(self._taken, self._taken + int(own.sum()))
        self._row, self._taken = self._row + len(own), rows.stop
        columns = {name: part[name][own] for name in self.names}
        columns |= {name: column[rows] for name, column in self._of_batches.items()}
        inputs = StepInputs(columns)
        self.steps.run.take(inputs, self._epochs[rows], self._numbers[rows])
        if len(self.steps.epochs) > 1:
            _take_by_epoch(self.steps.epochs, inputs, self._epochs[rows], self._numbers[rows])


def _take_by_epoch(
    of_epochs: Mapping[int, SummedSteps],
    inputs: StepInputs,
    epochs: npt.NDArray[np.int64],
    steps: npt.NDArray[np.int64],
) -> None:
    begins = np.flatnonzero(np.diff(epochs, prepend=-2)).tolist()
    for first, end in pairwise([*begins, len(epochs)]):
        rows = slice(first, end)
        of_epochs[int(epochs[first])].take(inputs[rows], epochs[rows], steps[rows])


def _told(verdict: Verdict) -> ToldVerdict:
    told = {"text": [sentence(verdict), *lines(verdict)], "notes": list(notes(verdict))}
    return cast("ToldVerdict", verdict.as_json() | told)


def _facts(run: RunLog) -> Facts:
    return replace(facts_from(run.info), others_wait_ns=_waits(run.rank, run.ranks.values()))


def _waits(own: RankLog, ranks: Iterable[RankLog]) -> dict[int, float]:
    """Time in collectives per step of ranks that may wait for this one, or it for them.

    A step that the other did not take counts as one in which it waited as long: it had ended.
    """
    waits, slept = {}, own.metric(_WAIT)
    known = np.isfinite(slept) & (own.step() != SETUP)
    for other in (rank for rank in ranks if rank is not own):
        with other.keeping(STEPS, ("step", "epoch", "start_ns", _WAIT)):
            here, there, together = common_steps(own, other)
            waited = other.metric(_WAIT)
        if not together:
            continue
        longer = (slept[here] - waited[there])[known[here]]
        longer = longer[np.isfinite(longer)]
        if len(longer):
            waits[other.rank] = float(slept[known].mean() - longer.sum() / known.sum())
    return waits
