"""The light loops: steps of a millisecond and less, of which observing is the largest share."""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import lightning as L
import torch
from rounds import fit_round, plain_round
from ruler import compare
from torch import Tensor, nn
from torch.utils.data import DataLoader

from trainobs import ObsCallback, observe

BATCH = 64
FEATURES = 32


class Tiny(L.LightningModule):
    """A layer or two."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def training_step(self, batch: Tensor, index: int) -> Tensor:
        return self.model(batch).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


def model() -> nn.Module:
    """Some 0.2 ms forward and backward."""
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, 1))


def measure(*, quick: bool) -> dict[str, Any]:
    """What observing adds to a plain loop and under Lightning, and there what any callback does."""
    torch.set_num_threads(1)
    loader = DataLoader(torch.rand(1 << 16, FEATURES), BATCH)
    window_s, blocks = (0.5, 2) if quick else (5.0, 8)
    with tempfile.TemporaryDirectory(prefix="trainobs-bench-") as folder:
        runs = (Path(folder, str(number)) for number in count())

        def plain(**settings: Any) -> Any:
            context = observe(run_dir=next(runs), quiet=True, **settings) if settings else None
            return plain_round(loader, model(), context, window_s)

        def under_lightning(*callbacks: L.Callback) -> Any:
            return fit_round(Tiny(), loader, callbacks, window_s)

        def callback(probes: str) -> ObsCallback:
            return ObsCallback(run_dir=next(runs), quiet=True, probes=probes)

        plain(probes="auto")  # imports what the first flush does
        return {
            "plain": compare({"bare": plain, "observed": lambda: plain(probes="auto")}, blocks),
            "lightning": compare(
                {
                    "bare": under_lightning,
                    "idle callback": lambda: under_lightning(L.Callback()),
                    "observed": lambda: under_lightning(callback("auto")),
                    "probes off": lambda: under_lightning(callback("off")),
                },
                blocks,
            ),
        }
