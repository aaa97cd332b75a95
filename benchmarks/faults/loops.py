"""Small trainings, observed: a plain loop, and the same under Lightning."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset

from trainobs import ObsCallback, observe

CLASSES = 10
SIZE = 64
BATCH = 16

Step = Callable[[int], None]


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Images of noise that cost next to nothing; `work` is done for each of them.

    Args:
        count: how many.
        work: what making one takes, given its number.
    """

    def __init__(self, count: int, work: Step | None = None) -> None:
        self._count = count
        self._work = work
        self._image = torch.rand(3, SIZE, SIZE)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self._work:
            self._work(index)
        return self._image, index % CLASSES


def network(width: int = 16) -> torch.nn.Module:
    """A convolutional network; at the default width a step takes some 20 ms on one CPU."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(width, width, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(8),
        torch.nn.Flatten(),
        torch.nn.Linear(width * 64, CLASSES),
    )


def loader(steps: int, workers: int = 1, work: Step | None = None) -> DataLoader[Any]:
    """A loader of so many batches."""
    return DataLoader(Images(steps * BATCH, work), BATCH, num_workers=workers)


def train(
    run_dir: Path,
    batches: Any,
    model: torch.nn.Module | None = None,
    *,
    epochs: int = 1,
    threads: int = 1,
    in_forward: Step | None = None,
    after_step: Callable[[Any, int], None] | None = None,
) -> None:
    """A plain loop with every phase marked.

    Args:
        run_dir: where the run log goes.
        batches: the loader.
        model: by default `network()`.
        epochs: rounds over the loader.
        threads: that an operation may use; one, so that only the fault competes for CPUs.
        in_forward: done before the forward pass, given the step.
        after_step: done at the end of a step, given the observation and the step.
    """
    torch.set_num_threads(threads)
    model = model or network()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with observe(run_dir=run_dir) as obs:
        number = 0
        observed = obs.loader(batches)
        for _ in range(epochs):
            for images, labels in observed:
                with obs.step():
                    with obs.phase("transfer"):
                        images = images.to("cpu")
                    with obs.phase("forward"):
                        if in_forward:
                            in_forward(number)
                        loss = cross_entropy(model(images), labels)
                    with obs.phase("backward"):
                        loss.backward()
                    with obs.phase("optimizer"):
                        optimizer.step()
                        optimizer.zero_grad()
                    if after_step:
                        after_step(obs, number)
                number += 1


def fit(
    run_dir: Path,
    batches: Any,
    model: torch.nn.Module | None = None,
    *,
    module: Callable[..., Any] | None = None,
    callbacks: tuple[Any, ...] = (),
    **trainer: Any,
) -> None:
    """The same under Lightning; `module` makes the LightningModule from a model."""
    import lightning as L

    torch.set_num_threads(1)
    with_defaults = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": run_dir.parent,
    } | trainer
    L.Trainer(callbacks=[ObsCallback(run_dir=run_dir), *callbacks], **with_defaults).fit(
        (module or lightning_module())(model or network()), batches
    )


def lightning_module() -> type[Any]:
    """The LightningModule; made here, so that plain loops do without Lightning."""
    import lightning as L

    class Classifier(L.LightningModule):
        def __init__(self, model: torch.nn.Module) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 1e-3)

    return Classifier


def busy(seconds: float) -> None:
    """Compute for so long, counted in CPU time: a busy machine gives no discount."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass
