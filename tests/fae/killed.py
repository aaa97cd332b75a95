"""A training of the example's DLRM with hot rows, packed and pipelined, that may be killed."""

from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

with warnings.catch_warnings():  # FBGEMM for hosts warns of kernels that only devices have
    warnings.simplefilter("ignore")
    from torchrec.distributed import TrainPipelineSparseDist

from tests.fae.ranks import join
from trainobs.fae import FAEEmbeddingBagCollectionSharder, calibrate, pack

DLRM = Path(__file__).parents[2] / "examples" / "dlrm"
STEPS, EVERY, EPOCHS = 16, 5, 2  # batches of an epoch and rank; steps from checkpoint to checkpoint
BATCH, WINDOW, DIM, AHEAD = 64, 8, 8, 2


def train(rank: int, world_size: int, folder: Path, resume: str) -> None:
    """Train from the beginning or from the last checkpoint of `folder`, to its end.

    Args:
        rank: of this process.
        world_size: processes.
        folder: for checkpoints, and for what there is at the end: `end-RANK`.
        resume: "" to begin; "all" to go on; "without optimizer" to go on with its state as new.
    """
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    sys.path.insert(0, str(DLRM))
    join(rank, world_size, str(folder / f"store {resume}"))
    training = _Training(rank, world_size, folder)
    if resume:
        training.load(with_optimizer=resume == "all")
    training.run()
    dist.destroy_process_group()


class _Training:
    def __init__(self, rank: int, world_size: int, folder: Path) -> None:
        from data import open_data  # type: ignore[import-not-found]
        from model import build_tables  # type: ignore[import-not-found]
        from options import Options  # type: ignore[import-not-found]
        from sharded import build_net, build_optimizer, shard  # type: ignore[import-not-found]

        self.rank, self.folder, self.step = rank, folder, 0
        # No workers: those of a child of a fork server have a server of their own, which outlives
        # a kill.
        options = Options(
            folder, rows_scale=0.001, dim=DIM, batch_size=BATCH, steps=STEPS, workers=0
        )
        data = open_data(options, rank=rank, world_size=world_size)
        all_ranks = open_data(options).train
        profile = calibrate(
            all_ranks, build_tables(data.rows, DIM), "120kB", margin=0, progress=False
        )
        torch.manual_seed(0)
        sharder = FAEEmbeddingBagCollectionSharder(profile)
        self.model = shard(build_net(data.rows, DIM, 0.05), torch.device("cpu"), sharder)
        self.optimizer = build_optimizer(self.model, 0.05)
        self.packed = pack(data.train, profile, window=WINDOW, seed=3)

    def run(self) -> None:
        """Train to the end of the last epoch."""
        while self.step < EPOCHS * STEPS:
            pipeline = TrainPipelineSparseDist(self.model, self.optimizer, torch.device("cpu"))
            batches = iter(self.packed)
            pipeline.fill_pipeline(batches)
            while pipeline.batches:
                pipeline.progress(batches)
                self.step += 1
                if self.step % EVERY == 0 and self.step % STEPS < STEPS - AHEAD:
                    self.save()
        torch.save(self._local(), self.folder / f"end-{self.rank}")

    def save(self) -> None:
        """Write a checkpoint; whole as soon as `latest` names it."""
        path = self.folder / f"step-{self.step}"
        dcp.save(self._state(), checkpoint_id=str(path))
        torch.save(self.packed.state_dict(ahead=AHEAD), path / f"packed-{self.rank}")
        dist.barrier()
        if self.rank == 0:
            (self.folder / "new").write_text(str(self.step))
            (self.folder / "new").replace(self.folder / "latest")
        dist.barrier()

    def load(self, *, with_optimizer: bool) -> None:
        """Go on from the last checkpoint."""
        self.step = int((self.folder / "latest").read_text())
        path = self.folder / f"step-{self.step}"
        state = self._state()
        if not with_optimizer:  # loading writes into its tensors at once
            del state["optimizer"]
        dcp.load(state, checkpoint_id=str(path))
        self.model.load_state_dict(state["model"])
        if with_optimizer:
            self.optimizer.load_state_dict(state["optimizer"])
        self.packed.load_state_dict(torch.load(path / f"packed-{self.rank}"))

    def _state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def _local(self) -> dict[str, torch.Tensor]:
        """All weights and optimizer state of this rank."""
        found = {}
        state = self._state()
        tensors = [*state["model"].items()]
        for name, values in state["optimizer"]["state"].items():
            tensors += [(f"{name} {key}", value) for key, value in values.items()]
        for name, value in tensors:
            if hasattr(value, "local_shards"):
                parts = [shard.tensor for shard in value.local_shards()]
                found.update({f"{name} {i}": part.clone() for i, part in enumerate(parts)})
            elif isinstance(value, torch.Tensor):
                found[name] = value.detach().clone()
        return found
