"""Hot rows against TorchRec's other ways to place tables, on one GPU; `--device cpu` without one.

One DLRM is trained on the same inputs in each arm; the arms differ in where the tables are. What
they may keep of them on the device is the same, but for `hbm`, which has all and is the limit.
No input comes twice. docs/fae-gpu.md says how to run this, what is compared and what came out.

    PYTHONPATH=src python -m benchmarks.fae_gpu
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.fae_gpu.bench import Bench
from benchmarks.fae_gpu.end_to_end import end_to_end
from benchmarks.fae_gpu.setup import ARMS, DRY_RUN, Setup
from trainobs.host.facts import host_facts

RESULTS = Path(__file__).parents[1] / "results"


def versions() -> dict[str, str | None]:
    """Of what was measured."""
    found: dict[str, str | None] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for name in ("torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "triton"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


@contextmanager
def one_rank(device: torch.device) -> Iterator[None]:
    """A process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, f"file://{folder}/store", rank=0, world_size=1)
        try:
            yield
        finally:
            dist.destroy_process_group()


def main() -> None:
    """Measure, and write down what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", help="cpu: with tiny tables, to see it run")
    parser.add_argument("--arm", choices=ARMS, action="append", help="only this one, and others")
    parser.add_argument("--out", type=Path, help="file to write; by default results/fae-gpu-DATE")
    parser.add_argument("--end-to-end", action="store_true", help="with the loader, and packing")
    parser.add_argument("--workers", type=int, default=8, help="of the loader, with --end-to-end")
    for field in fields(Setup):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind)
    arguments = parser.parse_args()
    on_host = arguments.device == "cpu"
    given = {f.name: getattr(arguments, f.name) for f in fields(Setup)}
    setup = DRY_RUN if on_host else Setup()
    setup = replace(setup, **{name: value for name, value in given.items() if value is not None})
    if not (on_host or torch.cuda.is_available()):
        parser.error("no GPU is here; --device cpu goes through the arms on the host")
    logging.disable(logging.WARNING)  # TorchRec tells of every module that it shards
    device = torch.device("cpu" if on_host else "cuda:0")
    facts = {"date": time.strftime("%Y-%m-%d"), "dry_run": on_host}
    facts |= {"machine": host_facts(), "versions": versions(), "load_before": os.getloadavg()[0]}
    path = arguments.out or RESULTS / f"fae-gpu-{facts['date']}.json"
    if on_host and arguments.out is None:
        path = Path(os.devnull)

    def save(found: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts | found, indent=2) + "\n")

    with one_rank(device):
        if arguments.end_to_end:
            names = arguments.arm or ["caching_lfu", "fae_overlay", "hbm"]
            end_to_end(setup, device, names, arguments.workers, save)
        else:
            Bench(setup, device, arguments.arm or list(ARMS)).run(save)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
