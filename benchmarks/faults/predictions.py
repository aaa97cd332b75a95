"""Changes whose effect is predicted from a run log, and measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from faults.follow import followed, name_of
from faults.groups import Unavailable
from faults.runner import Failed, Kept, kept, run
from faults.setting import Setting
from trainobs.core.errors import TrainobsError

CLOSE = 0.20
"""Relative error up to which a prediction is good, if runs do not differ by more themselves."""

SPREADS = 2.0
"""Relative standard deviations of the changed run that an error may have."""


@dataclass(frozen=True)
class Before:
    """A setting, and changes to it whose effect is asked for."""

    name: str
    changes: tuple[Mapping[str, Any], ...]
    setting: Setting = field(default_factory=Setting)


def _before(name: str, *changes: Mapping[str, Any], **fields: Any) -> Before:
    return Before(name, changes, Setting().changed(**fields))


THROTTLED: dict[str, Any] = {"source": "files", "cold": True, "workers": 2, "steps": 60}

BEFORE = (
    _before("computes", {"workers": 2}, {"transform": 0.5}, item_cpu_ms=3),
    _before("computes_2", {"workers": 0}, {"workers": 1}, {"workers": 4}, workers=2, item_cpu_ms=3),
    _before("computes_0", {"workers": 1}, {"workers": 2}, workers=0, item_cpu_ms=2, steps=80),
    _before("hands_over", {"workers": 0}, workers=1, side=16, width=6, steps=400),
    _before("sleeps", {"workers": 2}, {"latency": 0.5}, item_sleep_ms=5),
    _before("sleeps_2", {"workers": 4}, {"workers": 1}, workers=2, item_sleep_ms=5),
    _before("answers", {"workers": 2}, {"latency": 0.5}, source="http", answer_ms=5, steps=60),
    _before(
        "throttled", {"device": 2}, {"cached": True}, {"workers": 4}, **THROTTLED, read_mb_s=20
    ),
    _before("throttled_40", {"device": 0.5}, **THROTTLED, read_mb_s=40),
    _before("bursts", {"prefetch": 8}, workers=2, prefetch=1, slow_every=10, slow_sleep_ms=300),
    _before(
        "saves",
        {"checkpoint": 0.0},
        {"checkpoint": "background"},
        checkpoint="blocking",
        checkpoint_mb=200,
    ),
    _before("starts", {"persistent": True}, workers=2, steps=6, epochs=20),
    _before("threads", {"threads": 1}, threads=2, workers=2, item_cpu_ms=3),
    _before("shares_work", {"threads": 1}, threads=2, width=32, steps=60),
    _before("one_thread", {"threads": 2}, threads=1, width=32, steps=60),
    _before("validates", {"validation": 0.5}, validate_every=20, validation_batches=20, steps=120),
)


@dataclass(frozen=True)
class Pair:
    """A run and the same after a change, in one round."""

    before: Before
    change: Mapping[str, Any]
    round: int

    @property
    def name(self) -> str:
        """The run and the change."""
        return f"{self.before.name}, {name_of(self.change)}"

    def places(self, folder: Path) -> tuple[Path, Path]:
        """Where the two are kept."""
        of_round = folder / f"round-{self.round}"
        return of_round / self.before.name, of_round / f"{self.before.name},{name_of(self.change)}"


def pairs(rounds: int) -> Iterator[Pair]:
    """All pairs, round by round."""
    for number in range(rounds):
        for before in BEFORE:
            for change in before.changes:
                yield Pair(before, change, number)


def run_pairs(folder: Path, rounds: int) -> None:
    """Run what is not kept yet."""
    for pair in pairs(rounds):
        first, second = pair.places(folder)
        for place, setting in (
            (first, pair.before.setting),
            (second, followed(pair.before.setting, pair.change)),
        ):
            try:
                step_ms = run(setting, place).step_ms
                print(f"{place.relative_to(folder)!s:<50}{step_ms:8.1f} ms a step", flush=True)
            except (Unavailable, Failed) as why:
                print(f"{place.relative_to(folder)!s:<50}{why}", flush=True)


def judge_pairs(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """What was predicted for each pair that is kept, and what was measured."""
    measured = [
        (pair, before, after)
        for pair in pairs(rounds)
        for first, second in [pair.places(folder)]
        if (before := kept(first)) and (after := kept(second))
    ]
    times: dict[str, list[float]] = {}
    for pair, _, after in measured:
        times.setdefault(pair.name, []).append(after.step_ms)
    return [
        _judged(pair, before, after, spread_of(times[pair.name]))
        for pair, before, after in measured
    ]


def spread_of(step_ms: list[float]) -> float:
    """Relative standard deviation of the same run in several rounds; of one nothing is known."""
    return stdev(step_ms) / mean(step_ms) if len(step_ms) > 1 else 0.0


def error_of(measured: float, low: float, high: float) -> float:
    """How far an interval is from what was measured, relative to that; 0 within the interval."""
    if low <= measured <= high:
        return 0.0
    return (low if measured < low else high) / measured - 1


def _judged(pair: Pair, before: Kept, after: Kept, spread: float) -> dict[str, Any]:
    # Only here: the rest of the suite does without predictions.
    from trainobs.analysis.whatif import predict

    found: dict[str, Any] = {
        "pair": pair.name,
        "round": pair.round,
        "before_ms": before.step_ms,
        "measured_ms": after.step_ms,
        "others_cpus": [before.others_cpus, after.others_cpus],
    }
    try:
        told = predict(before.run_dir, dict(pair.change))
    except TrainobsError as why:
        return found | {"result": "refused", "reason": str(why)}
    low_ms, high_ms = told.low / 1e6, told.high / 1e6
    error = error_of(after.step_ms, low_ms, high_ms)
    allowed = max(CLOSE, SPREADS * spread)
    return found | {
        "result": "good" if abs(error) <= allowed else "bad",
        "predicted_ms": [low_ms, high_ms],
        "error": error,
        "allowed": allowed,
    }


def lines_of(judged: list[dict[str, Any]]) -> Iterator[str]:
    """The same for people."""
    yield f"{'run, change':<34}{'before':>8}{'predicted':>18}{'measured':>9}{'error':>8}"
    for found in judged:
        told = "-"
        if "predicted_ms" in found:
            told = "{:.1f} to {:.1f}".format(*found["predicted_ms"])
        error = f"{found['error']:+.0%}" if "error" in found else ""
        yield (
            f"{found['pair']:<34}{found['before_ms']:8.1f}{told:>18}{found['measured_ms']:9.1f}"
            f"{error:>8}  {found['result']} {found.get('reason', '')}".rstrip()
        )
    good = sum(found["result"] == "good" for found in judged)
    refused = sum(found["result"] == "refused" for found in judged)
    errors = sorted(abs(found["error"]) for found in judged if "error" in found)
    middle = f"; median error {errors[len(errors) // 2]:.0%}" if errors else ""
    yield f"good: {good} of {len(judged) - refused}, {refused} refused{middle}"
