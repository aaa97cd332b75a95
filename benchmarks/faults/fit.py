"""The same under Lightning."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.nn.functional import cross_entropy

from faults.data import loader_of, validation_loader_of
from faults.training import Training
from faults.work import Log, StepWork, network_of, thread_beside
from trainobs import ObsCallback


def fit(training: Training, folder: Path, run_dir: Path) -> list[int]:
    """As `plain.train`, for what Lightning trainings of the suite do."""
    assert not training.checkpoint, "checkpoints are for the plain loop"
    assert training.ranks == 1, "ranks are for the plain loop"
    torch.set_num_threads(training.threads)
    progress = _Progress(Log(training, folder))
    validation: dict[str, Any] = (
        {"val_check_interval": training.validate_every}
        if training.validate_every
        else {"limit_val_batches": 0}
    )
    trainer = L.Trainer(
        callbacks=[ObsCallback(run_dir=run_dir), progress],
        max_epochs=training.epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        default_root_dir=folder,
        **validation,
    )
    loaders = [loader_of(training, folder)]
    if training.validate_every:
        loaders.append(validation_loader_of(training, folder / "validation"))
    with thread_beside(training.beside):
        trainer.fit(_Classifier(training, folder), *loaders)
    return progress.times


class _Progress(L.Callback):
    """Notes when steps end, and prints."""

    def __init__(self, log: Log) -> None:
        self.times: list[int] = []
        self._log = log

    def on_train_start(self, *arguments: Any) -> None:
        self.times.append(time.monotonic_ns())

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._log.write(batch_idx)
        self.times.append(time.monotonic_ns())

    def on_train_end(self, *arguments: Any) -> None:
        self.times[-1] = time.monotonic_ns()  # a last validation counts, too


class _Classifier(L.LightningModule):
    def __init__(self, training: Training, folder: Path) -> None:
        super().__init__()
        self.model = network_of(training)
        self._work = StepWork(training, folder)

    def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
        return self._work.transfer(batch[0]), batch[1]

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self._work.forward(batch_idx)
        return cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        cross_entropy(self.model(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)
