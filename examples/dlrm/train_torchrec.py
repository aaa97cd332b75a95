"""Train the DLRM of train.py in a plain TorchRec loop, its tables sharded over the ranks.

Usage::

    python examples/dlrm/train_torchrec.py                            # one process
    torchrun --nproc-per-node 2 examples/dlrm/train_torchrec.py       # two, on CPUs too

and the other arguments of train.py; ``--batch-size`` and ``--steps`` are those of one rank.
trainobs comes in with ``observe(model=...)``, ``obs.loader`` and ``obs.step``; TorchRec's pipeline
fetches a batch two steps before it trains on it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from data import Loader, in_step, open_data
from options import Options, print_report, print_result, read_options, stop_unvalidated
from sharded import build_net, build_optimizer, shard
from torch import nn
from torchmetrics.classification import BinaryAUROC
from torchrec.datasets.utils import Batch
from torchrec.distributed import TrainPipelineSparseDist
from tqdm import tqdm

Pipeline = TrainPipelineSparseDist[Batch, Any]


class Unobserved:
    """What ``--no-obs`` puts in the place of the observer: the same words, nothing behind them."""

    run_dir = None

    def loader(self, loader: Loader) -> Loader:
        return loader

    def step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


def open_observer(options: Options, model: nn.Module) -> AbstractContextManager[Any]:
    if options.no_obs:
        return nullcontext(Unobserved())
    from trainobs import observe

    return observe(
        run_dir=options.run_dir,
        data_roots=options.data or None,
        log_every_n_steps=10,
        model=model,
        embedding_every=options.sampling,
    )


def join_job() -> torch.device:
    """Join the ranks that torchrun started, or be the only one; return this rank's device."""
    for name, value in (("RANK", 0), ("LOCAL_RANK", 0), ("WORLD_SIZE", 1), ("MASTER_PORT", 0)):
        os.environ.setdefault(name, str(value))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    if not torch.cuda.is_available():
        dist.init_process_group("gloo")
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    return device


def train(pipeline: Pipeline, batches: Iterator[Batch], options: Options, obs: Any) -> int:
    """Train on all batches under a progress bar of rank 0; return how many inputs they held."""
    inputs = 0
    pipeline.fill_pipeline(batches)
    with tqdm(total=options.steps, desc="train", disable=dist.get_rank() > 0) as bar:
        while pipeline.batches:
            with obs.step():
                _, _, labels = pipeline.progress(batches)
            inputs += len(labels)
            bar.update()
    return inputs


@torch.no_grad()
def measure_auc(pipeline: Pipeline, batches: Iterator[Batch], device: torch.device) -> float:
    """Return the area under the ROC curve over the batches of all ranks."""
    auc = BinaryAUROC().to(device)
    pipeline.fill_pipeline(batches)
    while pipeline.batches:
        _, logits, labels = pipeline.progress(batches)
        auc.update(logits, labels.int())
    if not auc.update_called:
        stop_unvalidated()
    return auc.compute().item()


def main() -> None:
    options = read_options("Train a DLRM in a plain TorchRec loop with trainobs.", "runs/torchrec")
    device = join_job()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    data = open_data(options, rank=rank, world_size=world_size)
    model = shard(build_net(data.rows, options.dim, options.lr), device)
    pipeline = TrainPipelineSparseDist(model, build_optimizer(model, options.lr), device)

    with open_observer(options, model) as obs:
        model.train()
        start = time.perf_counter()
        inputs = train(pipeline, in_step(obs.loader(data.train), options.steps), options, obs)
        seconds = time.perf_counter() - start
        with obs.phase("validation"):
            model.eval()
            auc = measure_auc(pipeline, in_step(data.val, options.val_steps), device)
    counts = torch.tensor([inputs, data.malformed_count])
    dist.all_reduce(counts)
    if rank == 0:
        print_result(int(counts[0]), seconds, auc, int(counts[1]))
        if obs.run_dir:
            print_report(obs.run_dir)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
