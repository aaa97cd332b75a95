"""Train a DLRM on Criteo's click logs, or on inputs like them, with Lightning and trainobs.

Usage::

    python examples/dlrm/train.py                             # a million made-up inputs
    python examples/dlrm/train.py --data train.txt --rows-scale 1     # the Kaggle set
    python examples/dlrm/train.py --no-obs                    # the same without trainobs

What trainobs needs is one callback: ``ObsCallback`` in ``main``. It finds the embedding tables.
"""

from __future__ import annotations

import time
from typing import Any

import lightning as L
import torch
from data import open_data
from lightning.pytorch.loggers import TensorBoardLogger
from model import build_dlrm, use_sparse_gradients
from options import print_report, print_result, read_options, stop_unvalidated
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from torchmetrics.classification import BinaryAUROC
from torchrec.datasets.utils import Batch


class ClickModel(L.LightningModule):
    """A DLRM that learns who clicks."""

    def __init__(self, rows: list[int], dim: int, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = build_dlrm(rows, dim)
        use_sparse_gradients(self.net)
        self.auc = BinaryAUROC()

    def forward(self, batch: Batch) -> Tensor:
        """Return a logit for each input ``(N,)``."""
        return self.net(batch.dense_features, batch.sparse_features).squeeze(-1)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        loss = binary_cross_entropy_with_logits(self(batch), batch.labels)
        self.log("train/loss", loss, prog_bar=True, batch_size=len(batch.labels))
        return loss

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Take a batch into the AUC."""
        self.auc.update(self(batch), batch.labels.int())
        self.log("val/auc", self.auc, prog_bar=True, batch_size=len(batch.labels))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.Adagrad(self.parameters(), self.lr)


class Stopwatch(L.Callback):
    """Counts training inputs and the seconds they took, validation left out."""

    def __init__(self) -> None:
        self.inputs = 0
        self.seconds = 0.0
        self._last = 0.0

    def on_train_epoch_start(self, *_: Any) -> None:
        """Start the clock of an epoch."""
        self._last = time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: L.LightningModule, outputs: Any, batch: Batch, index: int
    ) -> None:
        """Count a batch, and the time since the one before it."""
        now = time.perf_counter()
        self.inputs += len(batch.labels)
        self.seconds += now - self._last
        self._last = now


def main() -> None:
    """Train as the command line says and print the outcome."""
    options = read_options("Train a DLRM with Lightning and trainobs.", "runs/dlrm")
    L.seed_everything(options.seed)
    torch.sparse.check_sparse_tensor_invariants.disable()  # as ever; said aloud, Adagrad is quiet
    data = open_data(options)

    observer = None
    if not options.no_obs:
        from trainobs import ObsCallback

        observer = ObsCallback(run_dir=options.run_dir, embedding_every=options.sampling)
    stopwatch = Stopwatch()
    trainer = L.Trainer(
        max_epochs=1,
        limit_train_batches=options.steps,
        limit_val_batches=options.val_steps,
        logger=TensorBoardLogger(options.run_dir, name="tensorboard", version=""),
        callbacks=[callback for callback in (stopwatch, observer) if callback],
        log_every_n_steps=10,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_model_summary=False,
    )
    trainer.fit(ClickModel(data.rows, options.dim, options.lr), data.train, data.val)
    if "val/auc" not in trainer.callback_metrics:
        stop_unvalidated()
    auc = trainer.callback_metrics["val/auc"].item()
    print_result(stopwatch.inputs, stopwatch.seconds, auc, data.malformed_count)
    if observer:
        print_report(observer.run_dir)
    print(f"tensorboard: tensorboard --logdir {options.run_dir}")


if __name__ == "__main__":
    main()
