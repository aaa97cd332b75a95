"""What `run.json` says of a loader, so that two runs can be compared by it."""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable, Iterable, Sized
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from trainobs.core.records import RunInfo
from trainobs.core.signals import let_signals_through
from trainobs.hooks.sampler_time import SAMPLER

MOST = 64
"""Loaders of a run that are written down; of a loop that makes one in each step, the first."""

TENSORS = "tensors_per_batch"
"""In the first batch of a pass. Of several passes it is the fewest, as loaders that are set up
alike are one here. None before there is one."""

TOLD = "told_of_passes"
"""Whether the data set may be told of each pass by the loop: what the first batch of a pass takes
longer may then be for that. It has a `set_epoch`, memory or a queue of several processes, or
attributes that were others before, or is made anew. False where no pass has new workers."""

MOST_PARTS = 4096
"""Parts of a batch, or of a data set, that are looked at: 0.3 to 1.5 ms, once a pass."""

_SHARED = ("multiprocessing.", "ctypes")
"""Modules of what tells another process something."""

_FEW = 64
"""Elements of a tensor in shared memory that is no data."""


class KnownLoaders:
    """Which loaders have been seen, as long as they are there."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}
        self._before: dict[tuple[object, ...], tuple[Any, int]] = {}

    def is_new(self, loader: object) -> bool:
        """Whether this one has never been asked for; from now on it has."""
        key = id(loader)
        known = self._known.get(key)
        if known is not None and known() is loader:
            return False
        self._known[key] = weakref.ref(loader, partial(self._forget, key))
        return True

    def is_told(self, set_up: tuple[object, ...], data_set: object) -> bool:
        """Whether a data set may be told that it is about to be gone through (`TOLD`).

        Args:
            set_up: of its loader; of one set up alike it may be another data set each time.
            data_set: it.
        """
        parts = _parts(data_set)
        state = hash(tuple(part for part in parts if type(part) in (bool, int, float, str)))
        if len(self._before) >= MOST and set_up not in self._before:
            return True
        same, before = self._before.setdefault(set_up, (_reference(data_set), state))
        return same() is not data_set or before != state or any(map(_tells, parts))

    def _forget(self, key: int, gone: weakref.ref[Any]) -> None:
        if self._known.get(key) is gone:  # not the next one in the same place
            del self._known[key]


def note_loader(
    info: RunInfo, loader: DataLoader[Any], serial: int, known_loaders: KnownLoaders
) -> dict[str, Any]:
    """Write down how a loader works, once for each set-up; returns what is written down.

    Args:
        info: of the run.
        loader: one of torch's, of which an iterator is about to be made.
        serial: by which its batches are known (`loader` in the table `batches`).
        known_loaders: those that had one before.
    """
    info.settings.setdefault("torch_threads", torch.get_num_threads())
    info.settings.setdefault("torch", str(torch.__version__))
    facts = _facts(loader)
    is_new = known_loaders.is_new(loader)
    has_new_workers = facts["workers"] and (is_new or not facts["persistent_workers"])
    is_told = bool(has_new_workers and not facts["iterable"]) and known_loaders.is_told(
        tuple(facts.values()), loader.dataset
    )
    loaders: list[dict[str, Any]] = info.loaders
    for known in loaders:
        if facts.items() <= known.items():
            known["objects"] += int(is_new)
            known["passes"] += 1
            known[TOLD] |= is_told
            return known
    own = {**facts, "objects": int(is_new), "passes": 1, "serial": serial}
    own |= {TENSORS: None, SAMPLER: None, TOLD: is_told}
    if len(loaders) < MOST:
        loaders.append(own)
    return own


def note_tensors(noted: dict[str, Any], batch: object) -> None:
    """Write down how many tensors the first batch of a pass has, where it is told."""
    count, known = tensors_of(batch), noted[TENSORS]
    if count is not None:
        noted[TENSORS] = count if known is None else min(known, count)


def tensors_of(batch: object) -> int | None:
    """Tensors in a batch, at least: each is handed over by itself by a worker.

    Those in objects count as well (torchrec's `KeyedJaggedTensor`, a batch of transformers or of
    PyG), but for what they keep in slots. None: an object does not tell what is in it.
    """
    try:
        return sum(issubclass(type(part), Tensor) for part in _parts(batch))
    except Exception:
        let_signals_through()
        return None


def _parts(batch: object) -> list[object]:
    """Something and what is in it, as far as it is looked at."""
    parts, seen = [batch], {id(batch)}
    for part in parts:  # which grows meanwhile
        contents = () if issubclass(type(part), Tensor) else inside(part)
        for one in islice(contents, MOST_PARTS - len(parts)):
            if id(one) not in seen:
                seen.add(id(one))
                parts.append(one)
    return parts


def _reference(data_set: object) -> Callable[[], object]:
    """Weak: of what cannot be had so, nobody knows whether it is the same."""
    try:
        return weakref.ref(data_set)
    except TypeError:
        return lambda: None


def _tells(part: Any) -> bool:
    """Whether something is told of a pass, or can tell other processes: a lock tells nothing."""
    kind = type(part)
    if issubclass(kind, Tensor):  # of others, code of their own would run
        is_plain = kind is Tensor and part.layout is torch.strided and not part.is_meta
        return bool(is_plain and part.numel() <= _FEW and part.is_shared())
    is_shared = kind.__module__.startswith(_SHARED) and kind.__name__ not in ("Lock", "RLock")
    return is_shared or hasattr(kind, "set_epoch")


def inside(part: object) -> Iterable[object]:
    """What a part holds, by Python's own means: none of its code runs, which may change it."""
    kind = type(part)
    for holds, contents in _HOLDS:
        if issubclass(kind, holds):
            return contents(part)
    if not kind.__dictoffset__ or issubclass(kind, type):
        return ()
    return dict.values(object.__getattribute__(part, "__dict__"))


_HOLDS: tuple[tuple[type, Callable[[Any], Iterable[object]]], ...] = (
    (dict, dict.values),
    (list, list.__iter__),
    (tuple, tuple.__iter__),
    (set, set.__iter__),
)


def _facts(loader: DataLoader[Any]) -> dict[str, object]:
    workers, prefetch = worker_count(loader), loader.prefetch_factor
    context = getattr(loader, "multiprocessing_context", None) or multiprocessing
    return {
        "workers": workers,
        "prefetch_factor": int(prefetch) if workers and prefetch is not None else None,
        "batch_size": loader.batch_size,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
        "start_method": context.get_start_method() if workers else None,
        "iterable": isinstance(loader.dataset, IterableDataset),
        "shuffle": _shuffle(loader),
        "batches": _length(loader),
    }


def worker_count(loader: DataLoader[Any]) -> int:
    """Workers of a loader, which torch takes as any number."""
    return int(loader.num_workers)


def _shuffle(loader: DataLoader[Any]) -> bool | None:
    """Whether the order is drawn anew for each pass; None: the sampler is none of torch's."""
    batches: Any = loader.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        return None
    sampler: Any = loader.sampler if batches is None else batches.sampler
    if type(sampler) is DistributedSampler:
        return bool(sampler.shuffle)
    if isinstance(sampler, RandomSampler | WeightedRandomSampler | SubsetRandomSampler):
        return True
    return False if type(sampler) is SequentialSampler else None


def _length(loader: DataLoader[Any]) -> int | None:
    if not isinstance(loader.dataset, Sized) or isinstance(loader.dataset, IterableDataset):
        return None  # a stream that is asked for its length has torch warn of every batch beyond it
    try:
        return len(loader)
    except Exception:
        let_signals_through()
        return None  # whoever made the data set does not tell
