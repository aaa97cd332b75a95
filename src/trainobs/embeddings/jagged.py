"""TorchRec: the hook on collections that are asked by KeyedJaggedTensors, sharded or not.

Imported only where a model has such a collection, so torchrec is never loaded for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.sparse.tensor_dict import TensorDict

from trainobs.embeddings import opaque
from trainobs.embeddings.buffer import CallIds, FeatureCounts, LookupCall, LookupCapture, copy
from trainobs.embeddings.hooks import SiteHook

_DICT = "a TensorDict of ids"
_GIVE_JAGGED = "give it a KeyedJaggedTensor to have them counted"


class JaggedHook(SiteHook):
    """For collections that are asked by a KeyedJaggedTensor.

    Notes:
        Ids whose memory a pipeline has freed before the module is called are not known
        (`free_features_storage_early`).
    """

    _ids_name = "features"

    def _arguments(self, *asked: Any) -> tuple[KeyedJaggedTensor]:
        values, lengths, keys, bags = asked
        return (KeyedJaggedTensor(list(keys), values, lengths=lengths, **_strides(list(bags))),)

    def _trace(self, args: tuple[Any, ...], kwargs: dict[str, Any], handle: str) -> None:
        features = args[0] if args else kwargs.get(self._ids_name)
        if isinstance(features, KeyedJaggedTensor) and opaque.fits(handle):
            values, lengths = features.values(), features.lengths()
            bags = features.stride_per_key()
            opaque.note("lookup_jagged", handle, values, lengths, features.keys(), bags)
        elif isinstance(features, TensorDict):
            opaque.lost(handle, f"{_DICT}, in compiled code", _GIVE_JAGGED)

    def _note(self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> None:
        if not isinstance(args[0] if args else kwargs.get(self._ids_name), TensorDict):
            super()._note(args, kwargs, trains)
            return
        self._note_unknown(trains)  # to count would take the copy that the collection makes of it
        self.site.tell(
            "dict",
            "trainobs does not know the lookups of %r; the training goes on\n"
            f"  found: {_DICT}\n  do:    {_GIVE_JAGGED}",
        )

    def _ids_of(self, asked: Any) -> torch.Tensor | None:
        return asked.values() if isinstance(asked, KeyedJaggedTensor) else None

    def _call(
        self,
        capture: LookupCapture,
        features: KeyedJaggedTensor,
        args: Any,
        kwargs: Any,
        trains: bool,
    ) -> tuple[LookupCall, torch.Tensor]:
        values = features.values()
        alive = values.numel() == 0 or values.untyped_storage().nbytes() > 0
        varied = features.variable_stride_per_key()
        bags = features.stride_per_key() if varied else features.stride()
        lookups, sample = _lookups(capture, features, alive), None
        if capture.sampled and alive:
            sample = CallIds(copy(capture, values), copy(capture, features.lengths()), ends=False)
        return LookupCall(self.site, features.keys(), lookups, bags, trains, sample), values


def _strides(bags: list[int]) -> dict[str, Any]:
    """What a KeyedJaggedTensor is told of its bags."""
    if len(set(bags)) > 1:
        return {"stride_per_key_per_rank": [[count] for count in bags]}
    return {"stride": bags[0] if bags else 0}


def _lookups(
    capture: LookupCapture, features: KeyedJaggedTensor, alive: bool
) -> Sequence[int] | FeatureCounts | None:
    """Lookups of each key: from what the tensor knows of itself, or summed where the ids are."""
    known: list[int] | None = features.length_per_key_or_none()
    if known is not None:
        return known
    ends = features.offset_per_key_or_none()
    if ends is not None:
        return [end - begin for begin, end in zip(ends, ends[1:], strict=False)]
    if not alive:
        return None
    if not features.values().is_cuda:
        lengths: list[int] = features.length_per_key()  # kept there, as the forward does
        return lengths
    if features.variable_stride_per_key():
        return None
    of_bags = features.lengths().view(len(features.keys()), -1)
    return FeatureCounts(copy(capture, of_bags.sum(1)), ends=False)
