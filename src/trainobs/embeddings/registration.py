"""Puts a hook on a module so that what copies, saves or scripts the module goes without it."""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch.jit._recursive
from torch import nn
from torch.utils.hooks import RemovableHandle


class DroppedOnCopy:
    """A hook that copies of its module, by deepcopy or pickle, and script modules go without."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What a copy holds until it is done: needs no trainobs, and does nothing."""
        return getattr, (contextlib.nullcontext(), "__exit__")


class _TakesHookOffCopies:
    """Stands beside a hook, behind it in what is copied: its copy takes the hook's copy off."""

    def __init__(self, hooks: dict[int, Any], number: int) -> None:
        self._hooks = hooks
        self._number = number

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return OrderedDict.pop, (self._hooks, self._number, True)


class PreHook:
    """A forward pre-hook with keyword arguments, on its module until it is removed.

    Its number is below zero. A copy of the module keeps that number, without a hook, among those
    of hooks with keyword arguments: torch must not give it to a hook without them.

    Args:
        module: where it goes.
        hook: what is called.
    """

    def __init__(self, module: nn.Module, hook: DroppedOnCopy) -> None:
        hooks, with_kwargs = module._forward_pre_hooks, module._forward_pre_hooks_with_kwargs
        self._module = module
        self._handle = RemovableHandle(hooks, extra_dict=with_kwargs)
        self._handle.id = number = -1 - self._handle.id
        hooks[number] = hook  # type: ignore[assignment]
        with_kwargs[number] = _TakesHookOffCopies(hooks, number)  # type: ignore[assignment]
        self._removed = False
        _patch(1)

    @property
    def on(self) -> bool:
        """Whether it is on the module: others may clear all hooks."""
        return self._handle.id in self._module._forward_pre_hooks

    def remove(self) -> None:
        """Come off the module. May be called twice."""
        if not self._removed:
            self._removed = True
            self._handle.remove()
            _patch(-1)


_patched = 0
_original: Any = None


def _patch(change: int) -> None:
    """Let torch script modules without our hooks, while there are any.

    TorchScript compiles the hooks of a module with it, and raises for those it cannot compile.
    """
    global _patched, _original
    before, _patched = _patched, _patched + change
    recursive: Any = torch.jit._recursive
    if not before and _patched and hasattr(recursive, "create_script_module"):
        _original = recursive.create_script_module
        recursive.create_script_module = _bare(_original)
    elif before and not _patched and _original is not None:
        if getattr(recursive.create_script_module, "__wrapped__", None) is _original:
            recursive.create_script_module = _original
        _original = None


def _bare(create: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(create)
    def create_script_module(nn_module: Any, *args: Any, **kwargs: Any) -> Any:
        with _hidden(nn_module):
            return create(nn_module, *args, **kwargs)

    return create_script_module


@contextlib.contextmanager
def _hidden(root: nn.Module) -> Iterator[None]:
    """Have no hook of ours on any module below `root`; all others stay, in their order."""
    kept: list[tuple[nn.Module, str, Any]] = []
    try:
        with contextlib.suppress(Exception):  # of a module that is not yet one; torch tells more
            for module in root.modules():
                for name in ("_forward_pre_hooks", "_forward_hooks"):
                    hooks = vars(module).get(name) or {}
                    others = {n: h for n, h in hooks.items() if not isinstance(h, DroppedOnCopy)}
                    if len(others) < len(hooks):
                        kept.append((module, name, hooks))
                        vars(module)[name] = OrderedDict(others)
        yield
    finally:
        for module, name, hooks in kept:
            vars(module)[name] = hooks
