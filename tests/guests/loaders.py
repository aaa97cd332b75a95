"""A DataLoader whose workers read known files, and what the run log says of them.

usage: loaders.py fork|spawn|forkserver DIRECTORY

Prints one JSON object. Two workers, one epoch: each file is read once, by a worker.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent)]

from steps import write
from torch.utils.data import DataLoader, Dataset

from tests.kernel.runlog import RunTables
from trainobs import observe

SIZES = [4093 * (number + 1) for number in range(24)]
BUFFER = 65_536
BATCH, WORKERS = 4, 2


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


def main() -> int:
    """Run as a command."""
    method, place = sys.argv[1], Path(sys.argv[2])
    data = place / "data"
    data.mkdir(parents=True, exist_ok=True)
    for number, size in enumerate(SIZES):
        write(data / f"{number}", size)
    loader = DataLoader(
        Files(data), batch_size=BATCH, num_workers=WORKERS, multiprocessing_context=method
    )
    with observe(run_dir=place / "run", data_roots=[data]) as obs:
        for _ in obs.loader(loader):
            with obs.step():
                pass
    run = RunTables(place / "run")
    states = run.info["capabilities"]
    expected = {"bytes": sum(SIZES), "count": sum(-(-size // BUFFER) + 1 for size in SIZES)}
    got = {
        f"{role} {field}": run.total(field, "read", "data", None if role == "all" else role)
        for role in ("worker", "all")
        for field in expected
    }
    calls = all(states.get(name) == "on" for name in ("tobs_sys_enter", "tobs_sys_exit"))
    truth = {name: expected[name.split()[1]] if calls else 0 for name in got}
    lies = [
        f"LIE {method}: {name} is {got[name]}, not {truth[name]}"
        for name in got
        if got[name] != truth[name]
    ]
    level = run.info["level"]
    print(json.dumps({"check": f"loader_{method}", "level": level, "lies": lies, "values": got}))
    return bool(lies)


if __name__ == "__main__":
    sys.exit(main())
