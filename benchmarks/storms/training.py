"""A small training with everything that a run log can hold, in a process of its own.

Usage: python -m benchmarks.storms.training DIRECTORY [--steps N] [--workers N] [--plain]

Writes its run log to DIRECTORY/run, and its data beside it. Prints each step, and "losses " with
all losses as it ends. With --plain nothing of trainobs is imported.
"""

from __future__ import annotations

import argparse
import os
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

ROWS, IDS, FILES = 100, 4, 16


class Clicks(Dataset[tuple[Tensor, Tensor]]):
    """Inputs of a few numbers from files, and ids of embedding rows."""

    def __init__(self, folder: Path, length: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.files = [folder / f"{number}.npy" for number in range(FILES)]
        self.length = length
        for number, file in enumerate(self.files):
            if not file.exists():
                np.save(file, np.full(8, number, np.float32))

    def __len__(self) -> int:
        """Inputs in an epoch."""
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Numbers of shape (8,), and ids of shape (IDS,)."""
        numbers = torch.from_numpy(np.load(self.files[index % FILES]))
        return numbers, torch.arange(index, index + IDS) % ROWS


class Model(nn.Module):
    """Bags of embedding rows, and a layer on top."""

    def __init__(self, tables: int) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(ROWS, 8) for _ in range(tables))
        self.top = nn.Linear(8, 1)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """A number for each input."""
        looked_up = sum((bag(ids) for bag in self.bags), torch.zeros(()))
        return self.top(numbers + looked_up)


def main() -> None:
    """Train, print, end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=0, help="0: until something ends it")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--tables", type=int, default=2)
    parser.add_argument("--flush-s", type=float, help="how often the record is brought to the disk")
    parser.add_argument("--plain", action="store_true", help="do not observe")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    model: nn.Module = Model(options.tables)
    obs = _Unobserved() if options.plain else _observed(options, model)
    losses = _train(
        nn.parallel.DistributedDataParallel(model) if ranks > 1 else model, options, obs
    )
    obs.close()
    print("losses", *losses, flush=True)
    if ranks > 1:
        torch.distributed.destroy_process_group()


def _observed(options: argparse.Namespace, model: nn.Module) -> Any:
    from trainobs import observe
    from trainobs.session import observer

    if options.flush_s:
        observer.FLUSH_S = observer.HAND_OVER_S = options.flush_s
    return observe(run_dir=options.directory / "run", model=model)


class _Unobserved:
    """What the loop asks of an observation, without one."""

    def loader(self, loader: Any) -> Any:
        return loader

    def step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def close(self) -> None:
        pass


def _train(model: nn.Module, options: argparse.Namespace, obs: Any) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    data = Clicks(options.directory / "data", 64)
    loader = obs.loader(
        DataLoader(data, 4, num_workers=options.workers, persistent_workers=options.workers > 0)
    )
    losses: list[float] = []
    while True:
        left = options.steps - len(losses) if options.steps else len(loader)
        for numbers, ids in islice(loader, left):
            with obs.step():
                with obs.phase("forward"):
                    loss = (model(numbers, ids) - 1).square().mean()
                with obs.phase("backward"):
                    optimizer.zero_grad()
                    loss.backward()
                with obs.phase("optimizer"):
                    optimizer.step()
            losses.append(loss.item())
            print("step", len(losses) - 1, flush=True)
        if options.steps and len(losses) >= options.steps:
            return losses
        with obs.phase("validation"), torch.no_grad():
            model(numbers, ids)
        with obs.phase("augment"):
            pass
        with obs.phase("checkpoint"):
            torch.save(model.state_dict(), options.directory / f"model-{os.getpid()}.pt")


if __name__ == "__main__":
    main()
