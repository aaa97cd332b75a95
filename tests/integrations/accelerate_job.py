"""One of several ranks with a loop of its own, prepared by Accelerate.

Usage: python -m torch.distributed.run --nproc-per-node 2 accelerate_job.py DIRECTORY WAY

WAY: shard, dispatch, or late.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader

from tests.integrations.models import FEATURES, FileData
from trainobs import observe


def main() -> None:
    directory, way = Path(sys.argv[1]), sys.argv[2]
    config = DataLoaderConfiguration(dispatch_batches=way == "dispatch")
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    rank = accelerator.process_index
    model = nn.Linear(FEATURES, 1)
    batches = DataLoader(FileData(directory / f"data-{rank}", 16), batch_size=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    with observe(run_dir=directory / "run") as obs:
        if way == "late":  # the wrong way round: what is observed is prepared
            train = accelerator.prepare(obs.loader(batches))
        else:
            train = obs.loader(accelerator.prepare(batches))
        seen = []
        for batch in train:
            with obs.step():
                loss = model(batch).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            seen += [round(float(value) * 16) for value in batch[:, 0]]
    print(f"rank {rank} saw {seen} and wrote to {obs.run_dir}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
