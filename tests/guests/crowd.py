"""More processes than CPUs that read all the time, and what the run log has of it.

usage: python -m tests.guests.crowd DIRECTORY

Prints one JSON object. Since Linux 7.0 a process may lose its CPU in a program, which the kernel
leaves out of all else there until that process goes on (bpf/preemption.h). No number may be above
the truth, nor lack more than the run tells of.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.kernel.runlog import RunTables
from trainobs import observe

PROCESSES, FILES, STEPS = 8, 100, 4
SIZE, BUFFER = 1024, 512
READS = 3
"""Of a file: two calls read it, and one finds its end."""


def read_all(folder: Path) -> None:
    """Read each file of a folder to its end."""
    for name in os.listdir(folder):
        fd = os.open(folder / name, os.O_RDONLY)
        while os.read(fd, BUFFER):
            pass
        os.close(fd)


def crowd(folders: list[Path]) -> None:
    """A process for each folder, all at once."""
    children = []
    for folder in folders:
        child = os.fork()
        if not child:
            try:
                read_all(folder)
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def judge(run: RunTables) -> dict[str, object]:
    """Compare what a run log has with what was done."""
    calls = all(
        run.info["capabilities"].get(f"tobs_sys_{end}") == "on" for end in ("enter", "exit")
    )
    opened = STEPS * PROCESSES * FILES if calls else 0
    truth = {("open", "count"): opened, ("read", "count"): READS * opened}
    losses = run.info["summary"]["losses"]
    told = sum(losses.values())
    lies, short = [], {}
    for (op, field), value in truth.items():
        got = run.total(field, op, "data")
        short[op] = value - got
        if not 0 <= short[op] <= told:
            lies.append(f"LIE crowd: {field} of {op} is {got}, not {value}; told: {losses}")
    missing = READS * opened and SIZE * opened - run.total("bytes", "read", "data")
    if not 0 <= missing <= short["read"] * BUFFER:
        lies.append(f"LIE crowd: {missing} bytes are missing in {short['read']} reads")
    level = run.info["level"]
    return {"check": "crowd", "level": level, "lies": lies, "losses": losses, "short": short}


def main() -> int:
    """Run as a command."""
    place = Path(sys.argv[1])
    folders = [place / "data" / f"{number}" for number in range(PROCESSES)]
    for folder in folders:
        folder.mkdir(parents=True)
        for number in range(FILES):
            (folder / f"{number}").write_bytes(bytes(SIZE))
    with observe(run_dir=place / "run", data_roots=[place / "data"]) as obs:
        for _ in range(STEPS):
            with obs.step():
                crowd(folders)
    found = judge(RunTables(place / "run"))
    print(json.dumps(found))
    return bool(found["lies"])


if __name__ == "__main__":
    sys.exit(main())
