"""The optimizer of a collection's tables, with the hot rows' state in its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torchrec.optim.keyed import CombinedOptimizer

from trainobs.fae.sharding.overlay import HotOverlay


class WrittenBackOptimizer(CombinedOptimizer):  # type: ignore[misc]
    """The fused optimizer of a collection's tables, whose state has the hot rows' in it."""

    def __init__(self, stock: CombinedOptimizer, overlay: HotOverlay) -> None:
        super().__init__(list(stock.optimizers))
        self._overlay = overlay

    @property
    def state(self) -> Mapping[Tensor, Any]:
        """State of each parameter, for reading or for loading into."""
        self._overlay.flush()
        state: Mapping[Tensor, Any] = super().state
        return state

    def update_hyper_parameters(self, params_dict: dict[str, Any]) -> None:
        """Give the tables other settings, and their hot rows; on all ranks."""
        super().update_hyper_parameters(params_dict)
        self._overlay.set_optimizer(params_dict)

    def post_load_state_dict(self) -> None:
        """Read the hot rows' state from the tables' at the next batch."""
        super().post_load_state_dict()
        self._overlay.tables_changed()
