"""Notes of lookups that a compiled graph can hold: operators that nothing looks into.

A hook of Python inside a compiled module would break its graph. An operator of torch does not: it
gets the ids when the graph runs. It returns nothing, so it is registered as one that has an effect,
or the compilers would take it for dead.

Whether autograd is on is asked while the graph is made: while it runs, autograd is always off.

An operator with an effect fits into a graph itself, and into what is checkpointed in it; not into
the branches of `torch.cond`, the bodies of loops and of other operators that take functions, nor
under transforms of `torch.func`. An exported program must have none: it has to load elsewhere.
"""

from __future__ import annotations

from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

from trainobs.embeddings.transforms import under_transform

_library: Any = None


class _Hook(Protocol):
    def note(self, asked: tuple[Any, ...], trains: bool) -> None:
        """`asked` is what was given to `note`."""

    def lose(self, found: str, do: str = ...) -> None:
        """What is asked for from now on goes unseen."""


_hooks: WeakValueDictionary[str, _Hook] = WeakValueDictionary()
_last = 0


def register(hook: _Hook) -> str:
    """A name by which compiled code knows a hook: Dynamo would make a variable of a number.

    Raises:
        ImportError: this torch has no operators with effects.
    """
    global _last
    _define()
    _last += 1
    _hooks[str(_last)] = hook
    return str(_last)


def forget(name: str) -> None:
    """Compiled code that has this name does nothing with it from now on."""
    _hooks.pop(name, None)


_HOLDS_NOTES = {"tag_activation_checkpoint"}
"""Operators that take functions, in whose functions a note works."""


def _trainobs_note_fits(name: str) -> bool:
    """Whether a note may stand where the graph is now; if not, its hook is told.

    It runs while the graph is made, and its answer is a constant there. Dynamo leaves the answer in
    the globals of what it compiles, by the name of this function. Where Dynamo gave up on what
    calls it, it runs as it is, and so does the note.
    """
    output, around = _graph(), set()
    if output is not None:
        if output.export:
            return False
        around = {_name(target) for _, target in output.current_tracer.source_fn_stack}
    in_transform = under_transform() is not None
    hook = _hooks.get(name)
    if hook is None or not (in_transform or around - _HOLDS_NOTES):
        return hook is not None
    where = "a transform of torch.func" if in_transform else ", ".join(sorted(around))
    hook.lose(f"it is called in compiled code in {where}, where nothing can be noted")
    return False


def _graph() -> Any:
    """The graph that is being made, as Dynamo keeps it, or None; no types before torch 2.6."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        return InstructionTranslator.current_tx().output
    except AttributeError:  # none is being made
        return None


def _name(target: Any) -> str:
    """Of an operator that takes functions: `cond`, whatever object stands for it."""
    name = getattr(target, "__name__", None) or getattr(target, "_name", None)
    return str(name or target).rpartition(".")[2]


fits: Any = torch.compiler.assume_constant_result(_trainobs_note_fits)  # type: ignore[no-untyped-call]


def _trainobs_note_lost(name: str, found: str, do: str) -> None:
    """No note tells of what is asked for in the graph: its hook is told while the graph is made."""
    hook = _hooks.get(name)
    if hook is not None and not getattr(_graph(), "export", False):
        hook.lose(found, do)


lost: Any = torch.compiler.assume_constant_result(_trainobs_note_lost)  # type: ignore[no-untyped-call]


def note(operator: str, name: str, *asked: Any) -> None:
    """Put a note, by one of `_OPERATORS`, into the graph that is being made."""
    getattr(torch.ops.trainobs, operator)(*asked, name, torch.is_grad_enabled())


def _run(*arguments: Any) -> None:
    *asked, name, trains = arguments
    hook = _hooks.get(name)
    if hook is not None:
        hook.note(tuple(asked), trains)


def _describe(*_: object) -> None:
    """What the compilers ask instead of running it: it has no result to describe."""


_OPERATORS = {
    "lookup": "(Tensor ids, Tensor? offsets, str hook, bool trains) -> ()",
    "lookup_jagged": (
        "(Tensor values, Tensor lengths, str[] keys, SymInt[] bags, str hook, bool trains) -> ()"
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
