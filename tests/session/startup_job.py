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

from tests.session.loop_job import left
from trainobs import observe


def wait_for_late_threads() -> None:
    """One that a signal came to as it was started may have to run yet, for which it needs a CPU."""
    until = time.monotonic() + 20
    while any(thread.name == "trainobs" for thread in threading.enumerate()):
        if time.monotonic() > until:
            break
        time.sleep(0.01)


def main() -> None:
    directory, times = Path(sys.argv[1]), int(sys.argv[2])
    callbacks = len(gc.callbacks)
    for number in range(times):
        with suppress(KeyboardInterrupt):
            print("begin", flush=True)
            with observe(run_dir=directory / str(number)) as obs:
                print("open", flush=True)
                while True:
                    with obs.step():
                        time.sleep(0.001)
        gc.collect()  # the traceback held on to what it went through
        wait_for_late_threads()
        threads = [thread.name for thread in threading.enumerate()][1:]
        print("left", left(), threads, len(gc.callbacks) - callbacks, flush=True)


if __name__ == "__main__":
    main()
