"""Ranks of a job on gloo, by a file store and loopback, each forked by this process and observed.

Usage: peers_job.py DIRECTORY RANKS STEPS NUMBERS

Each step adds up a tensor of so many floats over all ranks, in a phase of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from trainobs import observe


def train(directory: Path, rank: int, ranks: int, steps: int, numbers: int) -> None:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "RANK": f"{rank}", "WORLD_SIZE": f"{ranks}"}
    torch.set_num_threads(1)
    with observe(run_dir=directory / "run", io=True, quiet=True) as obs:
        store = f"file://{directory / 'store'}"
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
        for _ in range(steps):
            with obs.step(), obs.phase("backward"):
                dist.all_reduce(torch.ones(numbers))
        dist.barrier()
        dist.destroy_process_group()


def main() -> None:
    directory, (ranks, steps, numbers) = Path(sys.argv[1]).absolute(), map(int, sys.argv[2:5])
    children = []
    for rank in range(ranks):
        if pid := os.fork():
            children.append(pid)
            continue
        train(directory, rank, ranks, steps, numbers)
        return
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    sys.exit(max(map(abs, statuses)))


if __name__ == "__main__":
    main()
