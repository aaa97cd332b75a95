"""What `run.json` says of a loader, so that two runs can be compared by it."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sized
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from trainobs.core.records import RunInfo
from trainobs.core.signals import let_signals_through

MOST = 64
"""Loaders of a run that are written down; of a loop that makes one in each step, the first."""


def note_loader(info: RunInfo, loader: DataLoader[Any], serial: int) -> None:
    """Write down how a loader works, once for each set-up.

    Args:
        info: of the run.
        loader: one of torch's, of which an iterator was made.
        serial: by which its batches are known (`loader` in the table `batches`).
    """
    info.settings.setdefault("torch_threads", torch.get_num_threads())
    info.settings.setdefault("torch", str(torch.__version__))
    facts = _facts(loader)
    if len(info.loaders) < MOST and all(
        {**known, "serial": 0} != {**facts, "serial": 0} for known in info.loaders
    ):
        info.loaders.append({**facts, "serial": serial})


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
