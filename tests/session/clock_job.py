"""Two ranks that train while somebody sets the wall clock: an hour forth, then two hours back.

Usage: python -m torch.distributed.run ... clock_job.py DIRECTORY FILE

Begins with `wall_clock.so` preloaded, which reads FILE. Rank 0 prints how far the clock of Python
went at each of the two steps, in seconds.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from tests.integrations.models import FEATURES, FileData
from trainobs import observe
from trainobs.session import observer

observer.FLUSH_S = observer.HAND_OVER_S = 0.2
STEPS, STEP_S = 40, 0.1
HOUR_S = 3600
SET = {13: HOUR_S, 26: -HOUR_S}
"""Step -> how far the clock is ahead from then on, in seconds."""


def main() -> None:
    directory, file = map(Path, sys.argv[1:])
    dist.init_process_group("gloo")
    data = FileData(directory / f"data-{dist.get_rank()}", 2 * STEPS)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
    with observe(run_dir=directory / "run") as obs:
        for step, batch in enumerate(obs.loader(DataLoader(data, 2, num_workers=1))):
            with obs.step(), obs.phase("backward"):
                model(batch).mean().backward()
            if step in SET and dist.get_rank() == 0:
                before = time.time()
                with file.open("r+b") as ahead:  # not anew: it is mapped
                    ahead.write((SET[step] * 10**9).to_bytes(8, sys.byteorder, signed=True))
                print("set by", round(time.time() - before), flush=True)
            with obs.phase("validation"):
                time.sleep(STEP_S)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
