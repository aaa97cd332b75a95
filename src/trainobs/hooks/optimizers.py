"""Steps of torch's optimizers, as somebody wants to hear of them."""

from __future__ import annotations

import gc
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from torch.optim import optimizer


class OptimizerHooks:
    """Tells of each step of any `torch.optim.Optimizer` in this thread, until it is closed.

    Args:
        after: called with the optimizer as its step has ended.
        on_fault: called while an exception of these is handled.
        before: called with the optimizer as its step begins.
    """

    def __init__(
        self,
        after: Callable[[object], None],
        on_fault: Callable[[], None],
        before: Callable[[object], None] | None = None,
    ) -> None:
        self._thread = threading.get_ident()
        self._on_fault = on_fault
        self._is_open = True
        _remove_left()
        self._handles = [optimizer.register_optimizer_step_post_hook(self._guarded(after))]
        if before is not None:
            self._handles.append(optimizer.register_optimizer_step_pre_hook(self._guarded(before)))

    def close(self) -> None:
        """Tell of nothing any more. May be called twice, and while an optimizer steps."""
        self._is_open = False
        _left.extend(self._handles)
        self._handles = []
        _remove_left()

    def _guarded(self, hook: Callable[[object], None]) -> Callable[..., None]:
        def hooked(of: object, *_: object) -> None:
            if not self._is_open or threading.get_ident() != self._thread:
                return
            try:
                hook(of)
            except Exception:
                self._on_fault()

        # What `torch.compiler.disable` sets, for which it would import all of torch._dynamo: where
        # torch compiles what calls an optimizer, it would look into ours as well.
        hooked._torchdynamo_disable = True  # type: ignore[attr-defined]
        return hooked


def in_use() -> bool:
    """Whether torch goes through its hooks of optimizers in this thread.

    None may be added or removed meanwhile: that raises a RuntimeError in the optimizer's step.
    """
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename == _FILE and frame.f_code.co_name == "wrapper":
            break
    else:
        return False
    # Most of a step is the optimizer's own work, some of it the user's, as a closure of LBFGS.
    lists = optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks
    return any(isinstance(one, _ITERATOR) for one in gc.get_referrers(*lists))


_FILE = optimizer.Optimizer.profile_hook_step.__code__.co_filename
"""Where torch calls the hooks, in a function `wrapper`."""

_ITERATOR = type(iter(OrderedDict[int, object]().values()))

_left: list[Any] = []
"""Handles of hooks that could not be removed yet."""


def _remove_left() -> None:
    if _left and not in_use():
        while _left:
            _left.pop().remove()
