"""Finds the lookups in what a loader yields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError, SettingError, shown
from trainobs.fae.kjt.inputs import Inputs
from trainobs.fae.kjt.split import is_split

KeyPath = tuple[str | int, ...]
"""Where something is in a batch: names of attributes and keys, and positions; () is the batch."""

_DEPTH = 4
_NAME_IT = "name it, as in kjt='sparse_features', kjt=1 or kjt=('inputs', 0)"


class KjtFinder:
    """Finds the KeyedJaggedTensor in each batch of a loader, always in the same place.

    The place is searched for in the first batch: the batch itself, or what tuples, lists,
    mappings and other objects (TorchRec's `Batch`, data classes, named tuples) hold, down to four
    levels. Pickles, and takes the place along.

    Args:
        features: that the KeyedJaggedTensor must have, perhaps among others.
        kjt: where it is, for batches that hold several: a name, a position, or several of these
            from the outside in.
    """

    def __init__(
        self, features: Sequence[str], kjt: str | int | Sequence[str | int] | None = None
    ) -> None:
        self._features = frozenset(features)
        self.place: KeyPath | None = None
        if kjt is not None:
            self.place = (kjt,) if isinstance(kjt, (str, int)) else _place(kjt)

    def __call__(self, batch: object) -> KeyedJaggedTensor:
        """The lookups of a batch.

        Raises:
            SettingError: nothing is where `kjt` says, or it does not say which of several.
            FAEError: the batch has no lookups, or lacks features.
        """
        if self.place is None:
            self.place = self._search(batch)
        kjt = look(batch, self.place)
        if not isinstance(kjt, KeyedJaggedTensor):
            raise SettingError(
                f"cannot find the lookups of a batch at {list(self.place)}",
                f"{type(kjt).__name__} there, in a batch that is {_outline(batch)}",
                "give batches of one form, and the place of their KeyedJaggedTensor as kjt=",
            )
        self._check(kjt)
        return kjt

    def _search(self, batch: object) -> KeyPath:
        found = list(_places(batch))
        fitting = [place for place, kjt in found if self._features.issubset(kjt.keys())] or [
            place for place, _ in found
        ]
        if not fitting:
            raise FAEError(
                "cannot find the lookups in a batch",
                f"no KeyedJaggedTensor in {_outline(batch)}",
                "give a loader whose batches hold one",
            )
        if len(fitting) > 1:
            raise SettingError(
                "cannot tell which KeyedJaggedTensor of a batch holds the lookups",
                f"{len(fitting)}, at {', '.join(str(list(place)) for place in fitting)}",
                _NAME_IT,
            )
        return fitting[0]

    def _check(self, kjt: KeyedJaggedTensor) -> None:
        lacking = sorted(self._features.difference(kjt.keys()))
        if lacking:
            raise FAEError(
                "cannot use the lookups of a batch with these tables",
                f"no feature {lacking[0]!r} among {list(kjt.keys())[:8]}",
                "give tables of the model that trains on this loader, whose features are in one "
                "KeyedJaggedTensor",
            )
        if kjt.variable_stride_per_key():
            raise FAEError(
                "cannot use batches whose features have different numbers of inputs",
                f"inputs by feature: {kjt.stride_per_key()[:8]}",
                "take the loader without variable batch sizes",
            )


def inputs_of(kjt: KeyedJaggedTensor, features: Sequence[str]) -> Inputs:
    """The lookups of some features as arrays; weights are left aside.

    Args:
        kjt: of one stride, on any device.
        features: all of them keys of it.

    Raises:
        FAEError: ids are no integers, lengths do not fit them, or hot lookups stand apart.
    """
    if is_split(kjt):
        raise FAEError(
            "cannot count lookups",
            "a batch that was packed, whose hot lookups are no ids",
            "give the loader itself, and not the packed one",
        )
    values, lengths = kjt.values().numpy(force=True), kjt.lengths().numpy(force=True)
    if not np.issubdtype(values.dtype, np.integer):
        raise FAEError(
            "cannot count lookups",
            f"ids of {values.dtype}",
            "make the KeyedJaggedTensor of int64 (or int32) values; floats round large ids to "
            "those of other rows",
        )
    count, keys = kjt.stride(), kjt.keys()
    is_same = list(keys) == list(features)
    rows = range(len(keys)) if is_same else [keys.index(feature) for feature in features]
    if len(values) == len(lengths) and bool((lengths == 1).all()):
        single = values.astype(np.int64, copy=False).reshape(len(keys), count)
        ids = single if is_same else tuple(single[row] for row in rows)
        return Inputs(count, ids, (None,) * len(rows))
    bags = lengths.reshape(len(keys), count).astype(np.int64, copy=False)
    sizes = bags.sum(axis=1)
    ends = np.cumsum(sizes)
    if (len(ends) and ends[-1] != len(values)) or bags.min(initial=0) < 0:
        raise FAEError(
            "cannot count lookups",
            f"lengths from {bags.min(initial=0)} that add up to {sizes.sum()}, "
            f"and {len(values)} ids",
            "repair the loader: a KeyedJaggedTensor's lengths cover its values",
        )
    parts = (values[ends[row] - sizes[row] : ends[row]] for row in rows)
    each = tuple(part.astype(np.int64, copy=False) for part in parts)
    return Inputs(count, each, tuple(bags[row] for row in rows))


def _place(kjt: object) -> KeyPath:
    steps = tuple(kjt) if isinstance(kjt, Sequence) else (None,)
    if not all(isinstance(step, (str, int)) for step in steps):
        raise SettingError("kjt= names no place in a batch", shown(kjt), _NAME_IT)
    return steps


def look(batch: object, place: KeyPath) -> object:
    """What is at a place of a batch; None where there is no such place."""
    for step in place:
        if isinstance(batch, Mapping):
            batch = batch.get(step)
        elif isinstance(step, str):
            batch = getattr(batch, step, None)
        elif isinstance(batch, Sequence) and -len(batch) <= step < len(batch):
            batch = batch[step]
        else:
            return None
    return batch


def _places(batch: object, place: KeyPath = ()) -> Iterator[tuple[KeyPath, KeyedJaggedTensor]]:
    if isinstance(batch, KeyedJaggedTensor):
        yield place, batch
    elif len(place) < _DEPTH:
        for step, part in _parts(batch):
            yield from _places(part, (*place, step))


def _parts(batch: object) -> Iterator[tuple[str | int, object]]:
    if isinstance(batch, (str, bytes, Tensor, nn.Module)):
        return
    if isinstance(batch, Mapping):
        yield from ((key, part) for key, part in batch.items() if isinstance(key, (str, int)))
    elif isinstance(batch, Sequence):
        yield from enumerate(batch)
    else:
        yield from attributes(batch)


def attributes(part: object) -> Iterator[tuple[str, Any]]:
    """What an object holds by name, in `__slots__` too; nothing of its class."""
    yield from getattr(part, "__dict__", {}).items()
    for kind in type(part).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__"):
                if name.endswith("__"):  # __dict__ and __weakref__
                    continue
                name = f"_{kind.__name__.lstrip('_')}{name}"  # as Python stores it
            if hasattr(part, name):
                yield name, getattr(part, name)


def _outline(batch: object) -> str:
    """`tuple of Tensor, Tensor`."""
    parts = [type(part).__name__ for _, part in _parts(batch)]
    kind = type(batch).__name__
    return f"{kind} of {', '.join(parts[:6])}" if parts else kind
