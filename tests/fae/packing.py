"""Inputs that can be told apart, loaders of them, and what a packed batch must say of each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, get_worker_info
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae import FAEProfile, TableProfile
from trainobs.fae.kjt.split import read_mark

KEYS = ("f0", "f1", "f2", "unserved")
ROWS = {"f0": 40, "f1": 7, "f2": 40}  # f0 and f2 look up one table


def profile(hot_ratio: float = 0.5, seed: int = 0) -> FAEProfile:
    """Two tables, of which a share of the rows is hot."""
    generator = np.random.default_rng(seed)

    def table(name: str, rows: int, features: tuple[str, ...]) -> TableProfile:
        hot = np.flatnonzero(generator.random(rows) < hot_ratio).astype(np.int64)
        return TableProfile(name, rows, 4, features, hot, 32)

    return FAEProfile((table("t0", 40, ("f0", "f2")), table("t1", 7, ("f1",))), 1 << 20)


@dataclass(frozen=True)
class Input:
    """One input: the bag of each key, and the number that tells it apart."""

    number: int
    bags: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]


def make_input(number: int, most: int = 3) -> Input:
    """Input number so and so, always the same one."""
    generator = np.random.default_rng([7, number, most])
    lengths = [int(generator.integers(0, most + 1)) if most > 1 else 1 for _ in KEYS]
    bags = tuple(
        tuple(int(i) for i in generator.integers(0, ROWS.get(key, 5), length))
        for key, length in zip(KEYS, lengths, strict=True)
    )
    weights = tuple(tuple(float(w) for w in np.float32(generator.random(len(b)))) for b in bags)
    return Input(number, bags, weights)


def collate(inputs: list[Input]) -> Batch:
    """As a loader's collate_fn."""
    return to_batch(inputs)


def to_batch(inputs: list[Input], weighted: bool = True, dtype: Any = torch.int64) -> Batch:
    """Dense features and label carry the number."""
    bags = [one.bags[k] for k in range(len(KEYS)) for one in inputs]
    weights = [one.weights[k] for k in range(len(KEYS)) for one in inputs]
    numbers = torch.tensor([one.number for one in inputs], dtype=torch.float64)
    return Batch(
        dense_features=torch.stack([numbers, numbers * 2], 1) if inputs else torch.zeros(0, 2),
        sparse_features=KeyedJaggedTensor(
            keys=list(KEYS),
            values=torch.tensor([i for bag in bags for i in bag], dtype=dtype),
            weights=torch.tensor([w for bag in weights for w in bag]) if weighted else None,
            lengths=torch.tensor([len(bag) for bag in bags], dtype=torch.int32),
            stride=len(inputs),
        ),
        labels=numbers.to(torch.int64),
    )


class Inputs(Dataset[Input]):
    """Map-style."""

    def __init__(self, count: int, first: int = 0, most: int = 3) -> None:
        self.count, self.first, self.most = count, first, most

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Input:
        return make_input(self.first + index, self.most)


class Stream(IterableDataset[Input]):
    """Iterable, shared out to the workers."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Input]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return map(make_input, range(first, self.count, step))


def inputs_of(batch: Batch, of: FAEProfile, most: int = 3) -> list[Input]:
    """The inputs of a packed batch, hot lookups put back among the others, sorted within bags."""
    kjt = batch.sparse_features
    mark = read_mark(kjt)
    assert mark is not None
    assert mark.fingerprint == of.fingerprint
    tables = {name: table for table in of.tables for name in table.features}
    by_key = {key: jagged.to_dense() for key, jagged in kjt.to_dict().items()}
    weights = {key: jagged.to_dense_weights() for key, jagged in kjt.to_dict().items()}
    hot_keys = dict(zip(mark.hot_features, mark.keys()[len(mark.features) :], strict=True))
    found = []
    for i, number in enumerate(batch.labels.tolist()):
        assert batch.dense_features[i].tolist() == [number, number * 2]
        bags, bag_weights = [], []
        for key in mark.features:
            rows, own = by_key[key][i].tolist(), (weights[key] or [])[i].tolist()
            if key in hot_keys:
                assert not set(rows) & set(tables[key].hot_ids.tolist())
                slots = by_key[hot_keys[key]][i].tolist()
                rows += tables[key].hot_ids[slots].tolist()
                own += weights[hot_keys[key]][i].tolist()
            pairs = sorted(zip(rows, own, strict=True))
            bags.append(tuple(row for row, _ in pairs))
            bag_weights.append(tuple(weight for _, weight in pairs))
        found.append(Input(number, tuple(bags), tuple(bag_weights)))
    return found


def as_sorted(one: Input) -> Input:
    """The input with its bags sorted, as `inputs_of` gives it."""
    pairs = [
        sorted(zip(bag, weights, strict=True))
        for bag, weights in zip(one.bags, one.weights, strict=True)
    ]
    return Input(
        one.number,
        tuple(tuple(row for row, _ in bag) for bag in pairs),
        tuple(tuple(weight for _, weight in bag) for bag in pairs),
    )


def is_all_hot(one: Input, of: FAEProfile) -> bool:
    """By brute force."""
    hot = {name: set(t.hot_ids.tolist()) for t in of.tables for name in t.features}
    return all(
        row in hot[key]
        for key, bag in zip(KEYS, one.bags, strict=True)
        if key in hot
        for row in bag
    )


def is_pure(batch: Batch) -> bool:
    mark = read_mark(batch.sparse_features)
    assert mark is not None
    return mark.pure


def digest(batch: Batch) -> str:
    """Of every bit of a batch."""
    kjt = batch.sparse_features
    parts: list[Tensor] = [batch.dense_features, batch.labels, kjt.values(), kjt.lengths()]
    told = hashlib.blake2b(" ".join(kjt.keys()).encode(), digest_size=8)
    for part in (*parts, kjt.weights()):
        told.update(part.contiguous().numpy().tobytes())
    return told.hexdigest()
