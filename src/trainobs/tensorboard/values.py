"""TensorBoard values that are not numbers."""

from __future__ import annotations

from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text import metadata

from trainobs.core.text import printable

_MARKS = frozenset("\\`*_{}[]()<>#!|&~")
"""What Markdown or HTML may take for their own."""


def as_text(name: str) -> str:
    """Markdown that shows a name as it is, whatever it holds."""
    return "".join(f"&#{ord(c)};" if c in _MARKS else c for c in printable(name))


def text_value(tag: str, markdown: str) -> Summary.Value:
    """A text for TensorBoard's text page, which draws Markdown."""
    tensor = TensorProto(
        dtype=DT_STRING, string_val=[markdown.encode()], tensor_shape=TensorShapeProto()
    )
    summary_metadata = metadata.create_summary_metadata(display_name="", description="")
    return Summary.Value(tag=tag, metadata=summary_metadata, tensor=tensor)
