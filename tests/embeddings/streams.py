"""Runs whose lookups come in all kinds of orders, counted as a training is, and the truth of them.

A stream is a list of epochs, an epoch a list of steps, a step the ids that its inputs look up,
(inputs, lookups).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from tests.embeddings.brute import Steps
from trainobs.access import AccessCounts
from trainobs.access.hot import hot_rows
from trainobs.embeddings.model_lookups import ModelLookups

ROWS = 20_000
SHAPE = (256, 4)
TABLE = "0"

Stream = list[list[np.ndarray]]
_PART = 64
"""Steps that are asked for at once, as an observer does."""


class Zipf:
    """Draws rows by Zipf's law, the hottest first."""

    def __init__(self, exponent: float = 1.0, rows: int = ROWS) -> None:
        self.chances = np.arange(1, rows + 1) ** -exponent
        self._ends = np.cumsum(self.chances) / self.chances.sum()

    def __call__(self, random: np.random.Generator, shape: tuple[int, int] = SHAPE) -> np.ndarray:
        return np.searchsorted(self._ends, random.random(shape)).clip(max=len(self._ends) - 1)


def steps_of(count: int, draw: Callable[[int], np.ndarray]) -> list[np.ndarray]:
    """An epoch of so many steps."""
    return [draw(step) for step in range(count)]


def watched(stream: Stream, every: int | None = 17, rank: int = 0, rows: int = ROWS):
    """Access counts of a training on the stream."""
    model, clock = nn.Sequential(nn.EmbeddingBag(rows, 1, mode="sum")), Steps()
    lookups = ModelLookups(model, lambda: clock.serial, every=every, rank=rank)
    asked = 0
    with torch.set_grad_enabled(True):
        for epoch, steps in enumerate(stream):
            lookups.begin_epoch(epoch)
            for number, ids in enumerate(steps):
                clock.begin()
                model(torch.from_numpy(ids.astype(np.int64)))
                if number % _PART == _PART - 1 or number == len(steps) - 1:
                    lookups._buffer.settle()
                    lookups.rows(clock.closed(asked + 1, epoch))
                    asked = clock.serial
    lookups.close()
    return lookups.counts


def all_ids(stream: Stream) -> np.ndarray:
    """Every input of the stream."""
    return np.concatenate([ids for steps in stream for ids in steps])


def true_shares(counts: AccessCounts, ids: np.ndarray, budget_bytes: int) -> tuple[float, float]:
    """What the hot rows of some counts serve: of lookups, and of inputs wholly."""
    hot = np.isin(ids, hot_rows(counts, {TABLE: 4}, budget_bytes)[TABLE])
    return float(hot.mean()), float(hot.all(axis=1).mean())
