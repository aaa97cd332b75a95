"""What a loader worker tells the kernel: where each batch begins and ends.

A mark is a `prctl` call with a first argument that the kernel does not know. It answers EINVAL and
does nothing; the probes read the arguments. So a worker needs no map and no privilege, however it
was started.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from operator import index
from typing import Any

import numpy as np
from torch import Tensor
from torch.nn import Parameter

from trainobs.core.errors import REPORT
from trainobs.core.log import logger
from trainobs.core.signals import let_signals_through
from trainobs.steps.fast_path import TaskMarks

MOST_PARTS = 256
"""Parts of a batch that are looked at for its size; of one with more it is unknown."""


class Marks(TaskMarks):
    """Marks the batches that one task makes.

    Args:
        worker: number of the worker.
        loader: serial of the loader.
    """

    __slots__ = ()

    def __init__(self, worker: int, loader: int) -> None:
        super().__init__(worker, loader, bytes_of, (Tensor, Parameter, np.ndarray))


def bytes_of(batch: object) -> int:
    """Bytes in the tensors and arrays of a batch; -1 where it holds anything else that is large.

    Also where a part does not tell, as torch's sparse tensors, which raise instead.
    """
    try:
        return index(_bytes_of(batch))  # of numbers of NumPy's, too
    except Exception:
        let_signals_through()
        return -1


def _bytes_of(batch: object) -> int:
    total, left = 0, [batch]
    for _ in range(MOST_PARTS):
        if not left:
            return total
        part = left.pop()
        if isinstance(part, Tensor) or hasattr(part, "nbytes"):
            total += part.nbytes
        elif isinstance(part, dict):
            left += part.values()
        elif isinstance(part, (list, tuple)):
            left += part
        elif part is not None and not isinstance(part, (int, float, str)):
            return -1
    return -1


class MarkingInit:
    """Stands for the `worker_init_fn` of a loader: has the worker mark its batches.

    In the worker it wraps the method by which torch makes a batch, which every batch goes through
    once, and which is made anew with each pass over the loader.
    """

    def __init__(self, inner: Callable[[int], object] | None, loader: int) -> None:
        self.inner = inner
        self.loader = loader

    def __call__(self, worker: int) -> None:
        """Run in the worker, before it makes its first batch."""
        try:
            mark_fetchers(worker, self.loader)
        except Exception:
            tell_fault()
        if self.inner is not None:
            self.inner(worker)


def mark_fetchers(worker: int, loader: int) -> None:
    """Have this process, a worker, mark the batches that it makes.

    A torch whose fetchers are elsewhere leaves its batches unmarked.
    """
    try:
        from torch.utils.data._utils import fetch

        base = fetch._BaseDatasetFetcher
        kinds = [fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher]
        methods = [kind.fetch for kind in kinds]
    except (ImportError, AttributeError):
        return
    made = [-1]  # fetchers so far, less one: the pass over the loader
    busy = [False]  # a data set may use a loader of its own, whose batches are none of this one's

    def counted(init: Callable[..., None]) -> Callable[..., None]:
        @wraps(init)
        def init_and_count(self: Any, *args: Any, **kwargs: Any) -> None:
            if not busy[0]:
                made[0] += 1
                self._trainobs_state = [made[0], 0]
            init(self, *args, **kwargs)

        return init_and_count

    base.__init__ = counted(base.__init__)  # type: ignore[method-assign]
    for kind, method in zip(kinds, methods, strict=True):
        kind.fetch = _marked(method, worker, loader, busy)  # type: ignore[method-assign]


def _marked(
    fetch: Callable[..., Any], worker: int, loader: int, busy: list[bool]
) -> Callable[..., Any]:
    """The method `fetch` of a fetcher, between marks."""
    marks = Marks(worker, loader)

    @wraps(fetch)
    def between_marks(self: Any, *args: Any) -> Any:
        state = getattr(self, "_trainobs_state", None)
        if state is None:
            return fetch(self, *args)
        safely(self, marks.begin, *state)
        state[1] += 1
        busy[0] = True
        try:
            batch = fetch(self, *args)
        except BaseException:
            safely(self, marks.void)
            raise
        finally:
            busy[0] = False
        safely(self, marks.end, batch)
        return batch

    def safely(fetcher: Any, mark: Callable[..., None], *args: Any) -> None:
        try:
            mark(*args)
        except Exception:
            fetcher._trainobs_state = None
            tell_fault()

    return between_marks


def tell_fault() -> None:
    """Say, in a worker, that something of ours has failed, which is being handled."""
    let_signals_through()
    logger.warning(
        "trainobs marks no more batches of this worker; the training goes on\n"
        "  found: the fault below\n  do:    %s",
        REPORT,
        exc_info=True,
    )
