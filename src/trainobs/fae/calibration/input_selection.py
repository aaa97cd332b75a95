"""Some of the inputs of several batches, selected by what they serve for."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import CDLL
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trainobs.core.native import loops
from trainobs.fae.calibration.outside import IdLimit, OutsideIds
from trainobs.fae.kjt.inputs import Inputs

Places = NDArray[np.intp]
_NUMBER, _PLACE = ctypes.c_int64, ctypes.c_void_p


def selected_inputs(
    batches: Sequence[Inputs], outside: OutsideIds, choices: Sequence[Places]
) -> list[Inputs]:
    """Some of the inputs of several batches, without ids that are outside of their table.

    Args:
        batches: at least one, all of the same features.
        outside: leaves these ids out.
        choices: places among the inputs of all batches behind each other, ascending.

    Returns:
        The inputs of each choice; no view of `batches`.

    Raises:
        FAEError: see `OutsideIds.without`.
    """
    library = loops()
    if library is not None:
        parts = _in_c(library, batches, outside.limits, choices)
        if parts is not None:
            outside.saw(np.sum([_counts_of(batch) for batch in batches], axis=0))
            return parts
    inputs = outside.without(batches)
    return [inputs.take(places) for places in choices]


class _BatchesInC(ctypes.Structure):
    """struct batches."""

    _fields_ = (
        *((name, _NUMBER) for name in ("batch_count", "feature_count")),
        *((name, _PLACE) for name in ("sizes", "rows", "ids", "id_counts", "lengths")),
    )


class _TakingInC(ctypes.Structure):
    """struct taking."""

    _fields_ = (
        *((name, _PLACE) for name in ("places", "ends", "ids")),
        *((name, _NUMBER) for name in ("count", "room", "taken")),
    )


def _in_c(
    library: CDLL, batches: Sequence[Inputs], limits: Sequence[IdLimit], choices: Sequence[Places]
) -> list[Inputs] | None:
    """The same; None where C cannot read an array, and where there is something to refuse."""
    if not all(map(_is_dense, batches)):
        return None
    sizes = np.array([batch.size for batch in batches])
    edges = np.concatenate(([0], np.cumsum(sizes)))
    columns = (
        sizes,
        np.array([limit.row_count for limit in limits]),
        np.concatenate([_ids_of(batch) for batch in batches]),
        np.array([count for batch in batches for count in _counts_of(batch)]),
        np.array([_place(own) for batch in batches for own in batch.lengths]),
    )
    counts = len(batches), len(limits)
    read = _BatchesInC(*counts, *(column.ctypes.data for column in columns))
    takings = (_TakingInC * len(choices))()
    kept: list[_Selection] = []  # C has addresses of theirs
    for taking, places in zip(takings, choices, strict=True):
        room = _room(batches, places, edges)
        if room is None:
            return None
        kept.append(room)
        taking.places, taking.ends, taking.ids = (
            own.ctypes.data for own in (places, room.ends, room.ids)
        )
        taking.count, taking.room = len(places), len(room.ids)
    done = library.trainobs_take(ctypes.byref(read), takings, len(choices))
    is_whole = done == 0 and all(taking.taken == taking.room for taking in takings)
    return [room.inputs for room in kept] if is_whole else None


class _Selection(NamedTuple):
    """Inputs whose ids are still to be written.

    Attributes:
        inputs: their ids are views of `ids`.
        ids: of all features.
        ends: of each batch, places in it and before it.
    """

    inputs: Inputs
    ids: NDArray[np.int64]
    ends: NDArray[np.intp]


def _room(batches: Sequence[Inputs], places: Places, edges: NDArray[np.int64]) -> _Selection | None:
    """For the inputs at some places; None where their lengths cannot be."""
    ends = np.searchsorted(places, edges)
    lengths = tuple(
        None
        if all(own is None for own in column)
        else np.concatenate(
            [
                batch.lookups_of(feature).take(places[ends[i] : ends[i + 1]] - edges[i])
                for i, batch in enumerate(batches)
            ]
        )
        for feature, column in enumerate(zip(*(batch.lengths for batch in batches), strict=True))
    )
    counts = [len(places) if own is None else int(own.sum()) for own in lengths]
    if min(counts, default=0) < 0 or sum(counts) > sum(batch.lookup_count for batch in batches):
        return None
    ids = np.empty(sum(counts), np.int64)
    inputs = Inputs(len(places), tuple(np.split(ids, np.cumsum(counts[:-1]))), lengths)
    return _Selection(inputs, ids, ends[1:])


def _is_dense(batch: Inputs) -> bool:
    """Whether C can read it."""
    lengths = [own for own in batch.lengths if own is not None]
    ids = [batch.ids] if isinstance(batch.ids, np.ndarray) else batch.ids
    return all(len(own) == batch.size for own in lengths) and all(
        own.dtype == np.int64 and own.flags.c_contiguous for own in (*ids, *lengths)
    )


def _ids_of(batch: Inputs) -> NDArray[np.int64]:
    """The address of the ids of each feature; to ask an array for its own takes microseconds."""
    ids = batch.ids
    if isinstance(ids, np.ndarray):
        return np.asarray(ids.ctypes.data + np.arange(len(ids)) * ids.strides[0])
    return np.array([own.ctypes.data for own in ids])


def _counts_of(batch: Inputs) -> list[int]:
    """How many these are."""
    if isinstance(batch.ids, np.ndarray):
        return [batch.size] * len(batch.ids)
    return [len(own) for own in batch.ids]


def _place(array: NDArray[np.int64] | None) -> int:
    """Its address; 0 where there is nothing."""
    return 0 if array is None else array.ctypes.data
