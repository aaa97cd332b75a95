"""Columns of steps at several resolutions, so that a long run can be drawn and zoomed into."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

FACTOR = 4
"""Steps in a window of one level, in windows of the level below."""

CHUNK = 1024
"""Windows that are read at once."""


def levels(rows: int) -> list[int]:
    """Steps in a window of each level, finest first; the coarsest has at most `CHUNK` windows."""
    found = [1]
    while rows > CHUNK * found[-1]:
        found.append(found[-1] * FACTOR)
    return found


def chunks(rows: int, every: int) -> int:
    """Chunks of a level."""
    return -(-rows // (CHUNK * every))


@dataclass
class Levels:
    """Columns of the same length, as means of windows of steps.

    The first step, in which workers start, is left out of windows of several.

    Args:
        columns: name -> value of each step, NaN where unknown. Shape (n,).
        peaks: names of those whose greatest value in a window is told, too.
    """

    columns: Mapping[str, Floats]
    peaks: tuple[str, ...] = ()

    def chunk(self, every: int, number: int) -> dict[str, list[float | None]]:
        """One chunk of a level.

        Returns:
            name -> the mean of each window over its steps that are known, None where none is;
            `<name>/peak` -> the greatest, for the names in `peaks`, and `<name>/peak_row` -> the
            step that had it, as a row of the columns. Columns without any value are left out.
        """
        first = number * CHUNK * every
        found: dict[str, list[float | None]] = {}
        for name, column in self.columns.items():
            part = column[first : first + CHUNK * every]
            if not first and every > 1:
                part = part.copy()
                part[:1] = np.nan
            if not np.isfinite(part).any():
                continue
            found[name] = _listed(_means(part, every))
            if name in self.peaks:
                at = _peaks(part, every)
                found[f"{name}/peak"] = _listed(part[at].astype(np.float64))
                found[f"{name}/peak_row"] = (at + first).tolist()
        return found


def _windows(column: Floats, every: int) -> npt.NDArray[np.float64]:
    """Shape (windows, every), the last one filled up with NaN."""
    count = -(-len(column) // every)
    filled = np.full(count * every, np.nan)
    filled[: len(column)] = column
    return filled.reshape(count, every)


def _means(column: Floats, every: int) -> npt.NDArray[np.float64]:
    windows = _windows(column, every)
    known = np.isfinite(windows).sum(axis=1)
    sums = np.nansum(windows, axis=1)
    means: npt.NDArray[np.float64] = np.full(len(sums), np.nan)
    np.divide(sums, known, out=means, where=known > 0)
    return means


def _peaks(column: Floats, every: int) -> npt.NDArray[np.intp]:
    """Row of the greatest value of each window."""
    windows = np.nan_to_num(_windows(column, every), nan=-np.inf)
    found: npt.NDArray[np.intp] = windows.argmax(axis=1) + np.arange(len(windows)) * every
    return found


def _listed(values: npt.NDArray[np.float64]) -> list[float | None]:
    """With four significant digits, more than a screen shows; whole numbers without a point."""
    return [None if value != value else value for value in _rounded(values)]


def _rounded(values: npt.NDArray[np.float64]) -> Iterator[float]:
    size = np.abs(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        places = np.where(size > 0, 3 - np.floor(np.log10(size)), 0)
        places = np.nan_to_num(places, nan=0.0)
        scale = 10.0 ** np.abs(places)
        rounded = np.where(
            places >= 0, np.round(values * scale) / scale, np.round(values / scale) * scale
        )
    for value in rounded.tolist():
        yield int(value) if value == value and value.is_integer() else value
