"""A loop of short steps in a process of its own, until its standard input ends.

Usage: python -m tests.session.writer_job RUN

Prints each fiftieth step.
"""

from __future__ import annotations

import select
import sys
import time

from trainobs import observe
from trainobs.session import observer

observer.FLUSH_S = observer.HAND_OVER_S = 0.2


def main() -> None:
    """Run until nobody wants any more."""
    step = 0
    with observe(run_dir=sys.argv[1], log_every_n_steps=10, io=True) as obs:
        while not select.select([sys.stdin], [], [], 0)[0]:
            with obs.step():
                time.sleep(0.001)
            if step % 50 == 0:
                print("step", step, flush=True)
            step += 1
    print("steps", step, flush=True)


if __name__ == "__main__":
    main()
