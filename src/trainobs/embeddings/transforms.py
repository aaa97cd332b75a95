"""What a module is asked for under transforms of `torch.func`, such as `vmap` and `grad`.

There a tensor of ids may stand for those of many calls, or have no numbers that can be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

under_transform: Any = functorch.peek_interpreter_stack
"""None where no transform is at work."""


@contextmanager
def plain_call(
    args: tuple[Any, ...], kwargs: dict[str, Any], ids_name: str
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]] | None]:
    """A call with plain tensors that asks for what a call under transforms does, all in all.

    Its bags are as many, each with its ids. None: that is not known. Meanwhile no transform is at
    work.

    Args:
        args: of the call.
        kwargs: of the call.
        ids_name: the first argument, where it is given by name.
    """
    layers = functorch.get_interpreter_stack()
    vmaps = {layer.level() for layer in layers if layer.key() == functorch.TransformType.Vmap}
    others = [layer.key() for layer in layers if layer.key() in _UNKNOWN]
    with temporarily_clear_interpreter_stack():
        ids = args[0] if args else kwargs.get(ids_name)
        if others or not isinstance(ids, torch.Tensor):
            yield None
        elif not vmaps:
            flat = [_batched(value)[0] for value in (*args, *kwargs.values())]
            yield tuple(flat[: len(args)]), dict(zip(kwargs, flat[len(args) :], strict=True))
        else:
            given = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
            together = _together(ids, vmaps) if len(given) == 1 else None
            yield None if together is None else ((together,), {})


_UNKNOWN = (functorch.TransformType.Functionalize,)


def _together(ids: torch.Tensor, vmaps: set[int]) -> torch.Tensor | None:
    """The ids of all calls that one stands for, one after the other.

    None where not each `vmap` has them differ: it may ask once for all calls, or for each again.
    """
    plain: torch.Tensor
    plain, places, levels = _batched(ids)
    if levels != vmaps:
        return None
    of_call = list(range(plain.dim()))
    batch = [of_call.pop(place) for place in reversed(places)]
    plain = plain.permute(batch + of_call)
    if len(of_call) < 2:
        return plain.reshape(-1)
    return plain.reshape(math.prod(plain.shape[:-1]), plain.shape[-1])


def _batched(value: Any) -> tuple[Any, list[int], set[int]]:
    """A tensor without its wrappers, and dimension and level of each `vmap`, outermost first."""
    places, levels = [], set()
    while isinstance(value, torch.Tensor) and functorch.is_functorch_wrapped_tensor(value):
        if functorch.is_batchedtensor(value):
            places.append(functorch.maybe_get_bdim(value))
            levels.add(functorch.maybe_get_level(value))
        value = functorch.get_unwrapped(value)
    return value, places, levels
