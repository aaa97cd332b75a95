"""Batches whose features have bags of several inputs at once (VBE), as batches with a bag each."""

from __future__ import annotations

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError


def expanded(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    """The same batch with a bag for each input and feature; lookups of a shared bag are repeated.

    On a device this waits for the number of lookups.

    Args:
        kjt: a batch with inverse indices: for each feature and input, which bag is the input's.

    Raises:
        FAEError: a feature has none, so that nobody knows whose a bag is.
    """
    keys, strides = kjt.keys(), kjt.stride_per_key()
    inverse: tuple[list[str], Tensor] = kjt.inverse_indices_or_none() or ([], torch.empty(0))
    lacking = sorted(set(keys).difference(inverse[0]))
    if lacking:
        raise FAEError(
            "cannot tell the inputs of a batch",
            f"a stride for each key (VBE), and no inverse indices of feature {lacking[0]!r}",
            "give the KeyedJaggedTensor inverse_indices of all features, as TorchRec needs them",
        )
    order = [inverse[0].index(key) for key in keys]
    first_bags = torch.tensor([0, *strides[:-1]], device=kjt.device()).cumsum(0)
    of_inputs = inverse[1][order].to(kjt.device(), torch.int64)
    bags = (of_inputs + first_bags.unsqueeze(1)).view(-1)
    lengths = kjt.lengths().index_select(0, bags)
    places = _places(kjt.offsets().long(), bags, lengths.long())
    weights = kjt.weights_or_none()
    return KeyedJaggedTensor(
        keys=keys,
        values=kjt.values().index_select(0, places),
        weights=None if weights is None else weights.index_select(0, places),
        lengths=lengths,
        stride=of_inputs.shape[1],
    )


def _places(offsets: Tensor, bags: Tensor, lengths: Tensor) -> Tensor:
    """Where the values of these bags are, bag behind bag."""
    starts = offsets.index_select(0, bags) - (torch.cumsum(lengths, 0) - lengths)
    shifts = torch.repeat_interleave(starts, lengths)
    return shifts + torch.arange(len(shifts), device=shifts.device)
