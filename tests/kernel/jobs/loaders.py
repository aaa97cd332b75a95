"""Two epochs of a DataLoader with three workers, once for each of several set-ups.

usage: loaders.py '{"data": DIR, "runs": DIR, "set_ups": [{"name": ..., "method": ...}, ...]}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchdata.stateful_dataloader import StatefulDataLoader

import trainobs
from tests.kernel.ground_truth import read_whole

EPOCHS = 2


class Files(Dataset[int]):
    """Whole files, under an attribute of the caller's choice."""

    def __init__(self, attribute: str, paths: list[Path]) -> None:
        self.attribute = attribute
        setattr(self, attribute, paths)

    def __len__(self) -> int:
        return len(getattr(self, self.attribute))

    def __getitem__(self, index: int) -> int:
        read_whole(getattr(self, self.attribute)[index])
        return index


def train(data: Path, run_dir: Path, set_up: dict[str, Any]) -> None:
    files = Files(set_up.get("attribute", "unknown"), sorted(data.iterdir()))
    loader = (StatefulDataLoader if set_up.get("stateful") else DataLoader)(
        files,
        batch_size=2,
        num_workers=3,
        multiprocessing_context=set_up["method"],
        persistent_workers=set_up.get("persistent", False),
    )
    roots = data if set_up.get("roots") else None
    with trainobs.observe(run_dir=run_dir, data_roots=roots) as obs:
        batches = obs.loader(loader)
        for _ in range(EPOCHS):
            for _ in batches:
                with obs.step():
                    pass


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    print("process", os.getpid())
    for number, set_up in enumerate(settings["set_ups"]):
        train(Path(settings["data"]), Path(settings["runs"], str(number)), set_up)
