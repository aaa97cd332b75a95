"""The hard case: steps of a few milliseconds that consist of system calls.

4096 files of 4 KiB, 128 a step, two workers, a linear layer. The loader and its workers live
through all rounds: trainobs adopts them when a round begins. A round's warm-up is an epoch and
more, since the first pays for the class of every file; a long training does so once, too.
"""

from __future__ import annotations

import tempfile
from itertools import count
from pathlib import Path
from typing import Any

import torch
from files import FILE_BYTES, FILES, make_files
from rounds import plain_round
from ruler import Cost, compare
from torch.utils.data import DataLoader, Dataset

from trainobs import observe

BATCH = 128


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
    """What observing adds to the loop, its workers included."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="trainobs-bench-") as folder:
        root = Path(folder, "data")
        make_files(root)
        loader = DataLoader(SmallFiles(root), BATCH, num_workers=2, persistent_workers=True)
        runs = (Path(folder, f"run-{number}") for number in count())
        window_s, blocks = (0.5, 2) if quick else (5.0, 10)

        def one_round(observed: bool) -> Cost:
            context = observe(run_dir=next(runs), quiet=True) if observed else None
            return plain_round(loader, torch.nn.Linear(FILE_BYTES, 8), context, window_s)

        one_round(True)  # starts the workers, and imports what the first flush does
        arms = {"bare": lambda: one_round(False), "observed": lambda: one_round(True)}
        return compare(arms, blocks)
