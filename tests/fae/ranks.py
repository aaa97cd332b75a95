"""Processes that are ranks, started once and given many jobs."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import tempfile
import traceback
import warnings
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

_PATH_BYTES = 4096
_MOST_RANKS = 8
_PR_SET_PDEATHSIG = 1
_STDERR = 2


class Ranks:
    """A few processes with a gloo group among them.

    Args:
        world_size: how many.
    """

    def __init__(self, world_size: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        pipes = [Pipe() for _ in range(world_size)]
        self._pipes = [ours for ours, _ in pipes]
        assert origin is not None
        origin.fork([theirs for _, theirs in pipes], str(Path(self._folder.name) / "store"))
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
        for pipe in self._pipes:
            pipe.close()
        self._folder.cleanup()


class Origin:
    """What ranks are forked from: a fork of the tests as they begin.

    All that ranks need is imported by then, which takes 9 s of CPU, and nothing has run yet.
    """

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.fork()
        if not self._pid:
            self._socket.close()
            _fork_ranks(theirs)
        theirs.close()

    def fork(self, pipes: list[Connection], store: str) -> None:
        """Fork a rank for each of some pipes, which are closed here.

        They print where this process does: what FBGEMM says of bad ids, pytest keeps.
        """
        ends = [pipe.fileno() for pipe in pipes]
        socket.send_fds(self._socket, [store.encode()], [_STDERR, *ends])
        for pipe in pipes:
            pipe.close()

    def stop(self) -> None:
        """End it."""
        self._socket.close()
        os.kill(self._pid, signal.SIGTERM)
        os.waitpid(self._pid, 0)


origin: Origin | None = None
"""That of this process, while there are tests of ranks to come (`conftest.py`)."""


def environment(rank: int, world_size: int) -> dict[str, str]:
    """What launchers tell a rank."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
    }


def join(rank: int, world_size: int, store: str) -> None:
    """Make this process a rank."""
    os.environ.update(environment(rank, world_size))
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=world_size)


def _nothing(rank: int) -> None:
    """The job of a rank that only has to answer."""


def _fork_ranks(asked: socket.socket) -> NoReturn:
    _be_a_child()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for ranks
    logging.disable(logging.WARNING)  # TorchRec tells of every module that it shards
    warnings.resetwarnings()
    while True:
        store, descriptors, _, _ = socket.recv_fds(asked, _PATH_BYTES, 1 + _MOST_RANKS)
        if not store:
            os._exit(0)
        stderr, *ends = descriptors
        os.dup2(stderr, _STDERR)
        os.close(stderr)
        for rank, end in enumerate(ends):
            if os.fork() == 0:
                _be_a_child()
                for other in (asked.fileno(), *ends[:rank], *ends[rank + 1 :]):
                    os.close(other)
                _serve(rank, len(ends), store.decode(), Connection(end))
        for end in ends:
            os.close(end)


def _be_a_child() -> None:
    """End with the parent, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _serve(rank: int, world_size: int, store: str, pipe: Connection) -> NoReturn:
    torch.set_num_threads(1)
    join(rank, world_size, store)
    while True:
        try:
            job, arguments = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send((True, job(rank, *arguments)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
