"""Lightning on two ranks, on packed batches: a script, which Lightning starts again as rank 1.

`python -m tests.fae.lightning_ranks RESULTS` writes what each rank was given, and what was said.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from pathlib import Path

import lightning as L
import torch
from torch.utils.data import DataLoader

from tests.fae.packing import Inputs, collate, inputs_of, is_pure, profile
from trainobs.fae import pack, pack_data_module

OF = profile(0.9)


class Data(L.LightningDataModule):
    """40 inputs, in order."""

    def train_dataloader(self):
        return DataLoader(Inputs(40), 4, collate_fn=collate)


class Seen(L.LightningModule):
    """Notes the inputs and kinds of its batches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.numbers: list[int] = []
        self.kinds: list[bool] = []

    def training_step(self, batch, _):
        self.numbers += [one.number for one in inputs_of(batch, OF)]
        self.kinds.append(is_pure(batch))
        return self.weight * batch.labels.sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main(results: Path) -> None:
    """Train on a packed loader that no process group knew, and on a packed data module."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("trainobs").addHandler(handler)
    found = {}
    for how, data in (
        ("loader", {"train_dataloaders": pack(Data().train_dataloader(), OF, window=5)}),
        ("module", {"datamodule": pack_data_module(Data(), OF, window=5)}),
    ):
        model = Seen()
        trainer = L.Trainer(
            accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, logger=False,
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(model, **data)
        rank = trainer.global_rank
        found[how] = {"numbers": model.numbers, "kinds": model.kinds, "told": list(told)}
        told.clear()
    (results / f"{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
