"""A rank of a job that torchrun started, or one that is told the same, in a plain loop.

Usage: torchrun ... ranks_job.py KIND DIRECTORY STEPS SLOW_RANK SLOW_S

KIND is `ddp` or `fsdp2`. SLOW_RANK sleeps for SLOW_S in each backward, as its gradients come; -1:
every rank does, so that none is slower than the others.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainobs import observe

WIDTH = 64


def model_of(kind: str) -> nn.Module:
    layers = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(6)])
    if kind == "ddp":
        # Several buckets, so that most of the collectives go on behind backward.
        return nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.02)
    from torch.distributed.fsdp import fully_shard

    for layer in layers:
        fully_shard(layer)
    return fully_shard(layers)


class Slowing(torch.autograd.Function):
    """The identity, whose backward takes its time."""

    seconds = 0.0

    @staticmethod
    def forward(context: object, batch: Tensor) -> Tensor:
        return batch.clone()

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:
        time.sleep(Slowing.seconds)
        return gradient


def collectives() -> int:
    """How many this rank took part in."""
    group = dist.distributed_c10d._get_default_group()
    return int(group._get_sequence_number_for_group())


def main() -> None:
    kind, directory, steps, slow_rank = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    if slow_rank in (dist.get_rank(), -1):
        Slowing.seconds = float(sys.argv[5])
    model = model_of(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observe(run_dir=Path(directory, "run"), log_every_n_steps=4, tensorboard="all") as obs:
        for batch in obs.loader([torch.randn(8, WIDTH) for _ in range(steps)]):
            with obs.step():
                with obs.phase("forward"):
                    loss = Slowing.apply(model(batch)).square().mean()
                with obs.phase("backward"):
                    loss.backward()
                with obs.phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
        dist.barrier()
        time.sleep(1.5)  # every rank shows its last window meanwhile
    local = [p.to_local() if kind == "fsdp2" else p for p in model.parameters()]
    weights = sum(p.double().sum().item() for p in local)
    # In one piece, since ranks share the output.
    sys.stdout.write(f"rank {dist.get_rank()}: {weights!r} after {collectives()} collectives\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
