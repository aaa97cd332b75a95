"""Inputs like Criteo's, made up: skewed lookups, columns that depend on each other, clicks.

Three things are drawn for each input: an advertisement (C3), the place where it is shown (C15), on
which the advertisement depends, and a user (C11). Most other columns are functions of these, as in
the Kaggle set, where C3 tells C12, C21, C16, C4 and C24, and C15 tells C18, C2 and C14. This
matters for whoever keeps the hot rows of all tables near: were the columns independent, then, with
the same skew in each table, inputs all of whose rows are hot would be up to a hundred times rarer.

`COLUMNS` is fitted to a public sample of 1,000 lines of the Kaggle set; README.md tells how near
it comes. Input number n is the same whatever the batch size, the workers and the ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from columns import CATEGORIES, DENSE_COUNT, Inputs, make_batch, mix
from numpy.typing import NDArray
from torch.utils.data import IterableDataset, get_worker_info
from torchrec.datasets.utils import Batch

Ids = NDArray[np.int64]
Numbers = NDArray[np.float64]

CHUNK = 1024  # inputs that are made at once, from random numbers of their own


class Law(NamedTuple):
    """How often the value of rank r is drawn: as r ** -head up to `knee`, then as r ** -tail."""

    head: float
    knee: int
    tail: float


class Column(NamedTuple):
    """How the values of a category are drawn.

    Attributes:
        law: how often each.
        source: column that it is a function of; empty: of none.
        follows: share of inputs in which it is; in the others it is drawn by itself.
        same: whether the function keeps the values as they are.
    """

    law: Law
    source: str = ""
    follows: float = 1.0
    same: bool = False


# In the order in which they can be made: a source comes before what depends on it.
AD = Law(0.82, 3, 0.95)
COLUMNS = {
    "C15": Column(Law(0.6, 300, 1.9)),
    "C18": Column(Law(0.7, 200, 1.2), "C15"),
    "C2": Column(Law(0.8, 80, 1.5), "C18"),
    "C14": Column(Law(0.9, 3, 3.0), "C15"),
    "C3": Column(AD, "C15", follows=0.5),
    "C12": Column(AD, "C3", same=True),
    "C21": Column(AD, "C12", same=True),
    "C16": Column(AD, "C21", same=True),
    "C4": Column(AD, "C16"),
    "C24": Column(Law(0.9, 30, 1.01), "C4"),
    "C26": Column(Law(0.9, 30, 0.9), "C16", follows=0.95),
    "C25": Column(Law(1.1, 5, 2.45), "C26"),
    "C20": Column(Law(0.0, 3, 2.0), "C26"),
    "C19": Column(Law(2.4, 8, 0.6), "C26"),
    "C11": Column(Law(0.5, 20, 0.95)),
    "C13": Column(Law(0.6, 200, 0.7), "C11"),
    "C7": Column(Law(0.5, 800, 1.2), "C11", follows=0.67),
    "C10": Column(Law(1.8, 20, 0.8), "C13", follows=0.5),
    "C23": Column(Law(1.9, 3, 0.55), "C11", follows=0.75),
    "C17": Column(Law(1.1, 3, 1.2), "C11", follows=0.4),
    "C6": Column(Law(1.5, 7, 5.0), "C3", follows=0.4),
    "C1": Column(Law(1.7, 30, 2.45)),
    "C5": Column(Law(2.2, 3, 2.5)),
    "C8": Column(Law(1.9, 5, 2.5)),
    "C9": Column(Law(2.9, 1, 2.55)),
    "C22": Column(Law(2.9, 6, 6.0)),
}
# C19, C20, C25 and C26 are missing together, in this share of the values of C16.
LACKING, LACKING_SHARE = ("C19", "C20", "C25", "C26"), 0.5

# What moves the logit of a click, by how much: values of a category, pairs of values, integers.
VALUE_EFFECTS = {"C4": 0.5, "C24": 0.5, "C18": 0.6, "C2": 0.5, "C13": 0.5, "C14": 0.4, "C17": 0.4}
PAIR_EFFECTS = {("C14", "C17"): 0.5, ("C2", "C23"): 0.4}
DENSE_EFFECT = 0.15
CLICK_SHARE = 0.256  # of the Kaggle set


class Sampler:
    """Draws the ranks of a law among ``count`` values from uniform numbers."""

    def __init__(self, law: Law, count: int) -> None:
        self.count = count
        self.knee = min(law.knee, count)
        self.power = 1 - law.tail
        weights = np.arange(1, self.knee + 1, dtype=np.float64) ** -law.head
        self.reach = 1 - (count / self.knee) ** self.power  # 0 where nothing is beyond the knee
        tail = weights[-1] * self.knee * self.reach / -self.power
        self.cumulated = np.cumsum(weights) / (weights.sum() + tail)

    def __call__(self, uniform: Numbers) -> Ids:
        """Return a rank, 0 to ``count - 1``, for each number in [0, 1)."""
        ranks = np.searchsorted(self.cumulated, uniform, side="right")
        beyond = ranks == self.knee
        if beyond.any():
            rest = (uniform[beyond] - self.cumulated[-1]) / max(1 - self.cumulated[-1], 1e-12)
            drawn = self.knee * (1 - rest * self.reach) ** (1 / self.power)
            ranks[beyond] = np.minimum(drawn.astype(np.int64), self.count - 1)
        return ranks


class Generator:
    """Makes inputs by number.

    Args:
        rows: rows of each of the 26 tables.
        seed: of all random numbers, and of the functions between columns.
    """

    def __init__(self, rows: Sequence[int], seed: int) -> None:
        self.seed = seed
        self.values = {name: count - 1 for name, count in zip(CATEGORIES, rows, strict=True)}
        self.samplers = {name: Sampler(COLUMNS[name].law, self.values[name]) for name in CATEGORIES}
        self.bias = self._find_bias()

    def chunk(self, number: int) -> Inputs:
        """Return ``CHUNK`` inputs."""
        random = np.random.default_rng([self.seed, number])
        ranks = self._ranks(random)
        normal = random.standard_normal((CHUNK, DENSE_COUNT))
        clicked = random.random(CHUNK) < sigmoid(self._logit(ranks, normal) + self.bias)
        lacking = self._unit(ranks["C16"], "lacking") < LACKING_SHARE
        ids = np.empty((len(CATEGORIES), CHUNK), dtype=np.int64)
        for row, name in zip(ids, CATEGORIES, strict=True):
            row[:] = scatter(ranks[name], self.values[name])
            if name in LACKING:
                row[lacking] = 0
        # Integers that are spread as Criteo's are, in the form in which the reader gives them.
        dense = np.log1p(np.floor(np.exp(1.0 + 1.5 * normal))).astype(np.float32)
        return clicked.astype(np.float32), dense, ids

    def _find_bias(self) -> float:
        """Return what to add to the logits so that `CLICK_SHARE` of some inputs are clicks."""
        random = np.random.default_rng([self.seed])
        logits = np.concatenate(
            [
                self._logit(self._ranks(random), random.standard_normal((CHUNK, DENSE_COUNT)))
                for _ in range(4)
            ]
        )
        low, high = -20.0, 20.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if sigmoid(logits + middle).mean() < CLICK_SHARE else (low, middle)
            )
        return low

    def _ranks(self, random: np.random.Generator) -> dict[str, Ids]:
        ranks: dict[str, Ids] = {}
        for name, column in COLUMNS.items():
            uniform = random.random(CHUNK)
            if column.same:
                ranks[name] = ranks[column.source] % self.values[name]
                continue
            if column.source:
                told = self._unit(ranks[column.source], name)
                uniform = np.where(random.random(CHUNK) < column.follows, told, uniform)
            ranks[name] = self.samplers[name](uniform)
        return ranks

    def _logit(self, ranks: dict[str, Ids], normal: Numbers) -> Numbers:
        logit = normal @ np.full(DENSE_COUNT, DENSE_EFFECT)
        for name, size in VALUE_EFFECTS.items():
            logit += size * self._effect(ranks[name], f"effect of {name}")
        for (first, second), size in PAIR_EFFECTS.items():
            pair = ranks[first] * self.values[second] + ranks[second]
            logit += size * self._effect(pair, f"effect of {first} and {second}")
        return logit

    def _effect(self, values: Ids, purpose: str) -> Numbers:
        """Return a number for each value, of mean 0 and variance 1 over all values."""
        return (self._unit(values, purpose) - 0.5) * np.sqrt(12)

    def _unit(self, values: Ids, purpose: str) -> Numbers:
        """Return a number in [0, 1) for each value, always the same for one purpose."""
        salt = int.from_bytes(purpose.encode()[-12:], "little") + self.seed
        return (mix(values.astype(np.uint64), salt) >> np.uint64(11)) * 2.0**-53


def sigmoid(logit: Numbers) -> Numbers:
    """Return the probability that belongs to each logit."""
    return 1 / (1 + np.exp(-logit))


def scatter(ranks: Ids, count: int) -> Ids:
    """Return rows 1 to ``count`` for ranks 0 to ``count - 1``: hot rows are all over a table."""
    stride = max(1, round(count * 0.618))
    while np.gcd(stride, count) != 1:
        stride += 1
    return (ranks * stride + count // 3) % count + 1


class SyntheticBatches(IterableDataset[Batch]):
    """Made-up batches, made in the loader workers (``batch_size=None`` there).

    Args:
        rows: rows of each of the 26 tables; row 0 is for missing values.
        batch_size: inputs in a batch.
        count: batches of all ranks together.
        first: number of the first batch; those of training and validation must not overlap.
        seed: of everything.
        rank: takes each batch whose number, less ``first``, is ``rank`` modulo ``world_size``.
        world_size: number of ranks.
    """

    def __init__(
        self,
        rows: Sequence[int],
        batch_size: int,
        count: int,
        *,
        first: int = 0,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.numbers = range(first + rank, first + count, world_size)

    def __len__(self) -> int:
        """Return the number of batches of this rank."""
        return len(self.numbers)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of this worker; a loader puts those of all workers in order."""
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        generator = Generator(self.rows, self.seed)
        made: dict[int, Inputs] = {}
        for number in self.numbers[worker::workers]:
            start, stop = number * self.batch_size, (number + 1) * self.batch_size
            needed = range(start // CHUNK, (stop - 1) // CHUNK + 1)
            made = {at: made.get(at) or generator.chunk(at) for at in needed}
            labels, dense, ids = zip(*made.values(), strict=True)
            begin = start - needed.start * CHUNK
            part = slice(begin, begin + self.batch_size)
            yield make_batch(
                np.concatenate(labels)[part],
                np.concatenate(dense)[part],
                np.concatenate(ids, axis=1)[:, part],
            )
