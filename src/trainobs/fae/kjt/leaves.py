"""What a batch is made of: tensors with one row an input, in whatever holds them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
from torchrec.sparse.tensor_dict import TensorDict

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.find import KeyPath, attributes

_LEAVES = (Tensor, KeyedJaggedTensor, np.ndarray, str, bytes, bool, int, float, type(None))


class LeafPlaceholder(NamedTuple):
    """Stands where the leaf of that number was taken out of a batch."""

    number: int


def take_apart(batch: Any) -> tuple[Any, list[tuple[KeyPath, Any]]]:
    """A batch with holes, and what was in them.

    Tuples, named tuples, lists, mappings, data classes and other objects with attributes are gone
    through; what they hold is in the same order for batches of one form.

    Raises:
        FAEError: something is neither a container nor a leaf.
    """
    leaves: list[tuple[KeyPath, Any]] = []

    def take(place: KeyPath, leaf: Any) -> LeafPlaceholder:
        leaves.append((place, leaf))
        return LeafPlaceholder(len(leaves) - 1)

    return _map(batch, (), take), leaves


def put_together(holed: Any, leaves: list[Any]) -> Any:
    """The opposite of `take_apart`, with other leaves."""

    def put(place: KeyPath, leaf: Any) -> Any:
        return leaves[leaf.number] if isinstance(leaf, LeafPlaceholder) else leaf

    return _map(holed, (), put)


def input_count(leaf: Any) -> int | None:
    """Inputs that a leaf has rows of; None for what is no array, and the same for all inputs."""
    if isinstance(leaf, KeyedJaggedTensor):
        return int(leaf.stride())
    if isinstance(leaf, (Tensor, np.ndarray)):
        return int(leaf.shape[0]) if leaf.ndim else -1
    return None


def _map(part: Any, place: KeyPath, change: Callable[[KeyPath, Any], Any]) -> Any:
    if isinstance(part, (*_LEAVES, LeafPlaceholder)):
        return change(place, part)
    if isinstance(part, tuple):
        parts = [_map(inner, (*place, i), change) for i, inner in enumerate(part)]
        return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
    if isinstance(part, (nn.Module, type, TensorDict)) or callable(part):
        _refuse(part, place)
    result = copy.copy(part)
    for step, inner in _steps(part, place):
        changed = _map(inner, (*place, step), change)
        if isinstance(part, (list, Mapping)):
            result[step] = changed
        else:
            object.__setattr__(result, str(step), changed)  # a frozen data class too
    return result


def _steps(part: Any, place: KeyPath) -> Iterator[tuple[Any, Any]]:
    if isinstance(part, list):
        yield from enumerate(part)
    elif isinstance(part, Mapping):
        yield from part.items()
    else:
        held = dict(attributes(part))
        if not held and not hasattr(part, "__dict__"):
            _refuse(part, place)
        yield from held.items()


def _refuse(part: Any, place: KeyPath) -> None:
    raise FAEError(
        "cannot take inputs out of a batch",
        f"{type(part).__name__} at {list(place)}",
        "give batches that hold tensors with one row an input, KeyedJaggedTensors, or constants",
    )
