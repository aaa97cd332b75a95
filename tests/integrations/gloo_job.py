"""Ranks of a job on gloo, each forked by this process and observed.

Usage: gloo_job.py LOOP DIRECTORY RANKS STEPS
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from trainobs import observe
from trainobs.integrations.plain import Observation

WIDTH = 300
PARAMETERS = WIDTH * WIDTH
METRICS = 7
"""Of type float64, which each rank shows the others after each step of `ddp`."""
NUMBERS = 30_000
"""Of type float32, in the tensor of `sums`."""

Join = Callable[[], None]
Observe = Callable[[], Observation]


def ddp(join: Join, observed: Observe, steps: int) -> None:
    """Train with DDP, and have collectives of its own; the group is there before and after."""
    join()
    model = nn.parallel.DistributedDataParallel(nn.Linear(WIDTH, WIDTH, bias=False))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observed() as obs:
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


def sums(join: Join, observed: Observe, steps: int) -> None:
    """Add up one tensor in each step; every byte of the group is observed by both its ends."""
    numbers = torch.ones(NUMBERS)  # kept: gloo's thread in torch 2.5 may wait for ever to free it
    with observed() as obs:
        join()
        for _ in range(steps):
            with obs.step(), obs.phase("backward"):
                dist.all_reduce(numbers)
        dist.barrier()
        dist.destroy_process_group()


def train(loop: str, directory: Path, rank: int, ranks: int, steps: int) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "RANK": f"{rank}", "WORLD_SIZE": f"{ranks}"}
    torch.set_num_threads(1)
    where = {"init_method": f"file://{directory / 'store'}", "rank": rank, "world_size": ranks}
    join = partial(dist.init_process_group, "gloo", **where)
    observed = partial(observe, run_dir=directory / "run", io=True, quiet=True)
    {"ddp": ddp, "sums": sums}[loop](join, observed, steps)


def main() -> None:
    loop, directory, ranks, steps = sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:5])
    children = []
    for rank in range(ranks):
        if pid := os.fork():
            children.append(pid)
            continue
        train(loop, directory.absolute(), rank, ranks, steps)
        return
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(max(map(abs, statuses)))


if __name__ == "__main__":
    main()
