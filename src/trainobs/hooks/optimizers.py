"""Steps of torch's optimizers, as somebody wants to hear of them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


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
        self._handles: Sequence[Any] = (
            register_optimizer_step_post_hook(self._guarded(after)),
            *([register_optimizer_step_pre_hook(self._guarded(before))] if before else []),
        )

    def close(self) -> None:
        """Tell of nothing any more. May be called twice."""
        for handle in self._handles:
            handle.remove()

    def _guarded(self, hook: Callable[[object], None]) -> Callable[..., None]:
        def hooked(optimizer: object, *_: object) -> None:
            if threading.get_ident() != self._thread:
                return
            try:
                hook(optimizer)
            except Exception:
                self._on_fault()

        # Where torch compiles what calls an optimizer, it would look into ours as well.
        if "torch._dynamo" in sys.modules:
            return torch.compiler.disable(hooked)  # type: ignore[no-any-return, no-untyped-call]
        return hooked
