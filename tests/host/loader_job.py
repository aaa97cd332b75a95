"""A real DataLoader under a HostSampler; prints what was sampled as JSON.

Usage: loader_job.py METHOD PERSISTENT(0|1) KILL(0|1) FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path

from torch.utils.data import DataLoader, Dataset

from trainobs.host import HostSampler


class Files(Dataset):
    """The files of a folder; an item is the number of bytes read."""

    def __init__(self, folder: str) -> None:
        self.paths = sorted(str(path) for path in Path(folder).iterdir())

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        fd = os.open(self.paths[index], os.O_RDONLY)
        size = len(os.pread(fd, 1 << 24, 0))
        os.close(fd)
        return size


def rchar() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])


def main(method: str, persistent: str, kill: str, folder: str) -> None:
    warnings.simplefilter("ignore")  # more workers than this machine has CPUs
    before = rchar()
    sampler = HostSampler.open()
    assert sampler is not None
    done = threading.Event()

    def refresh() -> None:
        while not done.wait(0.02):
            sampler.refresh()

    observer = threading.Thread(target=refresh)
    observer.start()
    loader = DataLoader(
        Files(folder),
        batch_size=4,
        num_workers=3,
        multiprocessing_context=method,
        persistent_workers=persistent == "1",
    )
    totals, workers, read = [], 0, 0
    try:
        for _epoch in range(2):
            for step, batch in enumerate(loader):
                read += int(batch.sum())
                totals.append(sampler.sample().tolist())
                sampler.refresh()
                family = sampler._watch.family
                workers = max(workers, sum(p.threads is not None for p in family.processes))
                if kill == "1" and step == 2:
                    victim = next(p for p in family.processes if p.threads is not None)
                    os.kill(victim.tgid, signal.SIGKILL)
                    time.sleep(60)  # torch's handler of SIGCHLD ends it
    except RuntimeError:  # what torch makes of a killed worker
        if kill == "0":
            raise
    loader._iterator = None  # ends and reaps persistent workers
    done.set()
    observer.join()
    totals += [sampler.sample().tolist() for _ in range(3)]
    after = rchar()
    left = len(sampler._watch.family.processes)
    sampler.close()
    out = {"names": sampler.available, "totals": totals, "workers": workers, "read": read}
    print(json.dumps({**out, "own": after - before, "left": left}))


if __name__ == "__main__":
    main(*sys.argv[1:])
