"""Processes that are ranks, started once and given many jobs."""

from __future__ import annotations

import logging
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


class Ranks:
    """A few processes with a gloo group among them.

    Args:
        world_size: how many.
    """

    def __init__(self, world_size: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        context = mp.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(world_size):
            ours, theirs = context.Pipe()
            arguments = (rank, world_size, str(Path(self._folder.name) / "store"), theirs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self.run(_nothing)  # they are up: what tests see of the process no longer changes

    def run(self, job: Callable[..., Any], *arguments: Any, patience_s: float = 500) -> list[Any]:
        """What `job(rank, *arguments)` returns on each rank.

        Raises:
            AssertionError: it raised on a rank, or did not come back.
        """
        for pipe in self._pipes:
            pipe.send((job, arguments))
        results = []
        for rank, pipe in enumerate(self._pipes):
            assert pipe.poll(patience_s), f"rank {rank} hangs in {job.__name__}"
            is_fine, result = pipe.recv()
            assert is_fine, f"rank {rank}:\n{result}"
            results.append(result)
        return results

    def stop(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join()
        self._folder.cleanup()


def join(rank: int, world_size: int, store: str) -> None:
    """Make this process a rank."""
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
    )
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world_size)


def _nothing(rank: int) -> None:
    """The job of a rank that only has to answer."""


def _serve(rank: int, world_size: int, store: str, pipe: Connection) -> None:
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)  # TorchRec tells of every module that it shards
    join(rank, world_size, store)
    while True:
        job, arguments = pipe.recv()
        try:
            pipe.send((True, job(rank, *arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
