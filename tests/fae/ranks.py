"""Processes that are ranks, started once and given many jobs."""

from __future__ import annotations

import gc
import logging
import os
import signal
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

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
        pipes = [context.Pipe() for _ in range(world_size)]
        self._pipes = [ours for ours, _ in pipes]
        theirs = [end for _, end in pipes]
        arguments = (theirs, str(Path(self._folder.name) / "store"))
        self._process = context.Process(target=_fork, args=arguments, daemon=True)
        self._process.start()
        for end in theirs:
            end.close()
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
        self._process.terminate()
        self._process.join()
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


def _fork(pipes: list[Connection], store: str) -> None:
    """Import once what each rank needs, which takes 9 s of CPU, and fork them."""
    logging.disable(logging.WARNING)  # TorchRec tells of every module that it shards
    import tests.fae.parity  # noqa: F401

    gc.freeze()
    ranks = []
    for rank, pipe in enumerate(pipes):
        if (forked := os.fork()) == 0:
            for other in pipes[:rank] + pipes[rank + 1 :]:
                other.close()
            _serve(rank, len(pipes), store, pipe)
        ranks.append(forked)
    for pipe in pipes:
        pipe.close()
    signal.signal(signal.SIGTERM, lambda *_: [os.kill(one, signal.SIGTERM) for one in ranks])
    for one in ranks:
        os.waitpid(one, 0)


def _serve(rank: int, world_size: int, store: str, pipe: Connection) -> NoReturn:
    torch.set_num_threads(1)
    join(rank, world_size, store)
    while True:
        job, arguments = pipe.recv()
        try:
            pipe.send((True, job(rank, *arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
