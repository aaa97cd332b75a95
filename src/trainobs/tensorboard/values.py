"""TensorBoard values that are not numbers."""

from __future__ import annotations

from trainobs.core.text import printable
from trainobs.tensorboard import protos

_MARKS = frozenset("\\`*_{}[]()<>#!|&~")
"""What Markdown or HTML may take for their own."""


def as_text(name: str) -> str:
    """Markdown that shows a name as it is, whatever it holds."""
    return "".join(f"&#{ord(c)};" if c in _MARKS else c for c in printable(name))


def text_value(tag: str, markdown: str) -> protos.Summary.Value:
    """A text for TensorBoard's text page, which draws Markdown."""
    about = protos.texts.create_summary_metadata(display_name="", description="")
    return protos.Summary.Value(tag=tag, metadata=about, tensor=string_tensor(markdown.encode()))


def string_tensor(text: bytes) -> protos.TensorProto:
    """A tensor that is one string."""
    return protos.TensorProto(
        dtype=protos.DT_STRING, string_val=[text], tensor_shape=protos.TensorShapeProto()
    )
