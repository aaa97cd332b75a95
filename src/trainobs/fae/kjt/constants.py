"""Small tensors of numbers that the host knows, copied to a device once."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


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
