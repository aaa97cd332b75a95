"""A process that a session observes and that does next to nothing, so that many can be tried.

Usage: python -m benchmarks.storms.stepping RUN [--steps N] [--probes auto] [--step-ms 1]

Prints "begun DIRECTORY", the number of steps now and then, and "ended" when the record is closed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from trainobs.session import observer
from trainobs.session.runs import open_session
from trainobs.session.settings import Settings


def main() -> None:
    """Step until the steps are done, or something ends it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--probes", default="off")
    parser.add_argument("--step-ms", type=float, default=1.0)
    parser.add_argument("--flush-s", type=float, default=0.1)
    options = parser.parse_args()
    observer.FLUSH_S = observer.HAND_OVER_S = options.flush_s
    signal.signal(signal.SIGTERM, _leave)
    settings = Settings.parse(options.probes, quiet=True, run_dir=options.run)
    session, place = open_session(settings, options.run, log_every_n_steps=50)
    print("begun", place, flush=True)
    try:
        for step in range(options.steps):
            session.clock.begin_batch()
            if options.step_ms:
                time.sleep(options.step_ms / 1000)
            session.clock.end_step()
            if step % 10_000 == 0 or options.step_ms >= 1:
                print(step, flush=True)
    finally:
        session.stop()
        print("ended", flush=True)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
