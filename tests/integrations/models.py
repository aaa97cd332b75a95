"""Tiny runs of real Lightning: a module, a data set of files, and how a run log is read back."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from tests.samples import part_files
from tests.session.jobs import without_last_lines
from trainobs.core.catalogue import METRICS
from trainobs.runlog.schema import STEPS

NAMESPACES = ("lightning.pytorch", "pytorch_lightning")
FILE_BYTES = 3_000
FEATURES = 4


class FileData(Dataset[Any]):
    """Files of `FILE_BYTES` each, made in `root`; an item is one open and one read."""

    def __init__(self, root: Path, count: int) -> None:
        self.root = root
        self.count = count
        root.mkdir(exist_ok=True)
        for index in range(count):
            (root / f"{index}").write_bytes(bytes([index]) * FILE_BYTES)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((FEATURES,), self.first_byte(index) / self.count)

    def first_byte(self, index: int) -> int:
        return (self.root / f"{index}").open("rb", buffering=0).read(FILE_BYTES)[0]


class Numbers(Dataset[Any]):
    """Data in memory."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Tensor:
        return torch.full((FEATURES,), index / self.count)


class Stream(IterableDataset[Tensor]):
    """Data without a length."""

    def __init__(self, count: int) -> None:
        self.numbers = Numbers(count)

    def __iter__(self) -> Any:
        return (self.numbers[index] for index in range(len(self.numbers)))


def loader(count: int = 16, **options: Any) -> DataLoader[Tensor]:
    """`count` samples in memory, in batches of 2."""
    return DataLoader(Numbers(count), batch_size=2, **options)


@functools.cache
def tiny_class(pl: ModuleType) -> type:
    """A linear layer, as a module of one Lightning namespace."""

    class Tiny(pl.LightningModule):
        def __init__(self, on_step: Callable[[int], object] | None = None) -> None:
            super().__init__()
            self.layer = nn.Linear(FEATURES, 1)
            self.on_step = on_step

        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            if self.on_step:
                self.on_step(batch_idx)
            loss = self.layer(batch).square().mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            self.log("val_loss", self.layer(batch).mean())

        def test_step(self, batch: Tensor, batch_idx: int) -> None:
            self.layer(batch)

        def predict_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return self.layer(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Tiny


class Lightning:
    """One Lightning namespace, and a directory for its runs."""

    def __init__(self, namespace: str, directory: Path) -> None:
        self.pl = importlib.import_module(namespace)
        self.directory = directory

    def module(self, on_step: Callable[[int], object] | None = None) -> Any:
        torch.manual_seed(0)
        return tiny_class(self.pl)(on_step)

    def trainer(self, callbacks: object = None, **options: object) -> Any:
        """A Trainer that writes nothing by itself."""
        quiet = {
            "max_epochs": 1,
            "accelerator": "cpu",
            "default_root_dir": self.directory,
            "num_sanity_val_steps": 0,
        }
        if not options.get("barebones"):
            for name in ("logger", "checkpointing", "progress_bar", "model_summary"):
                quiet[name if name == "logger" else f"enable_{name}"] = False
        return self.pl.Trainer(callbacks=callbacks, **(quiet | options))

    def fit(self, callbacks: object = None, *, val: object = None, **options: object) -> Any:
        """Trainer and module after a fit of 8 batches."""
        trainer, module = self.trainer(callbacks, **options), self.module()
        trainer.fit(module, loader(), val)
        return trainer


def told_by_trainobs(errors: str) -> list[str]:
    """Lines that mention it, other than by the place of a checkout that has this name."""
    lines = without_last_lines(errors).replace(str(Path(__file__).parents[2]), "").splitlines()
    return [line for line in lines if "trainobs" in line]


def read_steps(run_dir: Path, rank: int = 0) -> pa.Table:
    """Every row of the `steps` table of a rank."""
    # Read at once: pyarrow opens a path twice, and a run that goes on replaces its open part.
    parts = [path.read_bytes() for path in part_files(run_dir, rank, STEPS)]
    return pa.concat_tables(pq.read_table(pa.BufferReader(part)) for part in parts)


def step_numbers(run_dir: Path, rank: int = 0) -> list[int]:
    """Numbers of the steps in the run log; first comes the set-up, a null."""
    first, *numbers = read_steps(run_dir, rank)["step"].to_pylist()
    assert first is None
    return numbers


DURATION = METRICS["step/duration_ns"].tag.name


def logged_steps(directory: Path, tag: str = DURATION) -> list[int]:
    """Steps at which TensorBoard has a point; by default of the time that a step took.

    In the order of time: TensorBoard reads file 10 of a second before its file 9.
    """
    events = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    events.Reload()
    points = events.Scalars(tag) if tag in events.Tags()["scalars"] else []
    return [point.step for point in sorted(points, key=lambda point: point.wall_time)]
