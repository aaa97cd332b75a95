"""KeyedJaggedTensors made of others, and tensors of known numbers, without a wait for a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor


@lru_cache(maxsize=1024)
def constant(
    numbers: tuple[int, ...], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """A tensor of numbers that are the same batch by batch, such as places of features.

    To make one on a GPU, or to index a tensor there by a list, waits for the device. So each is
    made once, and any stream may read it from then on.

    Args:
        numbers: what is in it.
        device: where it is to be.
        dtype: of the tensor.

    Returns:
        One tensor for all callers: not to be written to.
    """
    with torch.inference_mode(False):  # an evaluation may be the first to ask, a training the next
        return torch.tensor(numbers, dtype=dtype, device=device)


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
