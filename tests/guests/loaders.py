"""DataLoaders whose workers read known files, and what the run logs say of them.

usage: python -m tests.guests.loaders DIRECTORY

Prints one JSON object. One epoch for each way to start workers: a worker reads each file once. A
run that tells of losses may lack as many reads, but no number may be above the truth.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset

from tests.guests.steps import write
from tests.kernel.runlog import RunTables
from trainobs import observe

SIZES = [4093 * (number + 1) for number in range(24)]
BUFFER = 65_536
BATCH = 4
WORKERS = {"fork": 2, "spawn": 1, "forkserver": 1}
"""How they are started -> how many: few where each imports torch, which is slow in a guest."""


class Files(Dataset[int]):
    """The sizes of files, each found by reading it."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / f"{number}" for number in range(len(SIZES))]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> int:
        fd = os.open(self.files[index], os.O_RDONLY)
        size = 0
        while got := len(os.read(fd, BUFFER)):
            size += got
        os.close(fd)
        return size


def observed(method: str, data: Path, run_dir: Path) -> dict[str, Any]:
    """Let workers read all files; what the run log has of it."""
    loader = DataLoader(
        Files(data), BATCH, num_workers=WORKERS[method], multiprocessing_context=method
    )
    with observe(run_dir=run_dir, data_roots=[data]) as obs:
        for _ in obs.loader(loader):
            with obs.step():
                pass
    run = RunTables(run_dir)
    states = run.info["capabilities"]
    calls = all(states.get(name) == "on" for name in ("tobs_sys_enter", "tobs_sys_exit"))
    truth = {"bytes": sum(SIZES), "count": sum(-(-size // BUFFER) + 1 for size in SIZES)}
    if not calls:
        truth = dict.fromkeys(truth, 0)
    losses = run.info["summary"]["losses"]
    told = sum(losses.values())
    least = truth if not told else {"bytes": 0, "count": truth["count"] - told}
    values, lies = {}, []
    for role in ("worker", None):
        for field, value in truth.items():
            got = run.total(field, "read", "data", role)
            values[f"{role or 'all'} {field}"] = got
            if not least[field] <= got <= value:
                lies.append(
                    f"LIE {method}: {role or 'all'} {field} is {got}, not {value}; told: {losses}"
                )
    short = truth["count"] - values["all count"]
    level = run.info["level"]
    return {"level": level, "lies": lies, "losses": losses, "values": values, "short": short}


def main() -> int:
    """Run as a command."""
    place = Path(sys.argv[1])
    data = place / "data"
    data.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(SIZES):
        write(data / f"{number}", size)
    found = {method: observed(method, data, place / method) for method in WORKERS}
    lies = [lie for one in found.values() for lie in one["lies"]]
    levels = {one["level"] for one in found.values()}
    short = sum(one["short"] for one in found.values())
    of_all = {"check": "loaders", "level": "/".join(levels), "lies": lies, "short": short}
    print(json.dumps({**of_all, "methods": found}))
    return bool(lies)


if __name__ == "__main__":
    sys.exit(main())
