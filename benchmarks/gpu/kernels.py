"""Whether FBGEMM's kernels are there and right on this device: before anything else is tried."""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path

import torch

with warnings.catch_warnings():  # FBGEMM for hosts warns of kernels that only devices have
    warnings.simplefilter("ignore")
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm

ROWS, DIM, INPUTS, LOOKUPS, RATE = 1000, 64, 128, 2048, 0.1


def difference(device: torch.device, location: str) -> float:
    """Largest difference of FBGEMM's rows after a step of SGD from torch's own."""
    compute = fbgemm.ComputeDevice.CUDA if device.type == "cuda" else fbgemm.ComputeDevice.CPU
    tables = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
        [(ROWS, DIM, fbgemm.EmbeddingLocation[location], compute)],
        optimizer=fbgemm.OptimType.EXACT_SGD,
        learning_rate=RATE,
        device=device,
        uvm_host_mapped=True,
    )
    random = torch.Generator().manual_seed(0)
    start = torch.randn(ROWS, DIM, generator=random)
    ids = torch.randint(ROWS, (LOOKUPS,), generator=random)
    offsets = torch.arange(0, LOOKUPS + 1, LOOKUPS // INPUTS)
    tables.split_embedding_weights()[0].copy_(start)
    tables(ids.to(device), offsets.to(device)).square().sum().backward()
    tables.flush()
    expected = start.clone().requires_grad_()
    bags = torch.nn.functional.embedding_bag(ids, expected, offsets[:-1], mode="sum")
    (gradient,) = torch.autograd.grad(bags.square().sum(), expected)
    trained = start - RATE * gradient
    return float((tables.split_embedding_weights()[0].cpu() - trained).abs().max())


def main() -> int:
    """Try each place of tables, and write down what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    places = ("DEVICE", "MANAGED", "MANAGED_CACHING") if device.type == "cuda" else ("HOST",)
    found: dict[str, object] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    found["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "host"
    differences = {place: difference(device, place) for place in places}
    text = json.dumps(found | {"differences": differences}, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return 0 if max(differences.values()) < 1e-3 else 1


if __name__ == "__main__":
    sys.exit(main())
