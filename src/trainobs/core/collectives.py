"""What torch's flight recorder notes of a collective: its kind, and the bytes of its tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum

from trainobs.core.records import UNKNOWN


class Collective(IntEnum):
    """A kind. An entry is of the first whose name is in its own: `nccl:all_reduce_barrier`."""

    BARRIER = 0
    ALL_REDUCE = 1
    REDUCE_SCATTER = 2
    ALL_GATHER = 3
    ALL_TO_ALL = 4
    BROADCAST = 5
    REDUCE = 6
    GATHER = 7
    SCATTER = 8
    OTHER = 9


_ELEMENT_BYTES = {
    **dict.fromkeys(("Bool", "Byte", "Char", "Float8_e4m3fn", "Float8_e5m2"), 1),
    **dict.fromkeys(("BFloat16", "Half", "Short", "UInt16"), 2),
    **dict.fromkeys(("ComplexHalf", "Float", "Int", "UInt32"), 4),
    **dict.fromkeys(("ComplexFloat", "Double", "Long", "UInt64"), 8),
    "ComplexDouble": 16,
}
"""Source: c10/core/ScalarType.h."""

_MORE_THAN_ONE, _NOT_WHOLE = "coalesced", "sparse"


def kind_of(name: str) -> Collective:
    """Of an entry with this `profiling_name`: `gloo:all_reduce`, `nccl:_all_gather_base`."""
    return next((kind for kind in Collective if kind.name.lower() in name), Collective.OTHER)


def bytes_of(name: str, sizes: Sequence[Sequence[int]] | None, types: Sequence[str] | None) -> int:
    """Bytes of the tensors of an entry; `UNKNOWN` where its sizes do not tell."""
    if sizes is None or types is None or len(sizes) != len(types):
        return UNKNOWN
    if _MORE_THAN_ONE in name or _NOT_WHOLE in name or not _ELEMENT_BYTES.keys() >= set(types):
        return UNKNOWN
    pairs = zip(sizes, types, strict=True)
    return sum(math.prod(size) * _ELEMENT_BYTES[one] for size, one in pairs)
