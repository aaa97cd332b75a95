"""A process group of the test's process alone."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def lone_rank() -> Iterator[None]:
    """Of gloo. Nothing is left of it: a forked child, as a worker of a loader, that has a group as
    garbage joins a thread that only its parent has, and hangs or dies of it."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
        while gc.collect():  # what a graph of autograd's keeps is garbage once the graph is gone
            pass
