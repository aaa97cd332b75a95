"""Copies of ids for the observer, which no later change of the ids reaches, and no wait."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from trainobs.embeddings.buffer import Take

_PLAIN = {torch.Tensor, torch.nn.Parameter}
"""What can be read as it is; a subclass may be a part of something, or nothing at all."""


def readable(tensor: torch.Tensor) -> bool:
    """Whether the numbers of a tensor can be had without a wait."""
    return type(tensor) in _PLAIN and tensor.device.type in {"cpu", "cuda"}


def copy(take: Take, tensor: torch.Tensor) -> NDArray[np.integer] | torch.Tensor:
    """The numbers of a tensor as they are now.

    On CUDA the copy goes into pinned memory in the current stream, so it comes before whatever
    changes the tensor later, and nothing waits for it.
    """
    take.sample_bytes += tensor.numel() * tensor.element_size()
    if not tensor.is_cuda:
        return tensor.numpy().flatten()
    pinned = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor.reshape(-1), non_blocking=True)
    take.streams.add(torch.cuda.current_stream(tensor.device))
    take.arrived = False
    return pinned


def capturing(tensor: torch.Tensor) -> bool:
    """Whether a CUDA graph is being captured: its replays come past no hook."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
