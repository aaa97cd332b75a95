"""Train the DLRM of train_torchrec.py with its hot rows on the device, and see what that changes.

Usage::

    python examples/dlrm/train_fae.py                            # one process
    torchrun --nproc-per-node 2 examples/dlrm/train_fae.py       # two, on CPUs too

and the arguments of train_torchrec.py, but ``--no-obs``; ``--hot-bytes`` is the memory for hot
rows. It trains twice, as train_torchrec.py does and then with the three lines that are marked,
and prints both side by side from their run logs. On a GPU the tables are in host memory both
times; on a CPU everything is, and nothing can be gained.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from data import Loader, in_step, open_data
from model import build_tables
from options import Options, read_options
from sharded import build_net, build_optimizer, shard
from torchrec.distributed import DistributedModelParallel, TrainPipelineSparseDist
from train_torchrec import join_job, measure_auc, open_observer, train

from trainobs.cli import main as trainobs
from trainobs.fae import FAEEmbeddingBagCollectionSharder, FAEProfile, calibrate, pack


class Trained(NamedTuple):
    """What a training came to, of all ranks."""

    inputs_per_s: float
    auc: float
    run_dir: Path | None


def choose_hot_rows(options: Options) -> FAEProfile:
    """Calibrate on rank 0, and load the result on every rank."""
    path = options.run_dir / "hot-rows.npz"
    if dist.get_rank() == 0:
        data = open_data(options)  # of all ranks; of made-up inputs, a part
        tables = build_tables(data.rows, options.dim)
        profile = calibrate(data.train, tables=tables, hot_bytes=options.hot_bytes)  # 1
        options.run_dir.mkdir(parents=True, exist_ok=True)
        profile.save(path)
        print(profile.summary())
    dist.barrier()
    return FAEProfile.load(path)


def build(
    options: Options, rows: list[int], device: torch.device, profile: FAEProfile | None
) -> DistributedModelParallel:
    """Return the sharded model, with hot rows on the device if there is a profile."""
    torch.manual_seed(options.seed)
    net = build_net(rows, options.dim, options.lr)
    kernels = ["fused_uvm"] if device.type == "cuda" else None
    if profile is None:
        return shard(net, device, kernels=kernels)
    return shard(net, device, FAEEmbeddingBagCollectionSharder(profile), kernels)  # 2


def run(options: Options, device: torch.device, profile: FAEProfile | None) -> Trained:
    """Train and validate, as ``train_torchrec.py`` does but for two lines."""
    data = open_data(options, rank=dist.get_rank(), world_size=dist.get_world_size())
    model = build(options, data.rows, device, profile)
    pipeline = TrainPipelineSparseDist(model, build_optimizer(model, options.lr), device)
    loader: Loader = data.train
    if profile is not None:
        loader = pack(data.train, profile, seed=options.seed)  # 3
    with open_observer(options, model) as obs:
        model.train()
        start = time.perf_counter()
        inputs = train(pipeline, in_step(obs.loader(loader), options.steps), options, obs)
        seconds = time.perf_counter() - start
        with obs.phase("validation"):
            model.eval()
            auc = measure_auc(pipeline, in_step(data.val, options.val_steps), device)
    total = torch.tensor(inputs)
    dist.all_reduce(total)
    return Trained(int(total) / seconds, auc, obs.run_dir)


def read_metrics(run_dir: Path) -> dict[str, Any]:
    """Return what ``trainobs report --json`` tells of each metric of rank 0.

    A run directory alone would stand for the newest run that was to go there: the second one.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        trainobs(["report", str(run_dir / "run.json"), "--json"])
    metrics: dict[str, Any] = json.loads(printed.getvalue())["metrics"]
    return metrics


def told(metrics: dict[str, Any], name: str, factor: float, key: str = "mean") -> str:
    """Return a metric over steps; what was not measured is "-"."""
    value = metrics[name][key] if name in metrics else None
    return "-" if value is None else f"{value * factor:.2f}"


def table_megabytes(metrics: dict[str, Any]) -> str:
    """Return what a step read from the tables, hot rows not included, in MB."""
    read = [m["mean"] for name, m in metrics.items() if name.startswith("embedding/bytes{")]
    saved = metrics["fae/saved_bytes"]["mean"] if "fae/saved_bytes" in metrics else 0.0
    return "-" if None in (saved, *read) else f"{(sum(read) - saved) / 1e6:.2f}"


def print_comparison(before: Trained, after: Trained, device: torch.device) -> None:
    """Print both trainings side by side."""
    if before.run_dir is None or after.run_dir is None:
        return
    columns = [read_metrics(before.run_dir), read_metrics(after.run_dir)]
    rows = [
        ("inputs/s, all ranks", [f"{t.inputs_per_s:.0f}" for t in (before, after)]),
        ("AUC of validation", [f"{t.auc:.4f}" for t in (before, after)]),
        ("step, median, ms", [told(c, "step/duration_ns", 1e-6, "p50") for c in columns]),
        ("  of a pure batch, ms", [told(c, "fae/pure_step_ns", 1e-6, "p50") for c in columns]),
        ("  of a mixed batch, ms", [told(c, "fae/mixed_step_ns", 1e-6, "p50") for c in columns]),
        ("read from tables, MB a step", [table_megabytes(c) for c in columns]),
        ("hot lookups, %", [told(c, "fae/hot_lookup_ratio", 100) for c in columns]),
        ("inputs in pure batches, %", [told(c, "fae/hot_input_ratio", 100) for c in columns]),
        ("keeping hot rows equal, ms a step", [told(c, "fae/sync_ns", 1e-6) for c in columns]),
        ("hot rows, MB", [told(c, "fae/hot_bytes", 1e-6) for c in columns]),
    ]
    print(f"\n{'of rank 0 unless it says all ranks':36}{'stock':>12}{'FAE':>12}")
    for name, (left, right) in rows:
        print(f"{name:36}{left:>12}{right:>12}")
    print(f"run logs: {before.run_dir} and {after.run_dir}")
    if device.type == "cpu":
        print(
            "There is no device here: hot rows lie in the same memory as the tables, so no link\n"
            "is spared: the times say nothing of what hot rows gain on a GPU."
        )


def main() -> None:
    """Train without hot rows and with them."""
    options = read_options("Train a DLRM with hot rows on the device.", "runs/fae", hot_rows=True)
    device = join_job()
    profile = choose_hot_rows(options)
    before = run(options, device, None)
    after = run(options, device, profile)
    if dist.get_rank() == 0:
        print_comparison(before, after, device)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
