"""A training loop in a process of its own, for tests that end it in some way or other.

Usage: python loop_job.py DIRECTORY [STEPS]

Prints each step, and at its end what of trainobs is left in the process.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from torch.utils.data import DataLoader

from tests.integrations.models import FileData
from tests.session.jobs import descriptors_of
from trainobs import observe
from trainobs.session import observer

observer.FLUSH_S = observer.HAND_OVER_S = 0.2


def threads() -> list[str]:
    """Names of the threads that have run.

    Python may list one that never will, where a signal's handler raised in `Thread.start`.
    """
    return [thread.name for thread in threading.enumerate() if thread.ident is not None]


def left() -> list[str]:
    """Threads and BPF descriptors of this process."""
    found = [name for name in threads() if name == "trainobs"]
    found += sorted(descriptors_of(os.getpid()))
    return found


def main() -> None:
    directory = Path(sys.argv[1])
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 10**9
    data = FileData(directory / "data", 64)
    batches = DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True)
    try:
        with observe(run_dir=directory / "run") as obs:
            loader, step = obs.loader(batches), 0
            while step < steps:
                for _ in loader:
                    with obs.step(), obs.phase("forward"):
                        print("step", step, flush=True)
                    step += 1
                    if step == steps:
                        break
    except (RuntimeError, OSError) as error:
        print("failed:", error, flush=True)
    print("left:", left(), flush=True)


if __name__ == "__main__":
    main()
