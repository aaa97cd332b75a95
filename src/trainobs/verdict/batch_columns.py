"""What is known of batches, as columns of the steps that got them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from trainobs.core.records import UNKNOWN, StepTable
from trainobs.replay.metric_columns import (
    BATCH,
    BATCH_BYTES,
    BATCH_MARKS,
    BATCH_TIMES,
    COUNT,
    Floats,
)
from trainobs.verdict.kept import kept_columns
from trainobs.verdict.metric_names import BATCH_NEEDED, LOADER, LOADERS


def columns_of(table: StepTable) -> dict[str, Floats]:
    """The columns of steps, with what is known of their batches."""
    if table.batches is None:
        return table.columns
    wait = table.columns.get(LOADER, np.zeros(len(table)))
    own = {name: table.batches[name] for name in BATCH_NEEDED}
    return table.columns | known_of(table.step, table.start_ns, wait, own)


def known_of(
    steps: npt.NDArray[np.int64],
    start_ns: npt.NDArray[np.int64],
    wait_ns: Floats,
    batches: Mapping[str, npt.NDArray[np.int64]],
) -> dict[str, Floats]:
    """What is known of the batches of some steps; `batches` has the columns `BATCH_NEEDED`."""
    until = waited_until(start_ns, wait_ns)
    return batch_columns(steps, until, batches) | kept_columns(until, batches)


def first_of(columns: Mapping[str, Floats]) -> dict[str, float]:
    """What is known of the batches of the first of some steps."""
    return {name: float(columns[name][0]) for name in BATCH if name in columns}


def first_of_run(first: StepTable, others: StepTable) -> dict[str, float]:
    """The same of the first step of a run, by the next ones, which tell its training loader.

    One other alone does not tell its own: of both only what was asked for in time is counted.
    """
    if first.batches is None:
        return {}
    parts, known = [first], [first.batches]
    if len(others) > 1:
        parts.append(others)
        if others.batches is not None and others.batches is not first.batches:
            known.append(others.batches)
    batches = np.concatenate(known)
    until = [
        waited_until(part.start_ns, part.columns.get(LOADER, np.zeros(len(part)))) for part in parts
    ]
    steps = np.concatenate([part.step for part in parts])
    own = {name: batches[name] for name in BATCH_NEEDED}
    return first_of(batch_columns(steps, np.concatenate(until), own))


def waited_until(start_ns: npt.NDArray[np.int64], wait: Floats) -> Floats:
    """When the wait for data of each step was over, if it came first; CLOCK_MONOTONIC in ns."""
    return start_ns.astype(np.float64) + np.nan_to_num(wait)


def batch_columns(
    steps: npt.NDArray[np.int64],
    until: Floats,
    batches: Mapping[str, npt.NDArray[np.generic]],
) -> dict[str, Floats]:
    """What is known of the batches of steps, as columns of `INPUTS`.

    Args:
        steps: numbers of the steps, shape (n,). Where they do not ascend, as in a loop that counts
            from 0 again in each epoch, nobody knows which step a batch was for.
        until: when the wait of each was over, if it came first: what was asked for later, of a
            loader that gives no other batches in time, is of a validation.
        batches: column of the table `batches` -> values, -1 or NaN for unknown; with `for_step`.
    """
    for_step = np.asarray(batches["for_step"], np.float64)
    is_told = bool((np.diff(steps) > 0).all())
    at = np.searchsorted(steps, for_step)
    is_own = (at < len(steps)) & is_told
    is_own[is_own] = steps[at[is_own]] == for_step[is_own]
    own = np.flatnonzero(is_own)
    at = at[own]
    loader = np.asarray(batches["loader"], np.int64)[own]
    asked = np.asarray(batches["fetch_begin_ns"], np.float64)[own]
    first = np.full(len(steps), np.inf)
    np.fmin.at(first, at, asked)
    # The first one is the training's even if the thread lost its CPU before it asked.
    in_time = ~(asked > np.maximum(until, first)[at])
    trains = in_time | np.isin(loader, _of_training(loader[in_time], at[in_time]))
    own, at, loader = own[trains], at[trains], loader[trains]
    columns = {}
    for name in (*BATCH_TIMES, *BATCH_BYTES, *BATCH_MARKS):
        values = np.asarray(batches[name], np.float64)[own]
        values[values == UNKNOWN] = np.nan
        column = np.full(len(steps), np.nan)
        if name in BATCH_MARKS:
            order = np.argsort(values)
            column[at[order]] = values[order]  # of several the last one counts
        else:
            column[at] = 0.0
            np.add.at(column, at, values)
        columns[f"batch/{name}"] = column
    columns[COUNT] = np.full(len(steps), np.nan)
    columns[COUNT][at] = np.bincount(at, minlength=len(steps))[at]
    given = np.unique(loader * len(steps) + at) % len(steps)
    columns[LOADERS] = np.full(len(steps), np.nan)
    columns[LOADERS][at] = np.bincount(given, minlength=len(steps))[at]
    return columns


def _of_training(loader: npt.NDArray[np.int64], at: npt.NDArray[np.int64]) -> list[int]:
    """The loaders from which most steps take a batch as they begin, of those that take any.

    They may give more to a step, which accumulates the gradients of several batches.

    Args:
        loader: of batches that were asked for as their steps began, shape (n,).
        at: indices of these steps, shape (n,).
    """
    found = []
    for number in np.unique(loader).tolist():
        taking = np.unique(at[loader == number])
        if len(taking) > 1 and 2 * len(taking) > taking[-1] - taking[0]:
            found.append(number)
    return found
