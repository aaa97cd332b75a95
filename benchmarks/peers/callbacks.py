"""Callbacks for the tools that bring none of their own for Lightning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
from torch.profiler import ProfilerAction, ProfilerActivity, profile


class TorchProfiler(L.Callback):
    """`torch.profiler` over the whole training, told of every step.

    The usual schedule, which rests most of the time, would report a few steps and not the others.
    """

    def __init__(self, trace: Path) -> None:
        self._trace = trace
        self._profile = profile(
            activities=[ProfilerActivity.CPU], schedule=lambda step: ProfilerAction.RECORD
        )

    def on_train_start(self, *_: Any) -> None:
        self._profile.start()

    def on_train_batch_end(self, *_: Any) -> None:
        self._profile.step()

    def on_train_end(self, *_: Any) -> None:
        self._profile.stop()
        self._profile.export_chrome_trace(str(self._trace))


class DFTracerSteps(L.Callback):
    """DFTracer, with its own marks around the work and the fetch of a step."""

    def __init__(self, log: Path) -> None:
        from dftracer.python import ai, dftracer

        self._log = dftracer.initialize_log(str(log))
        self._work, self._fetch = ai.compute, ai.dataloader.fetch

    def on_train_start(self, *_: Any) -> None:
        self._fetch.start()

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        self._fetch.stop()
        self._work.update(step=index)
        self._work.start()

    def on_train_batch_end(self, *_: Any) -> None:
        self._work.stop()
        self._fetch.start()

    def on_train_end(self, *_: Any) -> None:
        self._fetch.stop()
        self._log.finalize()
