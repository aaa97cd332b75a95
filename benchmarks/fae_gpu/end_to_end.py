"""Whole passes over a loader whose workers read, and pack where rows are hot: in the clock."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset
from torchrec.datasets.utils import Batch

from benchmarks.fae_gpu.arms import Feed, Trainer
from benchmarks.fae_gpu.bench import Save, about, check_memory, task_of
from benchmarks.fae_gpu.inputs import Inputs
from benchmarks.fae_gpu.meter import Meter, quartiles
from benchmarks.fae_gpu.setup import ARMS, WINDOW, Setup
from trainobs.fae import pack


class Ready(Dataset[Batch]):
    """Batches that were made before: what a loader costs beside packing is the same for all."""

    def __init__(self, batches: list[Batch]) -> None:
        self._batches = batches

    def __getitem__(self, index: int) -> Batch:
        return self._batches[index]

    def __len__(self) -> int:
        return len(self._batches)


def end_to_end(
    setup: Setup, device: torch.device, names: list[str], workers: int, save: Save
) -> None:
    """Train each arm on the same new inputs, pass by pass, in turn.

    The clock runs from the start of the workers to the end of the last step. A pass has
    `setup.steps` batches; those of the warm-up are a pass of their own.
    """
    meter, inputs = Meter(device), Inputs(setup)
    check_memory(setup, inputs, names, device)
    task = task_of(setup, inputs, meter, device)
    trainers = {name: Trainer(ARMS[name], task, Feed([])) for name in names}
    speeds: dict[str, list[float]] = defaultdict(list)
    for i in range(setup.rounds + 1):
        drawn = inputs.draw(setup.steps if i else max(setup.warmup, 1))
        for name in names[i % len(names) :] + names[: i % len(names)]:
            loader: Any = DataLoader(
                Ready(drawn),
                batch_size=None,
                num_workers=workers,
                pin_memory=device.type == "cuda",
            )
            if ARMS[name].mode:
                loader = pack(loader, task.profile, window=WINDOW)
            begin = time.perf_counter()
            count = trainers[name].train_pass(loader)
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            if i:
                speeds[name].append(count / (time.perf_counter() - begin))
                print(name, json.dumps(speeds[name][-1]), flush=True)
        if i:
            save(
                _results(
                    setup, about(task.profile), workers, {name: speeds[name] for name in names}
                )
            )


def _results(
    setup: Setup, tables: dict[str, Any], workers: int, speeds: dict[str, list[float]]
) -> dict[str, Any]:
    first, base = next(iter(speeds.items()))
    return {
        "setup": {"batch_size": setup.batch_size, "batches": setup.steps, "workers": workers},
        "tables": tables,
        "arms": {
            name: {
                "samples_per_s": quartiles(found),
                f"speed_over_{first}": quartiles([a / b for a, b in zip(found, base, strict=True)]),
            }
            for name, found in speeds.items()
        },
    }
