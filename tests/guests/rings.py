"""A file read through io_uring, and what the report says of it.

usage: python -m tests.guests.rings DIRECTORY

Prints one JSON object.
"""

from __future__ import annotations

import errno
import json
import mmap
import sys
from pathlib import Path

from tests.guests.steps import write
from tests.guests.truth import report_of, value_of
from tests.kernel.uring import READ, Uring
from trainobs import observe

REQUESTS, BUFFER = 32, 65_536
SIZE = REQUESTS * BUFFER


def main() -> int:
    """Run as a command."""
    place = Path(sys.argv[1])
    data = place / "data"
    data.mkdir(parents=True, exist_ok=True)
    try:
        ring = Uring(8)  # its end is that of this process: the kernel lets go of its threads late
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        print(json.dumps({"check": "io_uring", "skipped": "this kernel has none", "lies": []}))
        return 0
    with (
        mmap.mmap(-1, BUFFER) as buffer,
        write(data / "file", SIZE).open("rb") as file,
        observe(run_dir=place / "run", data_roots=[data]) as obs,
        obs.step(),
    ):
        ring.transfer(READ, file.fileno(), buffer, SIZE)
    report = report_of(place / "run")
    state = report["capabilities"].get("tobs_uring", "off")
    got = {name: value_of(report, name) for name in ("io/data_read_bytes", "io/data_read_count")}
    truth = {"io/data_read_bytes": SIZE, "io/data_read_count": REQUESTS}
    lies = [
        f"LIE io_uring: {name} is {got[name]}, not {truth[name]}; tobs_uring: {state}"
        for name in got
        if got[name] is not None and got[name] != truth[name]
    ]
    print(
        json.dumps(
            {
                "check": "io_uring",
                "level": report["level"],
                "state": state,
                "lies": lies,
                "values": got,
            }
        )
    )
    return bool(lies)


if __name__ == "__main__":
    sys.exit(main())
