"""Steps in which another thread holds the interpreter's lock for a while.

usage: held.py '{"run_dir": DIR, "steps": 5, "held_s": 0.1}'
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading

import trainobs
from tests.session.unprivileged_job import drop_privileges


def main(run_dir: str, steps: int, held_s: float, as_nobody: bool = False) -> None:
    """The main thread lets go of the lock as it starts a thread, and then waits for it."""
    if as_nobody:
        drop_privileges()
    hold = ctypes.PyDLL(None).usleep
    with trainobs.observe(run_dir=run_dir, quiet=True) as obs:
        for _ in range(steps):
            with obs.step():
                thread = threading.Thread(target=hold, args=(int(held_s * 1e6),))
                thread.start()
                thread.join()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
