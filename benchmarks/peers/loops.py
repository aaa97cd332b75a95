"""One training of one loop under one tool, in a process of its own: `run.py` starts it.

All three loops run under Lightning, since three of the tools know nothing else. A loop trains for
a fixed time, not for a fixed number of steps: periodic work of a tool then falls into every
measurement, and a tool that makes a step ten times as long takes no longer to measure.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import torch
from files import FILE_BYTES
from small_files import BATCH, SmallFiles
from torch import Tensor, nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from benchmarks.peers.processes import Tree, peak_rss_bytes
from benchmarks.peers.tools import TOOLS

ENDLESS = 10**6
"""Batches of the one epoch, which the clock ends: an end of an epoch would be no ordinary step."""


class Classifier(L.LightningModule):
    """Any model that maps a batch to logits of 10 classes; the labels are of no interest."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def training_step(self, batch: Tensor | list[Tensor], index: int) -> Tensor:
        images = batch if isinstance(batch, Tensor) else batch[0]
        return self.model(images).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


class Window(L.Callback):
    """Ends the training after `warm_up_s` + `window_s`, and measures the second of the two.

    Attributes:
        ends: when each step of the window ended, from the end of the last of the warm-up on, ns.
        steps: all steps, those of the warm-up included.
        cpu_s: CPU time of all processes of this run within the window.
        tool_rss_bytes: peaks of the tool's own processes, added up.
    """

    def __init__(self, warm_up_s: float, window_s: float) -> None:
        self.ends: list[int] = []
        self.steps = 0
        self.cpu_s = 0.0
        self.tool_rss_bytes = 0
        self._warm_up_ns, self._window_ns = int(warm_up_s * 1e9), int(window_s * 1e9)
        self._tree = Tree()
        self._begin = 0

    def on_train_batch_start(self, *_: Any) -> None:
        self._begin = self._begin or time.perf_counter_ns()

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        now = time.perf_counter_ns()
        self.steps += 1
        if self.ends:
            self.ends.append(now)
            if now - self.ends[0] >= self._window_ns:
                self.cpu_s += self._tree.cpu_s()
                self.tool_rss_bytes = self._tree.peak_rss_of_others_bytes()
                trainer.should_stop = True
        elif now - self._begin >= self._warm_up_ns:
            self.cpu_s = -self._tree.cpu_s()
            self.ends.append(time.perf_counter_ns())


@dataclass(frozen=True)
class Loop:
    """How to build a loop's loader from the folder of files, and its model."""

    loader: Callable[[Path], DataLoader[Any]]
    model: Callable[[], nn.Module]


def light_loader(_: Path) -> DataLoader[Any]:
    images = TensorDataset(torch.randn(4096, 512))
    return DataLoader(images, 64, sampler=endless(images, 64))


def heavy_loader(_: Path) -> DataLoader[Any]:
    images = TensorDataset(torch.randn(512, 3, 32, 32))
    return DataLoader(images, 64, sampler=endless(images, 64), num_workers=2)


def small_files_loader(root: Path) -> DataLoader[Any]:
    files = SmallFiles(root)
    return DataLoader(files, BATCH, sampler=endless(files, BATCH), num_workers=2)


def endless(data: Any, batch: int) -> RandomSampler:
    return RandomSampler(data, num_samples=ENDLESS * batch)


def light_model() -> nn.Module:
    return nn.Sequential(nn.Linear(512, 768), nn.ReLU(), nn.Linear(768, 10))


def heavy_model() -> nn.Module:
    layers: list[nn.Module] = []
    for width, next_width in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(width, next_width, 3, stride=2, padding=1), nn.BatchNorm2d(next_width)]
        layers += [nn.ReLU(), nn.Conv2d(next_width, next_width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


LOOPS = {
    "light": Loop(light_loader, light_model),
    "heavy": Loop(heavy_loader, heavy_model),
    "syscalls": Loop(small_files_loader, lambda: nn.Linear(FILE_BYTES, 8)),
}


def main() -> None:
    """Train, and write what was measured to FOLDER/result.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("loop", choices=LOOPS)
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument(
        "folder", type=Path, help="result.json goes here, the tool's files to tool/"
    )
    parser.add_argument("--files", type=Path, required=True, help="what small_files.py has made")
    parser.add_argument("--warm-up-s", type=float, required=True)
    parser.add_argument("--window-s", type=float, required=True)
    options = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    torch.manual_seed(0)
    loop = LOOPS[options.loop]
    torch.set_num_threads(1)
    window = Window(options.warm_up_s, options.window_s)
    train(loop, options.files, window, TOOLS[options.tool].switch_on(options.folder / "tool"))
    found = {
        "ends_ns": window.ends,
        "all_steps": window.steps,
        "cpu_s": window.cpu_s,
        "rss_bytes": peak_rss_bytes("self") + window.tool_rss_bytes,
    }
    (options.folder / "result.json").write_text(json.dumps(found))


def train(loop: Loop, files: Path, window: Window, extra: dict[str, Any]) -> None:
    """Fit until `window` ends it; `extra` is what the tool adds to the Trainer's arguments."""
    callbacks = [window, *extra.pop("callbacks", [])]
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = L.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        enable_model_summary=False,
        callbacks=callbacks,
        **(options | extra),
    )
    trainer.fit(Classifier(loop.model()), loop.loader(files))


if __name__ == "__main__":
    main()
