"""One rank that trains a DLRM under torch's profiler: where the time of a step goes.

Started by run.py, through torchrun. Every operator of the training thread is put to a part by the
range of the forward pass that it is in; one of the backward pass by the operator of the forward
pass that it belongs to, which autograd numbers; and what moves between ranks, or waits for it, by
its name.
A part's time is that of its operators, less that of operators of other parts inside them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function
from torch.utils.data import DataLoader

from benchmarks.dlrm_profile.example import PARTS, columns, sharded, synthetic

RANGE = "part: "
BACKWARD = "autograd::engine::evaluate_function: "
COMMUNICATION = re.compile(
    r"wait\(\) ##|all2?_?all|alltoall|reduce_?scatter|all_?reduce|c10d", re.I
)
WARM_UP = 5
LR = 0.02


def build(rows: list[int], dim: int, device: torch.device) -> tuple[Any, Any]:
    """Return the sharded model, whose parts are ranges of the profile, and its optimizer."""
    net = sharded.build_net(rows, dim, LR)
    for name, part in PARTS.items():
        mark(getattr(net, name), part)
    model = sharded.shard(net, device)
    return model, sharded.build_optimizer(model, LR)


def mark(module: torch.nn.Module, part: str) -> None:
    """Make a range of the profile of each forward pass of a module."""
    forward = module.forward

    def marked(*args: Any, **kwargs: Any) -> Any:
        with record_function(RANGE + part):
            return forward(*args, **kwargs)

    module.forward = marked


def train(model: Any, optimizer: Any, batches: Any, steps: int, device: torch.device) -> float:
    """Train, without a pipeline, so that parts do not overlap; return seconds a step."""
    start = time.perf_counter()
    for _ in range(steps):
        with record_function(RANGE + "input"):
            batch = next(batches).to(device)
        loss, _ = model(batch)
        optimizer.zero_grad()
        with record_function(RANGE + "backward"):
            loss.backward()
        with record_function(RANGE + "optimizer"):
            optimizer.step()
    return (time.perf_counter() - start) / steps


def times(events: Any, world_size: int) -> Counter[str]:
    """Return the microseconds of each part in the events of the training thread."""
    (thread,) = {event.thread for event in events if event.name == RANGE + "backward"}
    mine = sorted(
        (event for event in events if event.thread == thread),
        key=lambda event: (event.time_range.start, -event.time_range.end),
    )
    forward: dict[int, str] = {}
    spent: Counter[str] = Counter()
    part_of: dict[int, str] = {}
    for event in mine:
        parent = event.cpu_parent
        inherited = part_of[parent.id] if parent is not None else "other"
        part = part_of[event.id] = own_part(event, forward) or inherited
        if event.sequence_nr >= 0 and not event.name.startswith(BACKWARD):
            forward.setdefault(event.sequence_nr, part)
        spent[part] += event.self_cpu_time_total
    # Autograd waits for DDP's all-reduce where no operator runs.
    spent["communication" if world_size > 1 else "other"] += spent.pop("backward")
    return spent


def own_part(event: Any, forward: dict[int, str]) -> str | None:
    """Return the part that an event belongs to whatever it is in; None if it says nothing."""
    if COMMUNICATION.search(event.name):
        return "communication"
    if event.name.startswith(RANGE):
        return event.name.removeprefix(RANGE)
    if event.name.startswith(BACKWARD):
        return forward.get(event.sequence_nr)
    return None


def main() -> None:
    """Measure as the command line says; rank 0 writes what it found as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rows-scale", type=float, required=True)
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--dim", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)  # of each rank, so that one and two compare
    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    rows = columns.table_rows(options.rows_scale)
    count = (WARM_UP + 2 * options.steps) * world_size
    inputs = synthetic.SyntheticBatches(
        rows, options.batch_size, count, rank=rank, world_size=world_size
    )
    batches = iter(DataLoader(inputs, batch_size=None, num_workers=1))
    model, optimizer = build(rows, options.dim, device)
    train(model, optimizer, batches, WARM_UP, device)
    dist.barrier()
    plain = train(model, optimizer, batches, options.steps, device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        profiled = train(model, optimizer, batches, options.steps, device)
    spent = times(profile.events(), world_size)
    if rank == 0:
        found = {
            "world_size": world_size,
            "step_ms": plain * 1e3,
            "profiled_step_ms": profiled * 1e3,
            "parts_ms": {part: us / 1e3 / options.steps for part, us in spent.most_common()},
        }
        options.out.write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
