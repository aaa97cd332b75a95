"""Batches, gradients and checkpoints that take long to move."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from faults.loops import fit, lightning_module, loader, network, train

STEPS = 48
LATE_S = 0.1
CHECKPOINT_VALUES = 50_000_000  # 200 MB
SAVE_EVERY = 6


def slow_copy(files: Path, run_dir: Path) -> None:
    """The transfer makes the batch 64 times as large, and copies it to and fro."""
    base = lightning_module()

    class Copying(base):  # type: ignore[misc, valid-type]
        def transfer_batch_to_device(self, batch: Any, device: Any, dataloader_idx: int) -> Any:
            large = batch[0].repeat(64, 1, 1, 1).to(torch.float64).to(torch.float32)
            return large[: len(batch[0])].to(device), batch[1].to(device)

    fit(run_dir, loader(STEPS), module=Copying)


def large_checkpoints(files: Path, run_dir: Path) -> None:
    """200 MB are saved every six steps."""
    state = torch.rand(CHECKPOINT_VALUES)

    def save(obs: Any, step: int) -> None:
        if step % SAVE_EVERY == SAVE_EVERY - 1:
            with obs.phase("checkpoint"):
                torch.save(state, files / "checkpoint.pt")

    train(run_dir, loader(STEPS), after_step=save)


def slow_collective(files: Path, run_dir: Path) -> None:
    """Two ranks; the second sleeps 100 ms in backward, and the first waits in all-reduce."""
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(network())
    if int(os.environ["RANK"]) == 1:
        # The gradient of the last layer comes first, so all buckets are late.
        last = list(model.parameters())[-1]
        last.register_hook(lambda gradient: time.sleep(LATE_S))
    try:
        train(run_dir, loader(STEPS), model)
    finally:
        torch.distributed.destroy_process_group()
