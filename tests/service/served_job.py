"""A run of a user without any capability, which goes on until it is told to end.

Usage: python served_job.py DIRECTORY

Each step reads the file `data`. A file `end` ends the run.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import trainobs.integrations.plain  # noqa: F401 - as much as can be before privileges are gone
from tests.session.unprivileged_job import drop_privileges
from trainobs import observe


def main() -> None:
    directory = Path(sys.argv[1])
    drop_privileges()
    with observe(run_dir=directory / "run", data_roots=directory / "data") as obs:
        print("level", obs.level, flush=True)
        step = 0
        while not (directory / "end").exists():
            with obs.step():
                (directory / "data").read_bytes()
                time.sleep(0.01)
            print("step", step, flush=True)
            step += 1


if __name__ == "__main__":
    main()
