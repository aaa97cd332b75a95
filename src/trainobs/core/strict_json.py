"""JSON as every language reads it: what is no finite number is null, as all that is unknown."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np


def dumps(
    value: object,
    *,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
) -> str:
    """A value as JSON in ASCII, with neither NaN nor Infinity; lone surrogates are escapes.

    A number of NumPy's is one, and what else JSON does not know is its text.
    """

    def text(of: object) -> str:
        return json.dumps(of, indent=indent, separators=separators, default=_known, allow_nan=False)

    try:
        return text(value)
    except ValueError:
        return text(_finite(value))


def _known(value: Any) -> object:
    plain = value.item() if isinstance(value, np.generic) else value
    # JSON does not know a longdouble, whose `item` is itself.
    return _finite(plain) if isinstance(plain, bool | int | float) else str(plain)


def _finite(value: Any) -> Any:
    """The same with None for each number that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
