"""Where the arguments of a mark (USDT) are: libbpf writes that down, and the program reads it.

Each knows the structure from a usdt.bpf.h of its own. That of libbpf 1.7 is longer: its bit fields
cross a storage unit, so that `reg_off` moved from byte 12 to 14, though they were to keep it there.
A program with the other one reads 0 for each argument, and nobody is told.

Source: src/usdt.bpf.h of libbpf, `struct __bpf_usdt_spec`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

SPECIFICATIONS = "__bpf_usdt_specs"
"""The map of an object that libbpf writes them to, one for each place of a mark."""

_LONGER_SINCE = (1, 7)
_MOST_ARGUMENTS = 12  # BPF_USDT_MAX_ARG_CNT
_REST = 16  # bytes behind the arguments: a cookie, and how many arguments there are
_SHIFTS = (0, 32, 48, 56)  # of values of 8, 4, 2 and 1 byte
_LAST_KIND = 3  # BPF_USDT_ARG_SIB

_BEGIN = [("value", "<u8"), ("kind", "u1")]
_END = [("signed", "u1"), ("shift", "u1")]
_LAYOUTS = (
    np.dtype([*_BEGIN, ("register", "u1", 5), *_END]),
    np.dtype([*_BEGIN, ("register", "u1", 7), *_END, ("unused", "u1", 6)]),
)
"""`struct __bpf_usdt_arg_spec`, before and since."""


def header_folders(version: tuple[int, ...]) -> tuple[str, ...]:
    """Folders of what a program includes, before all others, whose usdt.bpf.h fits this libbpf."""
    return ("libbpf-1.7", "bpf") if version >= _LONGER_SINCE else ()


def are_as_the_object_reads_them(values: npt.NDArray[np.uint8]) -> bool:
    """Whether libbpf wrote them the way that the program reads them.

    Args:
        values: all of the map `SPECIFICATIONS`, shape (entries, bytes of one).
    """
    length = values.shape[1] - _REST
    layout = next((one for one in _LAYOUTS if one.itemsize * _MOST_ARGUMENTS == length), None)
    if layout is None:
        return False
    counts = values[:, length + 8 : length + 10].copy().view("<i2")
    arguments = values[:, :length].copy().view(layout)
    is_one = np.arange(_MOST_ARGUMENTS) < counts
    is_right = (arguments["signed"] <= 1) & np.isin(arguments["shift"], _SHIFTS)
    is_right &= arguments["kind"] <= _LAST_KIND
    is_empty = ~values[:, :length].reshape(*is_one.shape, layout.itemsize).any(axis=2)
    return bool((counts <= _MOST_ARGUMENTS).all() and np.where(is_one, is_right, is_empty).all())
