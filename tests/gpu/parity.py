"""Training with hot rows on a GPU comes to what training without comes to.

    PYTHONPATH=src python -m tests.gpu.parity --seconds 200 --out parity.json

Each mode, optimizer, kernel, type of the tables and of the embeddings is tried, with bags and with
sequences, in an order drawn once: a random model, plan and batches (`tests.fae.random_cases`),
trained by TorchRec's sharder, again by it, and by FAE's. What two trainings of TorchRec's differ by
is what the device's order of sums explains. Then other random cases, until the time is up. A
control changes one hot row, which must be seen. The exit status is 1 if a case was not held.
`--device cpu` goes through the same on the host.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

with warnings.catch_warnings():  # FBGEMM for hosts warns of kernels that only devices have
    warnings.simplefilter("ignore")
    from torchrec.modules.embedding_configs import DataType

    from tests.fae import parity
    from tests.fae.batches import batches, packed
    from tests.fae.cases import OPTIMIZERS, Case, profile_of
    from tests.fae.compared import Trained, difference
    from tests.fae.random_cases import random_case
    from trainobs.core.errors import FAEError
    from trainobs.fae.kjt.split import SlotMap

MODES = ("overlay", "paper", "partitioned")
KERNELS = ("fused", "fused_uvm", "fused_uvm_caching")
TYPES = (  # of tables and of embeddings
    (DataType.FP32, DataType.FP32),
    (DataType.FP16, DataType.FP32),
    (DataType.FP32, DataType.FP16),
    (DataType.FP32, DataType.BF16),
)
TOLERANCE = 2e-5  # or the case's, if that is more
CONTROL_CHANGE = 0.1


def cases(device: str) -> Iterator[Case]:
    """Every kind once, on models drawn at random; then random kinds without end."""
    kinds = list(itertools.product(MODES, OPTIMIZERS, TYPES, KERNELS, (False, True)))
    random.Random(0).shuffle(kinds)  # so that an end before the last leaves out a bit of each
    for seed, (mode, optimizer, types, kernel, sequences) in enumerate(kinds):
        case = replace(
            random_case(seed, 1, sequences),
            mode=mode,
            optimizer=optimizer,
            weight_decay=0.05 if "adam" in optimizer else 0.0,
            data_type=types[0],
            output_type=types[1],
            kernel=kernel,
            device=device,
        )
        yield replace(case, kinds=("mixed", "pure", *case.kinds[:3]))
    for seed in itertools.count(len(kinds)):
        case = random_case(seed, 1, sequences=bool(seed % 2))
        yield replace(case, kernel=KERNELS[seed % 3], device=device)


def tried(case: Case) -> dict[str, Any]:
    """What came of a case: `held`, `refused` by trainobs, `impossible` for TorchRec, or else."""
    profile, feed = profile_of(case), batches(case, 0)
    slots = SlotMap.from_profile(profile)
    plain = [kjt for _, kjt in feed]
    try:
        once, again = (
            parity.train(case, parity.build(case, parity.stock_sharder(case)), plain)
            for _ in range(2)
        )
    except Exception as error:
        return {"came": "impossible", "error": f"{type(error).__name__}: {error}"[:300]}
    try:
        model = parity.build(case, parity.fae_sharder(case, profile))
        given = [packed(kind, kjt, slots) for kind, kjt in feed]
        found = difference(_on_host(once), _on_host(parity.train(case, model, given)))
    except FAEError as error:
        return {"came": "refused", "error": f"{error.failed}: {error.found}"}
    except Exception as error:
        return {"came": "failed", "error": f"{type(error).__name__}: {error}"[:2000]}
    noise = difference(_on_host(once), _on_host(again))
    most = max(TOLERANCE, case.tolerance, 4 * max(noise.values()))
    held = max(found.values()) <= most
    return {"came": "held" if held else "differs", "difference": found, "noise": noise}


def control_is_seen(device: str) -> bool:
    """Whether a hot row that is changed in mid-training is found out."""
    seeds = itertools.count(1000)
    case = next(c for c in (random_case(s, 1) for s in seeds) if c.tables[0].hot)
    case = replace(case, device=device, mode="overlay", pipelined=False, kinds=("mixed",) * 4)
    profile, plain = profile_of(case), [kjt for _, kjt in batches(case, 0)]
    expected = parity.train(case, parity.build(case, parity.stock_sharder(case)), plain)
    model = parity.build(case, parity.fae_sharder(case, profile))
    state = model.state_dict()
    name = next(n for n in state if f".{case.tables[0].name}." in n)
    _weights(state[name])[case.tables[0].hot[0]] += CONTROL_CHANGE
    model.load_state_dict(state)
    got = parity.train(case, model, plain)
    return max(difference(_on_host(expected), _on_host(got)).values()) > CONTROL_CHANGE / 4


def _weights(value: Any) -> torch.Tensor:
    """The rows of a table that one rank has alone."""
    whole: torch.Tensor = value.local_shards()[0].tensor
    return whole


def _on_host(trained: Trained) -> Trained:
    return Trained(
        trained.losses,
        [output.float().cpu() for output in trained.outputs],
        {name: value.float().cpu() for name, value in trained.weights.items()},
        {name: value.float().cpu() for name, value in trained.states.items()},
    )


def run(device: str, seconds: float, most: int | None) -> dict[str, Any]:
    """Try cases until the time is up, the control first."""
    begin, results = time.monotonic(), []
    seen = control_is_seen(device)
    for case in itertools.islice(cases(device), most):
        if time.monotonic() - begin > seconds:
            break
        types = (case.data_type.value, case.output_type.value)
        about = (case.mode, case.optimizer, *types, case.kernel)
        kind = [*about, "sequences" if case.sequences else "bags"]
        results.append({"seed": case.seed, "kind": kind, **tried(case)})
    came = [result["came"] for result in results]
    return {
        "control": "seen" if seen else "not seen",
        "cases": {what: came.count(what) for what in sorted(set(came))},
        "worst": max(
            (max(r["difference"].values()) for r in results if "difference" in r), default=None
        ),
        "not held": [r for r in results if r["came"] in ("failed", "differs")],
        "refused": sorted({r["error"] for r in results if r["came"] == "refused"}),
        "impossible": sorted({r["error"] for r in results if r["came"] == "impossible"}),
        "tried": sorted({" ".join(r["kind"]) for r in results if r["came"] == "held"}),
    }


def main() -> int:
    """Try, and write down what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--cases", type=int, help="at most")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if arguments.device == "cuda" else "gloo"
        dist.init_process_group(backend, f"file://{folder}/store", rank=0, world_size=1)
        found = run(arguments.device, arguments.seconds, arguments.cases)
        dist.destroy_process_group()
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return 1 if found["not held"] or found["control"] != "seen" else 0


if __name__ == "__main__":
    sys.exit(main())
