"""The hard case: steps of a few milliseconds that consist of system calls.

4096 files of 4 KiB, 128 a step, two workers, a linear layer. The loader and its workers live
through all rounds: trainobs adopts them when a round begins. The first epoch of each round is not
timed, since it pays for the class of every file once; a long training does so once, too.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from files import FILE_BYTES, FILES, make_files
from pairs import compare
from torch.utils.data import DataLoader, Dataset

from trainobs import observe

BATCH = 128
EPOCHS = 3


class SmallFiles(Dataset[torch.Tensor]):
    """The files of `make_files`, as float tensors (FILE_BYTES,)."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def __len__(self) -> int:
        return FILES

    def __getitem__(self, index: int) -> torch.Tensor:
        data = bytearray((self.root / str(index)).read_bytes())
        return torch.frombuffer(data, dtype=torch.uint8).float()


def measure(*, quick: bool) -> dict[str, Any]:
    """Compare the loop with and without `observe`."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="trainobs-bench-") as folder:
        root = Path(folder, "data")
        make_files(root)
        loader = DataLoader(SmallFiles(root), BATCH, num_workers=2, persistent_workers=True)
        model = torch.nn.Linear(FILE_BYTES, 8)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        rounds = iter(range(10_000))

        def one_round(observed: bool) -> list[int]:
            context = observe(run_dir=Path(folder, f"run-{next(rounds)}"))
            with context if observed else nullcontext() as obs:
                batches = obs.loader(loader) if obs else loader
                scope = obs.step if obs else nullcontext
                epoch(batches, scope, model, optimizer)
                timed = (epoch(batches, scope, model, optimizer) for _ in range(EPOCHS))
                return list(chain.from_iterable(timed))

        one_round(False)  # starts the workers
        return compare(one_round, pairs=4 if quick else 60)


def epoch(batches: Any, scope: Any, model: torch.nn.Module, optimizer: Any) -> list[int]:
    """Train one epoch; returns the time from step to step in ns."""
    times = [time.perf_counter_ns()]
    for batch in batches:
        with scope():
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        times.append(time.perf_counter_ns())
    return [after - before for before, after in zip(times, times[1:], strict=False)]
