"""Runs that go on until a signal comes, and what is left of each in this process.

Usage: python startup_job.py DIRECTORY TIMES

Prints "begin" and "open" as a run begins and has begun. At its end "left", with BPF descriptors and
threads of trainobs, other threads, and callbacks of the garbage collector.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.session.loop_job import left, threads
from trainobs import observe


def wait_for_late_threads(never_run: set[threading.Thread]) -> None:
    """One that a signal came to as it was started may have to run yet, for which it needs a CPU.

    Args:
        never_run: those not to wait for; gets those that were waited for in vain.
    """
    until = time.monotonic() + 20
    while late := {t for t in threading.enumerate() if t.name == "trainobs"} - never_run:
        if time.monotonic() > until:
            never_run |= {thread for thread in late if thread.ident is None}
            break
        time.sleep(0.01)


def main() -> None:
    directory, times = Path(sys.argv[1]), int(sys.argv[2])
    callbacks = len(gc.callbacks)
    never_run: set[threading.Thread] = set()
    for number in range(times):
        with suppress(KeyboardInterrupt):
            print("begin", flush=True)
            with observe(run_dir=directory / str(number)) as obs:
                print("open", flush=True)
                while True:
                    with obs.step():
                        time.sleep(0.001)
        gc.collect()  # the traceback held on to what it went through
        wait_for_late_threads(never_run)
        print("left", left(), threads()[1:], len(gc.callbacks) - callbacks, flush=True)


if __name__ == "__main__":
    main()
