"""One of several ranks with a loop of its own, set up by Lightning's Fabric.

Usage: python -m torch.distributed.run --nproc-per-node 2 fabric_job.py DIRECTORY
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader

from tests.integrations.models import FEATURES, FileData
from trainobs import observe


def main() -> None:
    directory = Path(sys.argv[1])
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    data = FileData(directory / f"data-{fabric.global_rank}", 16)
    model = nn.Linear(FEATURES, 1)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=2))
    with observe(run_dir=directory / "run") as obs:
        for batch in obs.loader(loader):
            with obs.step():
                fabric.backward(model(batch).mean())
                optimizer.step()
                optimizer.zero_grad()
    print(f"rank {fabric.global_rank} of {fabric.world_size}: {obs.run_dir}", flush=True)


if __name__ == "__main__":
    main()
