"""A run of a user without any capability.

Usage: python unprivileged_job.py DIRECTORY PROBES [...], or files of own probes

Privileges are dropped inside the interpreter, whose files that user might not be allowed to read.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from trainobs import Probe, observe
from trainobs.core.errors import ProbeError

NOBODY = 65534
PR_SET_DUMPABLE = 4


def drop_privileges() -> None:
    # What a run imports as it writes could not be read any more.
    with TemporaryDirectory() as place:
        obs = observe(run_dir=place, probes="off", quiet=True)
        with obs.step():
            pass
        obs.close()
    sysconfig.get_paths()  # Python reads and keeps a file of its own for that
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    # As after an exec: else /proc/self would still belong to root.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def main() -> None:
    directory, probes = Path(sys.argv[1]), sys.argv[2:]
    own = [Probe(path) for path in probes if path.endswith(".c")]
    drop_privileges()
    try:
        with observe(
            run_dir=directory / "run",
            probes=own or (probes[0] if probes[0] in ("auto", "off") else probes),
            log_every_n_steps=1,
        ) as obs:
            print("level:", obs.level)
            for step in range(3):
                with obs.step():
                    (directory / f"{step}").write_bytes(bytes(100_000))
                    time.sleep(0.01)
        if probes == ["auto"]:
            observe(run_dir=directory / "again").close()
    except ProbeError as error:
        print(f"{type(error).__name__}: {error.cause.name}\n{error}")


if __name__ == "__main__":
    main()
