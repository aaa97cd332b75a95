"""What the batches of the training loaders took, worker by worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, cast

import numpy as np
import numpy.typing as npt

from trainobs.core.records import SETUP, UNKNOWN
from trainobs.runlog.rank import RankLog
from trainobs.runlog.schema import BATCHES
from trainobs.verdict.advice import MANY_TENSORS
from trainobs.verdict.facts import Facts

Indices = npt.NDArray[np.intp]
Batches = Mapping[str, npt.NDArray[np.int64]]

MADE = ("device_ns", "cpu_wait_ns", "compute_ns", "sleep_ns")
"""Columns of the table `batches`: what the maker of a batch did."""

OF_A_BATCH = (
    "for_step",
    "loader",
    "worker",
    "begin_ns",
    "end_ns",
    "fetch_begin_ns",
    "slowest_ns",
    *MADE,
)
_WAITED = {"wait_ns": "loader/wait_ns", "handover_ns": "loader/handover_ns"}
GOT = "loader/batch_count"
WAITED = (*_WAITED.values(), GOT)
"""Metrics that are looked at."""

SLOW = 2.0
"""How many times as long as any other a worker takes for a batch that is told of."""

SOME = 8
"""Batches of each worker from which on they are compared."""

ALIKE = 1.1
"""How many times as many batches as another a worker may have made, to be compared: those of one
loader take turns, and those of several loaders have the same numbers."""


class Made(TypedDict):
    """Batches that steps consumed, and means of what making one took; None where unknown."""

    batches: int
    made_ns: float | None
    device_ns: float | None
    cpu_wait_ns: float | None
    compute_ns: float | None
    sleep_ns: float | None


class Worker(Made):
    """One maker of batches; None where unknown.

    Attributes:
        worker: its number; None for the training thread.
        of_no_step: batches beside those that a step consumed: see `of_no_step`.
        slowest_ns, slowest_file, slowest_step: of its slowest read or open of training data, and
            the step that consumed it.
        wait_ns, handover_ns: means of the steps whose last fetch got a batch of its.
    """

    worker: int | None
    of_no_step: int
    slowest_ns: int
    slowest_file: str | None
    slowest_step: int
    wait_ns: float | None
    handover_ns: float | None


class SlowWorker(TypedDict):
    """A worker, what a batch takes it, and what one takes the others, on average."""

    worker: int
    made_ns: float
    others_ns: float


class Loader(Made):
    """All makers of batches as one; None where unknown of one of them.

    Attributes:
        workers: processes at once; of several loaders they have the same numbers.
        in_main: whether the training thread made some.
        of_no_step: batches beside those that a step consumed.
        got: batches that steps got, as these tell.
        are_all: whether no more are known to have been made, of which nothing is known.
        slow_worker: the one that is slower than all others; None where there is none.
        sampler_ns: what the sampler takes of the training thread for a batch.
        many_tensors: how many a batch has; None also for few enough.
    """

    workers: int
    in_main: bool
    of_no_step: int
    got: int | None
    are_all: bool
    slow_worker: SlowWorker | None
    sampler_ns: float | None
    many_tensors: int | None


def workers(rank: RankLog) -> list[Worker]:
    """The workers of the training loaders, ascending; the training thread itself comes first.

    Raises:
        RunLogError: a file is damaged.
    """
    batches = rank.columns(BATCHES, OF_A_BATCH)
    for_step, worker = batches["for_step"], batches["worker"]
    consumed = np.flatnonzero(for_step != UNKNOWN)
    if not len(consumed):
        return []
    fetched = _fetched_in(rank, batches, consumed)
    last = _last_of_each_step(batches["end_ns"][consumed], fetched)
    waits, rows = rank.metrics(WAITED), np.arange(len(rank.step()))
    others = worker[_is_of_no_step(batches)]
    found = [
        {
            "worker": None if number == UNKNOWN else number,
            "of_no_step": int(np.count_nonzero(others == number)),
            **_made(rank, batches, consumed[worker[consumed] == number]),
            **_waited(waits, np.isin(rows, fetched[last[worker[consumed[last]] == number]])),
        }
        for number in np.unique(worker[consumed]).tolist()
    ]
    return cast("list[Worker]", found)


def at_once(rank: RankLog) -> int:
    """Workers of the loaders that a step reads from, the median; 0 where one loader has any.

    The workers of each begin at number 0. Loaders in turn, as of a curriculum, may have no worker
    while the other one is read.

    Raises:
        RunLogError: a file is damaged.
    """
    batches = rank.columns(BATCHES, OF_A_BATCH)
    is_made = (batches["for_step"] != UNKNOWN) & (batches["worker"] != UNKNOWN)
    loaders, loader = np.unique(batches["loader"][is_made], return_inverse=True)
    if len(loaders) < 2:  # their numbers tell
        return 0
    _, step = np.unique(batches["for_step"][is_made], return_inverse=True)
    pairs = np.unique(loader << 32 | batches["worker"][is_made].astype(np.int64))
    workers = np.bincount(pairs >> 32)
    read = np.unique(step << 32 | loader)
    return int(np.median(np.bincount(read >> 32, weights=workers[read & 0xFFFFFFFF])))


def of_no_step(rank: RankLog) -> int:
    """Batches of the training loaders of which no step is known that consumed them.

    There may be none, as where the loop ends before its loader does. Or nobody knows which it was:
    see `hooks.loader_pass`.

    Raises:
        RunLogError: a file is damaged.
    """
    return int(_is_of_no_step(rank.columns(BATCHES, OF_A_BATCH)).sum())


def _is_of_no_step(batches: Batches) -> npt.NDArray[np.bool_]:
    is_consumed = batches["for_step"] != UNKNOWN
    trains = np.isin(batches["loader"], np.unique(batches["loader"][is_consumed]))
    found: npt.NDArray[np.bool_] = trains & ~is_consumed & (batches["loader"] != UNKNOWN)
    return found


def got(rank: RankLog) -> int | None:
    """Batches that steps got, as these tell; None where they do not.

    Raises:
        RunLogError: a file is damaged.
    """
    counts = rank.metric(GOT)[rank.step() != SETUP]
    known = counts[np.isfinite(counts)]
    return int(known.sum()) if known.size else None


def together(
    workers: list[Worker],
    of_no_step: int,
    facts: Facts,
    *,
    workers_at_once: int = 0,
    got: int | None = None,
    are_whole: bool = True,
) -> Loader | None:
    """The makers of batches as one; None where no batch is known.

    Args:
        workers: from `workers`.
        of_no_step: from `of_no_step`.
        facts: of the run.
        workers_at_once: from `at_once`.
        got: from `got`.
        are_whole: whether the files of batches are all there.
    """
    if not workers:
        return None
    counts = [one["batches"] for one in workers]
    batches = sum(counts)
    return {
        "workers": max(workers_at_once, sum(one["worker"] is not None for one in workers)),
        "in_main": any(one["worker"] is None for one in workers),
        "batches": batches,
        "of_no_step": of_no_step,
        "got": got,
        "are_all": are_whole if got is None else batches + of_no_step >= got,
        "slow_worker": slow_worker(workers),
        "sampler_ns": None if facts.draw is None else sum(facts.draw),
        "many_tensors": facts.tensors if (facts.tensors or 0) >= MANY_TENSORS else None,
        "made_ns": _mean_of_all([one["made_ns"] for one in workers], counts),
        "device_ns": _mean_of_all([one["device_ns"] for one in workers], counts),
        "cpu_wait_ns": _mean_of_all([one["cpu_wait_ns"] for one in workers], counts),
        "compute_ns": _mean_of_all([one["compute_ns"] for one in workers], counts),
        "sleep_ns": _mean_of_all([one["sleep_ns"] for one in workers], counts),
    }


def _mean_of_all(means: Sequence[float | None], counts: Sequence[int]) -> float | None:
    """The mean over all batches, of means over so many each; None where one is unknown."""
    known = [mean * count for mean, count in zip(means, counts, strict=True) if mean is not None]
    return sum(known) / sum(counts) if len(known) == len(counts) else None


def slow_worker(workers: list[Worker]) -> SlowWorker | None:
    """The one worker that is slower than all others; None where there is none, or nobody knows.

    Args:
        workers: from `workers`.
    """
    counts = [one["batches"] for one in workers if one["worker"] is not None]
    made = sorted(
        (ns, number)
        for one in workers
        if (ns := one["made_ns"]) is not None and (number := one["worker"]) is not None
    )
    if len(made) < max(2, len(counts)) or min(counts) < SOME or max(counts) > ALIKE * min(counts):
        return None
    *others, (slowest_ns, slowest) = made
    if not slowest_ns >= SLOW * others[-1][0] > 0:
        return None
    others_ns = sum(ns for ns, _ in others) / len(others)
    return {"worker": slowest, "made_ns": slowest_ns, "others_ns": others_ns}


def _made(rank: RankLog, batches: Batches, own: Indices) -> dict[str, Any]:
    made_ns = np.maximum(UNKNOWN, batches["end_ns"][own] - batches["begin_ns"][own])
    slowest_ns = batches["slowest_ns"]
    slowest = int(own[slowest_ns[own].argmax()])
    return {
        "batches": len(own),
        "made_ns": _mean(made_ns),
        **{name: _mean(batches[name][own]) for name in MADE},
        "slowest_ns": int(slowest_ns[slowest]),
        "slowest_file": rank.slowest_file(slowest),
        "slowest_step": int(batches["for_step"][slowest]),
    }


def _fetched_in(rank: RankLog, batches: Batches, consumed: Indices) -> Indices:
    """The row of the step that waited for each batch: of one fetched ahead, not the one it is for.

    Older run logs do not tell when that was.
    """
    step = rank.step()
    order = np.argsort(step, kind="stable")
    own = np.searchsorted(step, batches["for_step"][consumed], sorter=order)
    own = np.append(order, 0)[own]
    rows = np.searchsorted(rank.start_ns(), batches["fetch_begin_ns"][consumed], "right") - 1
    found: Indices = np.where(rows < 0, own, rows)
    return found


def _last_of_each_step(end_ns: npt.NDArray[np.int64], rows: Indices) -> Indices:
    """Of the batches of a step, the one that was finished last: it is what the step waited for."""
    ordered = np.lexsort((end_ns, rows))
    last: Indices = ordered[np.diff(rows[ordered], append=UNKNOWN) != 0]
    return last


def _waited(
    waits: Mapping[str, npt.NDArray[np.float64]], rows: npt.NDArray[np.bool_]
) -> dict[str, float | None]:
    values = {name: waits[metric][rows] for name, metric in _WAITED.items()}
    return {name: _mean(column[np.isfinite(column)]) for name, column in values.items()}


def _mean(values: npt.NDArray[Any]) -> float | None:
    known = values[values != UNKNOWN]
    return float(known.mean()) if known.size else None
