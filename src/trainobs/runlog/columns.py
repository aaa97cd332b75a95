"""Arrow columns from numpy, without pandas.

`pyarrow.array` looks whether it was given something of pandas', and imports pandas for that where
it is installed: 0.3 s and 38 MiB, in the middle of a training. So columns are made from buffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def numbers(values: npt.NDArray[Any], missing: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """A column of the numbers of `values` (n,), null where `missing` (n,)."""
    plain = np.ascontiguousarray(values)
    valid = None if missing is None else _validity(~missing)
    kind = pa.from_numpy_dtype(plain.dtype)
    return pa.Array.from_buffers(kind, len(plain), [valid, pa.py_buffer(plain)])


def booleans(values: npt.NDArray[np.bool_]) -> pa.Array:
    """A column of yes and no."""
    bits = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, bits])


def texts(values: Sequence[str | None]) -> pa.Array:
    """A column of strings, null for None."""
    encoded = [(value or "").encode() for value in values]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    valid = _validity(np.array([value is not None for value in values], bool))
    buffers = [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def _validity(valid: npt.NDArray[np.bool_]) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
