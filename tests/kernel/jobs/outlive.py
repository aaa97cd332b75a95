"""Children of all kinds that outlive the run in which they were started.

usage: outlive.py '{"data": FILE, "run_dir": DIR}'
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys

import trainobs
from tests.kernel.lifetime import own_programs, still_loaded
from tests.kernel_state import program_ids


def main(data: str, run_dir: str) -> None:
    with trainobs.observe(run_dir=run_dir, data_roots=data) as obs, obs.step():
        loaded = own_programs()
        assert loaded <= program_ids()
        children = start()
    try:
        assert all(os.waitpid(pid, os.WNOHANG) == (0, 0) for pid in children)
        print(f"{len(loaded)} were loaded, {len(still_loaded(loaded))} are left")
    finally:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def start() -> list[int]:
    """A forked child, a worker of multiprocessing, and another program."""
    forked = os.fork()
    if not forked:
        signal.pause()
    worker = multiprocessing.get_context("fork").Process(target=signal.pause)
    worker.start()
    assert worker.pid
    return [forked, worker.pid, subprocess.Popen(["sleep", "60"]).pid]


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
