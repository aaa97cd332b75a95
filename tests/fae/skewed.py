"""Loaders of known skew, and tables for them."""

from __future__ import annotations

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset
from torchrec.modules.embedding_configs import EmbeddingBagConfig
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae import calibrate

ROWS = (40, 3000, 20_000)
KEYS = ("small", "middle", "large")
BUDGET = 20_000  # bytes: 1,000 of these rows


def tables(rows=ROWS, keys=KEYS, dim=4):
    return [
        EmbeddingBagConfig(
            name=f"t_{key}", num_embeddings=count, embedding_dim=dim, feature_names=[key]
        )
        for key, count in zip(keys, rows, strict=True)
    ]


def power_law(random, rows, count, slope=1.1):
    """Ids whose lookups fall with the row's number."""
    power = 1.0 - slope
    ranks = (1.0 + random.random(count) * ((rows + 1.0) ** power - 1.0)) ** (1.0 / power)
    return np.minimum(ranks.astype(np.int64) - 1, rows - 1)


def matrix(seed, count, rows=ROWS, slope=1.1):
    """One id for each table and input, (tables, inputs)."""
    random = np.random.default_rng(seed)
    return np.stack([power_law(random, each, count, slope) for each in rows])


def kjt(ids, keys=KEYS):
    """A batch of one lookup for each key and input."""
    ids = np.ascontiguousarray(ids)
    return KeyedJaggedTensor(
        keys=list(keys),
        values=torch.from_numpy(ids.ravel()),
        lengths=torch.ones(ids.size, dtype=torch.int32),
    )


class Batches:
    """A loader of batches in order; counts how many it gave."""

    def __init__(self, ids, size=256):
        self.parts = [ids[:, first : first + size] for first in range(0, ids.shape[1], size)]
        self.given = 0

    def __iter__(self):
        for part in self.parts:
            self.given += 1
            yield kjt(part)

    def __len__(self):
        return len(self.parts)


class Clicks(Dataset):
    """Single inputs, for torch's DataLoader."""

    def __init__(self, ids):
        self.ids = ids

    def __len__(self):
        return self.ids.shape[1]

    def __getitem__(self, number):
        return float(number), self.ids[:, number]


def collate(samples):
    return torch.tensor([dense for dense, _ in samples]), kjt(np.stack([s for _, s in samples]).T)


def click_loader(ids, size=256, **options):
    return DataLoader(Clicks(ids), batch_size=size, collate_fn=collate, **options)


def quiet(source, of=None, budget=BUDGET, **options):
    """Calibrate these tables, or others, without a progress bar."""
    return calibrate(source, of or tables(), budget, progress=False, **options)
