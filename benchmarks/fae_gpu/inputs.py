"""Inputs like Criteo Terabyte's, made up: skewed lookups, and columns that depend on each other."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torchrec import EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.datasets.utils import Batch

from benchmarks.fae_gpu.setup import Setup

# Criteo Terabyte's 26 categories, at most 40 million rows each: facebookresearch/dlrm.
# fmt: off
TERABYTE = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63,
    40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976, 14,
    40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)
# fmt: on
SCALED_FROM = 1_000_000  # tables of more rows are scaled
# What columns depend on, after examples/dlrm/synthetic.py, which is fitted to data of Criteo: four
# large ones have the rank of what is advertised, two are functions of it, the first is drawn by
# itself, and the others are functions of the place; in a share of the inputs, else by themselves.
SAME, FUNCTIONS, DRAWN_ALONE = (9, 19, 20, 21), {10: 0.95, 22: 0.95}, 0
OF_PLACE, PLACES = 0.7, 100_000
DENSE_COUNT = 13


class Inputs:
    """Batches without end: rows are looked up by a power law, and columns depend on each other."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._random = setup, np.random.default_rng(setup.seed)
        scaled = [round(n * setup.scale) if n > SCALED_FROM else n for n in TERABYTE]
        self._rows = [min(setup.most_rows, max(n, 3)) for n in scaled]
        self._keys = [f"C{i + 1}" for i in range(len(scaled))]
        self.configs = [
            EmbeddingBagConfig(
                name=f"t_{key}",
                num_embeddings=rows,
                embedding_dim=setup.dim,
                feature_names=[key],
                init_fn=fill,
            )
            for key, rows in zip(self._keys, self._rows, strict=True)
        ]

    def draw(self, count: int) -> list[Batch]:
        """Inputs that were not drawn before."""
        return [self._batch() for _ in range(count)]

    def _batch(self) -> Batch:
        random, size = self._random, self._setup.batch_size
        advertised = self._ranks(max(self._rows), random.random(size))
        place = self._ranks(PLACES, random.random(size))
        ids = np.empty((len(self._rows), size), dtype=np.int64)
        for i, rows in enumerate(self._rows):
            share = 0.0 if i == DRAWN_ALONE else FUNCTIONS.get(i, OF_PLACE)
            told = _unit(advertised if i in FUNCTIONS else place, i)
            uniform = np.where(random.random(size) < share, told, random.random(size))
            ranks = advertised % rows if i in SAME else self._ranks(rows, uniform)
            ids[i] = _scatter(ranks, rows)
        lengths = torch.ones(ids.size, dtype=torch.int32)
        kjt = KeyedJaggedTensor(self._keys, torch.from_numpy(ids.ravel()), lengths=lengths)
        kjt.offset_per_key()  # and length_per_key, now, while no device has to be asked
        dense = random.standard_normal((size, DENSE_COUNT), dtype=np.float32)
        return Batch(torch.from_numpy(dense), kjt, torch.from_numpy(random.integers(0, 2, size)))

    def _ranks(self, count: int, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        power = 1.0 - self._setup.slope  # by the inverse of the law
        ranks = (1.0 + uniform * ((count + 1.0) ** power - 1.0)) ** (1.0 / power)
        found: NDArray[np.int64] = np.minimum(ranks.astype(np.int64) - 1, count - 1)
        return found


def _unit(values: NDArray[np.int64], purpose: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each value, the same each time for one purpose (splitmix64)."""
    mixed = (values.astype(np.uint64) + np.uint64(purpose << 40)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    numbers: NDArray[np.float64] = (mixed >> np.uint64(11)) * 2.0**-53
    return numbers


def _scatter(ranks: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Hot rows are all over a table, as hashing leaves them."""
    step = next(s for s in range(max(1, int(count * 0.618)), count + 2) if np.gcd(s, count) == 1)
    return ranks * step % count


@torch.no_grad()
def fill(weight: Tensor) -> Tensor:
    """The same small numbers wherever a table is, without a copy of it on the host."""
    flat, bound = weight.view(-1), len(weight) ** -0.5
    for first in range(0, len(flat), 1 << 24):
        part = flat[first : first + (1 << 24)]
        numbers = torch.arange(first, first + len(part), device=part.device) * 2_654_435_761
        part.copy_((numbers % (1 << 24)).float().mul_(bound / (1 << 23)).sub_(bound))
    return weight
