r"""Train a ResNet on ImageNet, or on a small set like it, with Lightning and trainobs.

Usage::

    python examples/imagenet/train.py                        # makes 2,000 photographs, 2 epochs
    python examples/imagenet/train.py --no-obs               # the same without trainobs
    python examples/imagenet/train.py --data /data/imagenet --depth 50 --image-size 224 \
        --batch-size 256 --workers 16 --lr 0.1 --epochs 90   # the real one: train/ and val/

What trainobs needs is one callback: ``ObsCallback`` in ``main``.
"""

from __future__ import annotations

import time
from typing import Any

import lightning as L
import torch
from data import build_loaders, find_data
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import TensorBoardLogger
from model import build_resnet
from options import NEVER, Options, print_next, print_result, read_options
from torch import Tensor
from torch.nn.functional import cross_entropy


class Classifier(L.LightningModule):
    """A ResNet that learns which folder an image comes from."""

    def __init__(self, depth: int, classes: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = build_resnet(depth, classes)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = batch
        loss = cross_entropy(self.net(images), labels)
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the share of a batch that is labelled right."""
        images, labels = batch
        right = self.net(images).argmax(dim=1) == labels
        self.log("val/accuracy", right.float().mean(), prog_bar=True, batch_size=len(labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.SGD(self.parameters(), self.hparams["lr"], momentum=0.9)


class Stopwatch(L.Callback):
    """Counts training images and the seconds they took, validation left out."""

    def __init__(self) -> None:
        self.images = 0
        self.seconds = 0.0
        self._last = 0.0

    def on_train_epoch_start(self, *_: Any) -> None:
        """Start the clock of an epoch."""
        self._last = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Count a batch, and the time since the one before it."""
        now = time.perf_counter()
        self.images += len(batch[0])
        self.seconds += now - self._last
        self._last = now


def savers(options: Options) -> list[L.Callback]:
    """Return what saves checkpoints; by default at the end of each epoch."""
    if options.checkpoints == NEVER:
        return []
    folder = options.run_dir / "checkpoints"
    return [ModelCheckpoint(folder, every_n_train_steps=options.checkpoint_steps)]


def main() -> None:
    """Train as the command line says and print the outcome."""
    options = read_options("Train a ResNet with Lightning and trainobs.", "runs/imagenet")
    root = find_data(options)
    L.seed_everything(options.seed, workers=True)
    train_loader, val_loader, classes = build_loaders(root, options)

    observer = None
    if not options.no_obs:
        from trainobs import ObsCallback

        observer = ObsCallback(run_dir=options.run_dir, data_roots=[root])
    stopwatch = Stopwatch()
    callbacks = [stopwatch, *savers(options), observer]

    trainer = L.Trainer(
        max_epochs=options.epochs,
        limit_train_batches=options.limit_batches,
        limit_val_batches=options.limit_batches,
        logger=TensorBoardLogger(options.run_dir, name="tensorboard", version=""),
        callbacks=[callback for callback in callbacks if callback],
        enable_checkpointing=options.checkpoints != NEVER,
        log_every_n_steps=10,
        num_sanity_val_steps=0,
        enable_model_summary=False,
    )
    trainer.fit(Classifier(options.depth, classes, options.lr), train_loader, val_loader)
    accuracy = trainer.callback_metrics["val/accuracy"].item()
    print_result(stopwatch.images, stopwatch.seconds, accuracy)
    print_next(options.run_dir, observer.run_dir if observer else None)


if __name__ == "__main__":
    main()
