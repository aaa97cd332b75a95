"""One of two ranks that average tensors over the loopback device.

usage: gloo.py '{"rank": 0, "port": PORT, "run_dir": DIR, "meeting": DIR}'
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import trainobs

TIMES, FLOATS = 10, 1 << 20


def meet(place: Path, rank: int) -> None:
    """Wait for the other rank without a socket."""
    (place / str(rank)).touch()
    while not (place / str(1 - rank)).exists():
        time.sleep(0.01)


def main(rank: int, port: int, run_dir: str, meeting: str) -> None:
    torch.set_num_threads(1)
    with trainobs.observe(run_dir=run_dir) as obs:
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://127.0.0.1:{port}",
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=600),
        )
        tensor = torch.full((FLOATS,), float(rank + 1))
        for _ in range(TIMES):
            with obs.step():
                dist.all_reduce(tensor)
                tensor /= 2
        assert tensor.unique().tolist() == [1.5]
        meet(Path(meeting), rank)  # every byte was received
    dist.destroy_process_group()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
