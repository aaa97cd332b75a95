"""The columns of Criteo's click logs, and the batches that both data sets here are made into."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

# Labels (N,), dense (N, 13) and rows in the tables (26, N) of N inputs.
Inputs = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int64]]

DENSE_COUNT = 13
CATEGORIES = [f"C{number}" for number in range(1, 27)]

# Different values of C1 to C26 in the Criteo Kaggle set, as `day_fea_count` of the FAE artifact and
# DLRM's own scripts have them: 33.76 million rows, 2.01 GiB at 16 float32 values a row.
KAGGLE_ROWS = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
SMALLEST_TABLE = 3  # row 0 is for a missing value, so fewer would not tell two values apart


def table_rows(scale: float) -> list[int]:
    """Return the rows of each table: Kaggle's, times ``scale``."""
    return [max(SMALLEST_TABLE, round(rows * scale)) for rows in KAGGLE_ROWS]


def make_batch(
    labels: NDArray[np.float32], dense: NDArray[np.float32], ids: NDArray[np.int64]
) -> Batch:
    """Return a batch of TorchRec, with one lookup for each input and table.

    Args:
        labels: 0 or 1 for each input ``(N,)``.
        dense: ``(N, 13)``.
        ids: row of each input in each table ``(26, N)``.
    """
    values = torch.from_numpy(np.ascontiguousarray(ids).reshape(-1))
    return Batch(
        dense_features=torch.from_numpy(np.ascontiguousarray(dense)),
        sparse_features=KeyedJaggedTensor(
            keys=CATEGORIES, values=values, lengths=torch.ones_like(values)
        ),
        labels=torch.from_numpy(np.ascontiguousarray(labels)),
    )


def mix(values: NDArray[np.uint64], salt: int) -> NDArray[np.uint64]:
    """Return well-mixed 64-bit hashes of values: the finalizer of splitmix64.

    Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
    """
    with np.errstate(over="ignore"):  # it is arithmetic modulo 2 ** 64
        mixed = values + np.uint64((salt + 1) * 0x9E3779B97F4A7C15 % 2**64)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
