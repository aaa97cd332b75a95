"""What share of a step's time grows with the bytes that its embedding lookups read."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
import numpy.typing as npt

from trainobs.core.records import SETUP
from trainobs.runlog.rank import RankLog

Floats = npt.NDArray[np.float64]

MIN_STEPS = 100
"""Steps that it takes to speak of it."""

MIN_SPREAD = 0.005
"""How far the bytes of steps with equally many bags must spread about their mean, as a share: with
less, whatever else changes a little from step to step would be taken for them."""

STALLED = 3.0
"""Times the median time of a step above which a step was held up by something else."""

Z99 = 2.5758
"""Quantile of the normal distribution for an interval that holds in 99 of 100 cases."""

_COMPUTE = ("phase/forward_ns", "phase/backward_ns", "phase/optimizer_ns")
_ELSEWHERE = ("loader/wait_ns", "phase/checkpoint_ns", "phase/validation_ns", "phase/logging_ns")


class _Known(TypedDict):
    known: bool


class ByBytes(_Known, total=False):
    """What share of a step grows with the bytes that its lookups read.

    Attributes:
        known: whether that can be told; and why not, where it cannot.
        ratio, low_ratio, high_ratio: the share, and its bounds at 99 %.
        steps: that it was found from.
    """

    why: str
    ratio: float
    low_ratio: float
    high_ratio: float
    steps: int


def explained(rank: RankLog) -> ByBytes:
    """How much of the time of a step grows with the bytes that its lookups read.

    Steps whose inputs have more ids read more bytes. Their time (forward, backward and optimizer,
    or without these the step less what is known to be something else) is regressed on those bytes,
    by least squares; bags are regressed on as well, so that a batch with fewer inputs, of which
    everything takes less time, explains nothing. The slope times the mean of bytes is the estimate,
    its interval comes from White's errors, which hold where some steps vary more than others.

    Notes:
        Whatever else is done for each id (attention over a history) grows with these bytes too,
        and is in it. It takes a byte more to cost as much as the others, and so misses what lookups
        cost whatever their number. What runs beside the training thread (a GPU) shows only as far
        as it is waited for.
    """
    time_ns, step_ns, lookup_bytes, bags = _columns(rank)
    known = np.isfinite(time_ns) & np.isfinite(step_ns) & np.isfinite(lookup_bytes)
    known &= np.isfinite(bags)
    if known.any():
        known &= time_ns <= STALLED * np.median(time_ns[known])
    if known.sum() < MIN_STEPS:
        return _unknown(f"fewer than {MIN_STEPS} steps of which time and bytes are known")
    times, volume, others = time_ns[known], lookup_bytes[known], bags[known]
    base = [np.ones_like(times), *([others] if np.ptp(others) else [])]
    apart = volume - _fitted(np.stack(base, axis=1), volume)
    if volume.mean() <= 0 or apart.std() < MIN_SPREAD * volume.mean():
        return _unknown("steps with equally many bags read equally many bytes")
    slope, error = _slope(np.stack([*base, volume], axis=1), times)
    bounds = np.array([slope, slope - Z99 * error, slope + Z99 * error])
    ratio, low, high = bounds * volume.mean() / step_ns[known].mean()
    if low <= 0:
        return _unknown("whether steps that read more bytes take longer cannot be told from chance")
    if high > 1:
        return _unknown("the time of steps does not grow evenly with the bytes they read")
    return {
        "known": True,
        "ratio": float(ratio),
        "low_ratio": float(low),
        "high_ratio": float(high),
        "steps": len(times),
    }


def _unknown(why: str) -> ByBytes:
    return {"known": False, "why": why}


def _columns(rank: RankLog) -> tuple[Floats, Floats, Floats, Floats]:
    """Time spent on computing, time of the step, bytes and bags of each training step."""
    step = rank.step()
    training = step != SETUP
    numbers, rows = np.unique(step[training], return_inverse=True)
    sums = {name: np.zeros(len(numbers)) for name in ("bytes", "bag_count")}
    for part in rank.lookups(("step", *sums)):
        place = np.minimum(np.searchsorted(numbers, part["step"]), max(0, len(numbers) - 1))
        there = numbers[place] == part["step"] if len(numbers) else np.zeros(len(place), bool)
        for name, total in sums.items():
            np.add.at(total, place[there], part[name][there])
    step_ns = rank.metric("step/duration_ns")[training]
    phases = np.stack([rank.metric(name)[training] for name in _COMPUTE])
    rest = np.stack([rank.metric(name)[training] for name in _ELSEWHERE])
    marked = np.isfinite(phases).any(axis=0)
    computing = np.where(marked, np.nansum(phases, axis=0), step_ns - np.nansum(rest, axis=0))
    return computing, step_ns, sums["bytes"][rows], sums["bag_count"][rows]


def _fitted(columns: Floats, values: Floats) -> Floats:
    scaled = columns / np.abs(columns).max(axis=0)
    fitted: Floats = scaled @ np.linalg.lstsq(scaled, values, rcond=None)[0]
    return fitted


def _slope(columns: Floats, values: Floats) -> tuple[float, float]:
    """Slope of `values` along the last column, and its standard error (H. White, 1980; HC1)."""
    scale = np.abs(columns).max(axis=0)
    scaled = columns / scale
    inverse = np.linalg.pinv(scaled.T @ scaled)
    slopes = inverse @ (scaled.T @ values)
    rest = values - scaled @ slopes
    weighted = scaled * rest[:, None]
    freedom = len(values) / max(1, len(values) - columns.shape[1])
    variance = freedom * inverse @ (weighted.T @ weighted) @ inverse
    return float(slopes[-1] / scale[-1]), float(np.sqrt(variance[-1, -1]) / scale[-1])
