"""Loops that are in C (`native/loops.h`), where that is built.

ctypes calls them without the interpreter's lock. Each has a reference in Python that does the same.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

from trainobs.core.compiled import is_stale, is_whole, tell_stale_native
from trainobs.core.switch import PURE, is_on

_PATH = Path(__file__).with_name("_loops.so")
_NUMBER, _PLACE = ctypes.c_int64, ctypes.c_void_p
_ARGUMENTS = {
    "trainobs_count": (_PLACE, _NUMBER, _PLACE, _NUMBER, _PLACE, _NUMBER),
    "trainobs_histogram": (_PLACE, _NUMBER, _PLACE, _NUMBER),
    "trainobs_hot": (_PLACE, _NUMBER, *(ctypes.c_uint64,) * 2, _NUMBER, _PLACE, _NUMBER),
    "trainobs_set_bits": (_PLACE, _NUMBER, _PLACE, _NUMBER),
    "trainobs_are_set": (_PLACE, _NUMBER, _PLACE, _NUMBER, _PLACE),
    "trainobs_counts": (_PLACE, _NUMBER, _PLACE, _NUMBER, _PLACE),
    "trainobs_take": (_PLACE, _PLACE, _NUMBER),
    "trainobs_all_hot": (_PLACE, _NUMBER, _PLACE),
    "trainobs_part": (_PLACE, _PLACE),
    "trainobs_grown": (
        *(_PLACE, _NUMBER, _NUMBER, _NUMBER),
        *(_PLACE, _NUMBER, _PLACE, _NUMBER, _NUMBER),
        *(_PLACE,) * 3,
    ),
}


@lru_cache(maxsize=1)
def loops() -> ctypes.CDLL | None:
    """The library; None where it is not built, cut off or stale, or Python is asked for."""
    if is_on(PURE) or not is_whole(_PATH):
        return None
    if is_stale(_PATH, "native"):
        tell_stale_native()
        return None
    try:
        library = ctypes.CDLL(str(_PATH))
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, _NUMBER
    except (OSError, AttributeError):  # for another machine, or of another time
        return None
    return library
