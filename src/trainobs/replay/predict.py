"""Predictions: the ratio of two replays, as an interval, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from trainobs.core.errors import TrainobsError
from trainobs.core.text import percent
from trainobs.replay.changes import KNOWN, Change, with_changes
from trainobs.replay.simulate import simulate
from trainobs.replay.trace import Trace

WITHIN = 0.10
"""How far the replay of the run as it was may be off; more, if the run itself is as uneven. A
replay after a change is believed no better."""

LEAST_MARGIN = 0.03
"""Of every prediction: runs of the same training differ by that on a quiet machine."""


LACKED = 1.5
"""How many times as long as it was seen to the training thread may compute and lack CPUs in a
replay: well above what measures of its time are off by."""


ALL_KNOWN: Mapping[str, str] = {}

LESS_READ = {"cached", "device"}
"""Changes that help where the device lets through so many bytes a second."""


class Model(NamedTuple):
    """What the record does not tell.

    Attributes:
        shared: whether what makers of batches sleep for gives no more to several of them.
        yielding: whether others give their CPUs to this run where it wants more than it has.
    """

    shared: bool
    yielding: bool


MODELS = tuple(Model(shared, yielding) for yielding in (False, True) for shared in (True, False))
"""Those that bring forth the run as it was may all be right."""


class Prediction(NamedTuple):
    """What a step would take.

    Attributes:
        low: least, ns.
        high: most, ns.
        gain: least and most speed-up over the run as it was.
    """

    low: float
    high: float
    gain: tuple[float, float]


class Replay:
    """The replay of a run, which first has to bring forth the run as it was.

    Args:
        trace: of the run, or of a sample of it.
        run_ns: time of a step, over all of the run; its batches may be several.
        unknown: changes that the trace tells too little of: name -> why.

    Attributes:
        refused: why nothing is predicted, or None.
        fit: replayed time of a step over the measured one, of the model that is closest.
    """

    def __init__(self, trace: Trace, run_ns: float, unknown: Mapping[str, str] = ALL_KNOWN) -> None:
        self.trace = trace
        self.unknown = unknown
        self._base = {model: self._mean(trace, model) for model in _models_of(trace)}
        self._models = tuple(m for m in self._base if self._off(m) <= self._tolerance())
        self.fit = self._base[min(self._base, key=self._off)] / trace.step_ns
        self.refused: str | None = None
        if abs(trace.step_ns / run_ns - 1.0) > 2 * WITHIN:
            times = trace.step_ns / run_ns
            self.refused = (
                f"the steps kept for a replay took {times:.2f} times as long as the others"
            )
        elif not self._models:
            off, most = percent(abs(self.fit - 1.0)), percent(self._tolerance())
            self.refused = f"the replay of the run as it was is off by {off} (limit {most})"

    def can_try(self, name: str) -> bool:
        """Whether a change can be made to the run, and predicted."""
        return name not in self.unknown and KNOWN[name].is_possible(self.trace)

    def gain(self, trace: Trace) -> float:
        """Speed-up if the run were another trace: the least, over the models that fit."""
        return min(self._base[m] / max(1.0, self._mean(trace, m)) for m in self._models)

    def predict(self, changes: Sequence[Change]) -> Prediction:
        """What a step takes after some changes; only where nothing is `refused`.

        Raises:
            TrainobsError: one of them cannot be made, or is not predicted.
        """
        measured = self.trace.step_ns
        for change in changes:
            if change.name in self.unknown:
                raise TrainobsError(
                    failed=f"{change} cannot be predicted.",
                    found=self.unknown[change.name],
                    do="try it, and compare: trainobs compare OLD NEW",
                )
        found = [
            (self._mean(after, model) / self._base[model], self._off(model))
            for after in with_changes(self.trace, changes)
            for model in self._models
        ]
        reads_as_before = not LESS_READ & {change.name for change in changes}
        if self.trace.is_paced and reads_as_before:
            found.append((1.0, 0.0))
        low = min(ratio * (1 - _margin(ratio, off)) for ratio, off in found)
        high = max(ratio * (1 + _margin(ratio, off)) for ratio, off in found)
        if self.trace.may_be_paced and reads_as_before:
            high = max(high, 1.0)
        return Prediction(low * measured, high * measured, (1 / high, 1 / low))

    def _mean(self, trace: Trace, model: Model) -> float:
        cpus = trace.most_cpus if model.yielding else trace.cpus
        times = simulate(replace(trace, cpus=cpus), shared=model.shared)
        return self.trace.batches * float(times[self.trace.settled].mean())

    def _off(self, model: Model) -> float:
        return abs(self._base[model] / self.trace.step_ns - 1.0)

    def _tolerance(self) -> float:
        """As far as quarters of the run differ, but no more than twice what is allowed anyway."""
        steps = self.trace.step[self.trace.settled]
        quarters = [part.mean() for part in np.array_split(steps, 4)]
        spread = float(np.std(quarters) / steps.mean())
        return min(2 * WITHIN, max(WITHIN, spread))


def _models_of(trace: Trace) -> list[Model]:
    """Those that differ for a run."""
    sleeps = trace.make_device.any() or trace.make_sleep.any()
    given = {trace.most_cpus > trace.cpus, _gave_way(trace)}
    return [m for m in MODELS if (m.shared or sleeps) and m.yielding in given]


def _gave_way(trace: Trace) -> bool:
    """Whether others surely did: else the run would have lacked CPUs for much longer than it did.

    They had what it left idle, then.
    """
    computed = trace.cpu.mean()
    beside = min(1.0, trace.cpus / (1.0 + trace.side))
    most = LACKED * (computed + trace.queued + trace.awaits.mean() + trace.make_queued)
    return trace.most_cpus > trace.cpus and bool(computed / beside > most)


def _margin(ratio: float, off: float) -> float:
    """Of a ratio of two replays: what they may be off by weighs as far as they differ."""
    return LEAST_MARGIN + max(WITHIN, off) * min(1.0, 2 * abs(1.0 - ratio))
