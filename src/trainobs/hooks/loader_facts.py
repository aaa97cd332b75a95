"""What `run.json` says of a loader, so that two runs can be compared by it."""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Sized
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from trainobs.core.records import RunInfo
from trainobs.core.signals import let_signals_through

MOST = 64
"""Loaders of a run that are written down; of a loop that makes one in each step, the first."""


class KnownLoaders:
    """Which loaders have been seen, as long as they are there."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}

    def is_new(self, loader: object) -> bool:
        """Whether this one has never been asked for; from now on it has."""
        key = id(loader)
        known = self._known.get(key)
        if known is not None and known() is loader:
            return False
        self._known[key] = weakref.ref(loader, partial(self._forget, key))
        return True

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        if self._known.get(key) is gone:  # not the next one in the same place
            del self._known[key]


def note_loader(info: RunInfo, loader: DataLoader[Any], serial: int, *, is_new: bool) -> None:
    """Write down how a loader works, once for each set-up.

    Args:
        info: of the run.
        loader: one of torch's, of which an iterator is about to be made.
        serial: by which its batches are known (`loader` in the table `batches`).
        is_new: whether it had none before.
    """
    info.settings.setdefault("torch_threads", torch.get_num_threads())
    info.settings.setdefault("torch", str(torch.__version__))
    facts = _facts(loader)
    loaders: list[dict[str, Any]] = info.loaders
    for known in loaders:
        if facts.items() <= known.items():
            known["objects"] += int(is_new)
            known["passes"] += 1
            return
    if len(loaders) < MOST:
        loaders.append({**facts, "objects": int(is_new), "passes": 1, "serial": serial})


def _facts(loader: DataLoader[Any]) -> dict[str, object]:
    workers = loader.num_workers
    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    return {
        "workers": workers,
        "prefetch_factor": loader.prefetch_factor if workers else None,
        "batch_size": loader.batch_size,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "start_method": context.get_start_method() if workers else None,
        "iterable": isinstance(loader.dataset, IterableDataset),
        "batches": _length(loader),
    }


def _length(loader: DataLoader[Any]) -> int | None:
    if not isinstance(loader.dataset, Sized) or isinstance(loader.dataset, IterableDataset):
        return None  # a stream that is asked for its length has torch warn of every batch beyond it
    try:
        return len(loader)
    except Exception:
        let_signals_through()
        return None  # whoever made the data set does not tell
