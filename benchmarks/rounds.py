"""One round of a loop for the ruler: a plain loop, or one under Lightning, observed or not.

A round trains for a fixed time, after a warm-up. The time holds one of the flushes that trainobs
makes every five seconds, and five of its deliveries, so that both count with what they take.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import lightning as L
import torch
from ruler import Cost, Meter
from torch import nn

WARM_UP_S = 0.5
WINDOW_S = 5.0


def plain_round(
    batches: Iterable[Any],
    model: nn.Module,
    context: AbstractContextManager[Any] | None,
    window_s: float = WINDOW_S,
) -> Cost:
    """Train in a loop of one's own, inside `observe(...)` if that is given."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with context or nullcontext() as obs:
        endless = _endless(obs.loader(batches) if obs else batches)
        scope = obs.step if obs else nullcontext

        def train(seconds: float) -> int:
            count, end = 0, time.monotonic() + seconds
            while time.monotonic() < end:
                batch = next(endless)
                with scope():
                    optimizer.zero_grad()
                    model(batch).square().mean().backward()
                    optimizer.step()
                count += 1
            return count

        train(WARM_UP_S)
        meter = Meter()
        return meter.per_step(train(window_s))


def _endless(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        yield from loader


class Window(L.Callback):
    """Measures from the end of the warm-up on, and then ends the training."""

    def __init__(self, window_s: float) -> None:
        self.cost: Cost | None = None
        self._window_s = window_s
        self._meter: Meter | None = None
        self._steps = 0
        self._end = time.monotonic() + WARM_UP_S

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        self._steps += self._meter is not None
        now = time.monotonic()
        if now < self._end:
            return
        if self._meter is None:
            self._meter, self._end = Meter(), now + self._window_s
        elif self.cost is None:
            self.cost = self._meter.per_step(self._steps)
            trainer.should_stop = True


def fit_round(
    module: L.LightningModule,
    loader: Iterable[Any],
    callbacks: Iterable[L.Callback] = (),
    window_s: float = WINDOW_S,
) -> Cost:
    """Train under Lightning, which is to do nothing else."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    options = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    window = Window(window_s)
    trainer = L.Trainer(accelerator="cpu", max_epochs=-1, callbacks=[window, *callbacks], **options)
    trainer.fit(module, loader)
    assert window.cost is not None, "it ended by itself"
    return window.cost
