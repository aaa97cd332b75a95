"""KeyedJaggedTensors that are made of others, without a wait for a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae.kjt.constants import constant


def lengths_of(kjt: KeyedJaggedTensor) -> Tensor:
    """Lookups of each bag: [keys, inputs]."""
    lengths: Tensor = kjt.lengths()
    return lengths.view(len(kjt.keys()), kjt.stride())


def by_lookup(kjt: KeyedJaggedTensor, *columns: Iterable[int]) -> list[Tensor]:
    """For each lookup, the number of its key: int64[lookups] of each column, with one a key."""
    values, counts = kjt.values(), lengths_of(kjt).sum(1)
    numbers = (constant(tuple(column), values.device) for column in columns)
    return [torch.repeat_interleave(n, counts, output_size=len(values)) for n in numbers]


def with_values(
    kjt: KeyedJaggedTensor,
    values: Tensor,
    keys: Sequence[str] | None = None,
    *,
    is_weighted: bool = True,
) -> KeyedJaggedTensor:
    """The same bags with other values and keys, without inverse indices."""
    return KeyedJaggedTensor(
        keys=kjt.keys() if keys is None else list(keys),
        values=values,
        weights=kjt.weights_or_none() if is_weighted else None,
        lengths=kjt.lengths(),
        stride=kjt.stride(),
        length_per_key=kjt.length_per_key(),
    )


def permuted(kjt: KeyedJaggedTensor, order: Sequence[int]) -> KeyedJaggedTensor:
    """`kjt.permute(order)`, which by itself makes a tensor of the order for each batch."""
    places = constant(tuple(order), kjt.device(), torch.int32)
    result: KeyedJaggedTensor = kjt.permute(list(order), places)
    return result
