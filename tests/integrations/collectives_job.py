"""A rank of a job that torchrun started: DDP, and collectives of the loop's own.

Usage: torchrun ... collectives_job.py DIRECTORY STEPS
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from trainobs import observe

WIDTH = 300
PARAMETERS = WIDTH * WIDTH
METRICS = 7
"""Of type float64, which each rank shows the others after each step."""


def main() -> None:
    directory, steps = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Linear(WIDTH, WIDTH, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observe(run_dir=directory / "run", io=True, quiet=True) as obs:
        for _ in range(steps):
            with obs.step():
                with obs.phase("forward"):
                    loss = model(torch.ones(4, WIDTH)).square().mean()
                with obs.phase("backward"):
                    loss.backward()
                with obs.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
                metrics = torch.full((METRICS,), loss.item(), dtype=torch.float64)
                everyones = [torch.empty_like(metrics) for _ in range(dist.get_world_size())]
                dist.all_gather(everyones, metrics)
                dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
