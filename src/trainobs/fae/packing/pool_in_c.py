"""What `BagPool` does with each lookup, in C (`native/bags.c`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from trainobs.core.native import loops
from trainobs.fae.kjt.split import Bags

_WIDE = {torch.int32: 0, torch.int64: 1}
_NUMBER, _PLACE, _FLAG = ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32


class _Bags(ctypes.Structure):
    """struct bags."""

    _fields_ = (
        *((name, _NUMBER) for name in ("key_count", "input_count", "value_count")),
        *((name, _PLACE) for name in ("lengths", "starts", "ids", "slots", "weights")),
        ("weight_bytes", _NUMBER),
        *((name, _FLAG) for name in ("wide_lengths", "wide_ids")),
    )


class _Parts(ctypes.Structure):
    """struct parts."""

    _fields_ = (
        *((name, _NUMBER) for name in ("input_count", "value_count", "hot_key_count")),
        *((name, _PLACE) for name in ("inputs", "hot_keys")),
        *((name, _PLACE) for name in ("lengths", "ids", "weights", "key_lengths")),
    )


class PoolInC:
    """The bags of a pool, as C sees them.

    Args:
        library: with the loops.
        bags: of all batches, on the host.
        slots: of the values, or None.
        starts: of the bags among the values; None where each bag has one value.
    """

    def __init__(
        self, library: ctypes.CDLL, bags: Bags, slots: Tensor | None, starts: Tensor | None
    ) -> None:
        self._library = library
        self._kept = (bags, slots, starts)  # C has their addresses
        self._key_count, self._input_count = bags.lengths.shape
        self._struct = _Bags(
            key_count=self._key_count,
            input_count=self._input_count,
            value_count=len(bags.values),
            lengths=_place(bags.lengths),
            starts=_place(starts),
            ids=_place(bags.values),
            slots=_place(slots),
            weights=_place(bags.weights),
            weight_bytes=0 if bags.weights is None else bags.weights.element_size(),
            wide_lengths=_WIDE[bags.lengths.dtype],
            wide_ids=_WIDE[bags.values.dtype],
        )

    @classmethod
    def from_bags(cls, bags: Bags, slots: Tensor | None, starts: Tensor | None) -> PoolInC | None:
        """None where C is not built, or cannot read these tensors."""
        library, weights = loops(), bags.weights
        tensors = (tensor for tensor in (*bags, slots, starts) if tensor is not None)
        is_fit = (
            all(tensor.device.type == "cpu" and tensor.is_contiguous() for tensor in tensors)
            and bags.lengths.dtype in _WIDE
            and bags.values.dtype in _WIDE
            and (weights is None or (weights.ndim == 1 and not weights.requires_grad))
        )
        return cls(library, bags, slots, starts) if library is not None and is_fit else None

    def all_hot(self, keys: Sequence[int]) -> Tensor:
        """As `BagPool.all_hot`."""
        is_hot = torch.ones(self._input_count, dtype=torch.bool)
        of = ctypes.byref(self._struct)
        for key in keys:
            self._check(self._library.trainobs_all_hot(of, key, is_hot.data_ptr()), 0)
        return is_hot

    def put(self, inputs: Tensor, pairs: Sequence[int] | None, into: Bags) -> list[int]:
        """As `BagPool.put`."""
        pairs = pairs or ()
        hot_keys = (_NUMBER * self._key_count)(*(-1,) * self._key_count)
        for hot_key, key in enumerate(pairs):
            hot_keys[key] = hot_key
        inputs = inputs.contiguous()
        key_lengths = (_NUMBER * (self._key_count + len(pairs)))()
        parts = _Parts(
            input_count=len(inputs),
            value_count=len(into.values),
            hot_key_count=len(pairs),
            inputs=_place(inputs),
            hot_keys=ctypes.addressof(hot_keys),
            lengths=_place(into.lengths),
            ids=_place(into.values),
            weights=_place(into.weights),
            key_lengths=ctypes.addressof(key_lengths),
        )
        done = self._library.trainobs_part(ctypes.byref(self._struct), ctypes.byref(parts))
        self._check(done, len(into.values))
        return list(key_lengths)

    def _check(self, done: int, expected: int) -> None:
        """Refuse what C could not do: lengths that were changed meanwhile, by another thread."""
        if done != expected:
            raise RuntimeError(f"bags are not where they were: {done} lookups of {expected}")


def _place(tensor: Tensor | None) -> int | None:
    """Its address; None where there is nothing."""
    return None if tensor is None else tensor.data_ptr()
