"""How much each part of a DLRM computes and moves in a step, counted, not measured.

Arithmetic operations come from torch's `FlopCounterMode`, which counts matrix products, two for
each multiply and add. Bytes are those of what every operator reads and writes, as if each operand
came from memory once: what a cache saves is left out. Of lookups torch counts neither, since their
operand would be the whole table; for them

* forward reads the ids and a row for each lookup, and writes a vector for each bag;
* backward reads a gradient for each bag and the ids, and reads and writes each row that was looked
  up once, with its row-wise Adagrad state: per value of such a row two operations for the state,
  two for the step, and one addition for each gradient more than one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.dlrm_profile.example import columns, model, synthetic

FLOAT_BYTES, ID_BYTES = 4, 8


class Work(NamedTuple):
    """What a part does in a step, forward and backward together."""

    flops: int
    moved_bytes: int


class ByteCounter(TorchDispatchMode):
    """Adds up the bytes that operators read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.count += _bytes_of([*args, *(kwargs or {}).values(), result])
        return result


def _bytes_of(values: Iterable[Any]) -> int:
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel() * value.element_size()
        elif isinstance(value, list | tuple):
            total += _bytes_of(value)
    return total


def count_work(batch_size: int, dim: int, rows_scale: float) -> dict[str, Work]:
    """Return the work of each part in a step on made-up inputs."""
    (batch,) = synthetic.SyntheticBatches(columns.table_rows(rows_scale), batch_size, 1)
    tables = len(columns.CATEGORIES)
    net = model.build_dlrm([2] * tables, dim)  # the MLPs do not depend on the size of the tables
    looked_up = torch.randn(batch_size, tables, dim)
    dense = net.dense_arch(batch.dense_features)
    crossed = net.inter_arch(dense, looked_up)
    ids = batch.sparse_features.values().view(tables, batch_size)
    unique = sum(len(torch.unique(of_table)) for of_table in ids)
    return {
        "lookups": lookup_work(ids.numel(), unique, ids.numel(), dim),
        "bottom MLP": _count(net.dense_arch, batch.dense_features),
        "interaction": _count(net.inter_arch, *_leaves(dense, looked_up)),
        "top MLP": _count(net.over_arch, *_leaves(crossed)),
    }


def _leaves(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Inputs of a part that other parts take gradients of."""
    return [tensor.detach().requires_grad_() for tensor in tensors]


def _count(part: torch.nn.Module, *inputs: torch.Tensor) -> Work:
    gradient = torch.ones_like(part(*inputs))
    with FlopCounterMode(display=False) as flops, ByteCounter() as moved:
        part(*inputs).backward(gradient)
    return Work(flops.get_total_flops(), moved.count)


def lookup_work(lookups: int, unique: int, bags: int, dim: int) -> Work:
    """Return the work of lookups by the formulas above.

    Args:
        lookups: in all tables.
        unique: rows that they fall on.
        bags: vectors that come out.
        dim: values in a row.
    """
    row_bytes = dim * FLOAT_BYTES
    forward = lookups * (ID_BYTES + row_bytes) + bags * row_bytes
    backward = bags * row_bytes + lookups * ID_BYTES + 2 * unique * (row_bytes + FLOAT_BYTES)
    pooled, merged = lookups - bags, lookups - unique
    return Work((pooled + merged + 4 * unique) * dim, forward + backward)
