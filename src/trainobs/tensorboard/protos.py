"""TensorBoard's messages, imported when the first of them is made, and not as a training starts."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trainobs.core.unforked import unforked

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.histogram_pb2 import HistogramProto
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING
    from tensorboard.plugins.custom_scalar import layout_pb2 as layout
    from tensorboard.plugins.custom_scalar import metadata as custom_scalars
    from tensorboard.plugins.text import metadata as texts

    __all__ = [
        "DT_STRING",
        "Event",
        "HistogramProto",
        "Summary",
        "TensorProto",
        "TensorShapeProto",
        "custom_scalars",
        "layout",
        "texts",
    ]

_PROTO = "tensorboard.compat.proto"

_HOME = {
    "Event": (f"{_PROTO}.event_pb2", "Event"),
    "HistogramProto": (f"{_PROTO}.histogram_pb2", "HistogramProto"),
    "Summary": (f"{_PROTO}.summary_pb2", "Summary"),
    "TensorProto": (f"{_PROTO}.tensor_pb2", "TensorProto"),
    "TensorShapeProto": (f"{_PROTO}.tensor_shape_pb2", "TensorShapeProto"),
    "DT_STRING": (f"{_PROTO}.types_pb2", "DT_STRING"),
    "layout": ("tensorboard.plugins.custom_scalar.layout_pb2", ""),
    "custom_scalars": ("tensorboard.plugins.custom_scalar.metadata", ""),
    "texts": ("tensorboard.plugins.text.metadata", ""),
}
"""Name -> the module that it is in, or is."""


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home, inside = _HOME[name]
    with unforked():
        module = importlib.import_module(home)
    found = getattr(module, inside) if inside else module
    globals()[name] = found  # and this is asked no more
    return found
