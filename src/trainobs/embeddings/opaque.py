"""Notes of lookups that a compiled graph can hold: operators that nothing looks into.

A hook of Python inside a compiled module would break its graph. An operator of torch does not: it
gets the ids when the graph runs. It returns nothing, so it is registered as one that has an effect,
or the compilers would take it for dead.

Whether autograd is on is asked while the graph is made: while it runs, autograd is always off.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

_library: Any = None


class _Hook(Protocol):
    def note(self, asked: tuple[Any, ...], trains: bool) -> None:
        """`asked` is what was given to `note`."""


_hooks: WeakValueDictionary[int, _Hook] = WeakValueDictionary()
_last = 0


def register(hook: _Hook) -> int:
    """A number by which compiled code knows a hook.

    Raises:
        ImportError: this torch has no operators with effects.
    """
    global _last
    _define()
    _last += 1
    _hooks[_last] = hook
    return _last


def forget(number: int) -> None:
    """Compiled code that has this number does nothing with it from now on."""
    _hooks.pop(number, None)


def note(operator: str, number: int, *asked: Any) -> None:
    """Put a note, by one of `_OPERATORS`, into the graph that is being made."""
    getattr(torch.ops.trainobs, operator)(*asked, number, torch.is_grad_enabled())


def _run(*arguments: Any) -> None:
    *asked, number, trains = arguments
    hook = _hooks.get(number)
    if hook is not None:
        hook.note(tuple(asked), trains)


def _describe(*_: object) -> None:
    """What the compilers ask instead of running it: it has no result to describe."""


_OPERATORS = {
    "lookup": "(Tensor ids, Tensor? offsets, int hook, bool trains) -> ()",
    "lookup_jagged": (
        "(Tensor values, Tensor lengths, str[] keys, SymInt[] bags, int hook, bool trains) -> ()"
    ),
}


def _define() -> None:
    """Make the operators known to torch; not when this file is imported."""
    global _library
    if _library is None:
        from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

        library: Any = torch.library.Library  # has no types
        _library = library("trainobs", "FRAGMENT")
        for name, schema in _OPERATORS.items():
            _library.define(name + schema)
            _library.impl(name, _run, "CompositeExplicitAutograd")
            torch.library.register_fake(f"trainobs::{name}", _describe, lib=_library)
            _register_effectful_op(getattr(torch.ops.trainobs, name).default, _EffectType.ORDERED)
