"""TensorBoard values that are not numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import chain

import numpy as np

from trainobs.core.text import printable
from trainobs.tensorboard import protos

_MARKS = frozenset("\\`*_{}[]()<>#!|&~")
"""What Markdown or HTML may take for their own."""


def as_text(name: str) -> str:
    """Markdown that shows a name as it is, whatever it holds."""
    return "".join(f"&#{ord(c)};" if c in _MARKS else c for c in printable(name))


def scalars(points: Sequence[tuple[str, float]]) -> protos.Summary:
    """Points of curves, by tag; one that is too large for 32 bits is infinite.

    Put together as bytes: to make an object of each value took most of the time of a window.
    """
    with np.errstate(over="ignore"):
        values = np.array([value for _, value in points], "<f4").tobytes()
    parts = ((_head(tag), values[4 * i : 4 * i + 4]) for i, (tag, _) in enumerate(points))
    return protos.Summary.FromString(b"".join(chain.from_iterable(parts)))


@lru_cache(maxsize=4096)
def _head(tag: str) -> bytes:
    """What comes before the four bytes of a value in `Summary`: fields `value`, `tag` and a key."""
    name = tag.encode()
    inside = b"\x0a" + _varint(len(name)) + name + b"\x15"
    return b"\x0a" + _varint(len(inside) + 4) + inside


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the eighth bit tells of more."""
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def text_value(tag: str, markdown: str) -> protos.Summary.Value:
    """A text for TensorBoard's text page, which draws Markdown."""
    about = protos.texts.create_summary_metadata(display_name="", description="")
    return protos.Summary.Value(tag=tag, metadata=about, tensor=string_tensor(markdown.encode()))


def string_tensor(text: bytes) -> protos.TensorProto:
    """A tensor that is one string."""
    return protos.TensorProto(
        dtype=protos.DT_STRING, string_val=[text], tensor_shape=protos.TensorShapeProto()
    )
