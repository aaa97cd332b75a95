"""A process group of the test's process alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def lone_rank() -> Iterator[None]:
    """Of gloo. Nothing is left of it: a group that a forked child collects as garbage waits there
    for a thread that only its parent has."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()
