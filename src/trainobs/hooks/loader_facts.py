"""What `run.json` says of a loader, so that two runs can be compared by it."""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Iterable, Mapping, Sized
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from trainobs.core.records import RunInfo
from trainobs.core.signals import let_signals_through

MOST = 64
"""Loaders of a run that are written down; of a loop that makes one in each step, the first."""

TENSORS = "tensors_per_batch"
"""Of a loader with workers, in the first batch of a pass; None before there is one."""

MOST_PARTS = 4096
"""Parts of a batch that are looked at for its tensors: some 0.2 ms, once a pass."""


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


def note_loader(
    info: RunInfo, loader: DataLoader[Any], serial: int, *, is_new: bool
) -> dict[str, Any]:
    """Write down how a loader works, once for each set-up; returns what is written down.

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
            return known
    own = {**facts, "objects": int(is_new), "passes": 1, "serial": serial, TENSORS: None}
    if len(loaders) < MOST:
        loaders.append(own)
    return own


def tensors_of(batch: object) -> int | None:
    """Tensors in a batch, at least: each is handed over by itself by a worker.

    Those in objects count as well (torchrec's `KeyedJaggedTensor`, a batch of transformers or of
    PyG), but for what they keep in slots. None: an object does not tell what is in it.
    """
    try:
        return sum(isinstance(part, Tensor) for part in _parts(batch))
    except Exception:
        let_signals_through()
        return None


def _parts(batch: object) -> list[object]:
    """A batch and what is in it, as far as it is looked at."""
    parts, seen = [batch], {id(batch)}
    for part in parts:  # which grows meanwhile
        inside = () if isinstance(part, Tensor) else _inside(part)
        for one in islice(inside, MOST_PARTS - len(parts)):
            if id(one) not in seen:
                seen.add(id(one))
                parts.append(one)
    return parts


def _inside(part: object) -> Iterable[object]:
    if isinstance(part, Mapping):
        return part.values()
    if isinstance(part, (list, tuple, set)):
        return part
    return () if isinstance(part, type) else getattr(part, "__dict__", {}).values()


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
