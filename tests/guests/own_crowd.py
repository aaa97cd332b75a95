"""More processes than CPUs that call getsid all the time, and what a user's programs count of it.

usage: python -m tests.guests.own_crowd DIRECTORY

Prints one JSON object. Of `twice` there is a second program where a task may lose its CPU in the
first (bpf/own_preemption.h, since Linux 7.0), of `once`, the same program, there is none. Neither
may count more than there was, nor lack more than the run tells of.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.kernel.own import GETSID
from trainobs import Probe, observe
from trainobs.core.errors import ProbeError
from trainobs.probes.compiling import compile_source
from trainobs.runlog.reader import RunLog

PROCESSES, CALLS = 8, 4000
NAMES = ("twice", "once")
PROBES = {"twice.c", "once.o"}

SOURCE = """#include "trainobs_probe.h"
TRAINOBS_COUNTER(0, "{name}", "calls");
SEC("tp_btf/sys_enter")
int BPF_PROG({name}, void *registers, long number)
{{
	if (number != {number})
		return 0;
	for (int i = 0; i < 2000; i++) /* the longer it takes, the likelier a task loses its CPU here */
		barrier();
	trainobs_add(0, 1, 0);
	return 0;
}}
"""


def call_all(times: int) -> None:
    """As many processes as `PROCESSES`, all at once, and as many calls by each."""
    getsid = ctypes.CDLL(None).getsid
    children = []
    for _ in range(PROCESSES):
        child = os.fork()
        if not child:
            for _ in range(times):
                getsid(0)
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)


def judge(run: RunLog) -> dict[str, Any]:
    """Compare what a run log has with what was done."""
    level, losses = run.info["level"], run.info["summary"]["losses"]
    found = {"check": "own_crowd", "level": level, "losses": losses, "lies": []}
    off = {name: state for name, state in run.info["capabilities"].items() if state != "on"}
    if PROBES & off.keys():
        return found | {"skipped": "; ".join(off[name] for name in PROBES & off.keys())}
    counted = {name: int(run.ranks[0].metric(f"probe/{name}").sum()) for name in NAMES}
    short = {name: PROCESSES * CALLS - count for name, count in counted.items()}
    if not all(0 <= missing <= losses["runs"] for missing in short.values()):
        found["lies"] = [f"LIE own_crowd: {counted} of {PROCESSES * CALLS}; told: {losses}"]
    return found | {"short": short["twice"], "short_without": short["once"]}


def main() -> int:
    """Run as a command."""
    place = Path(sys.argv[1])
    sources = {name: place / f"{name}.c" for name in NAMES}
    for name, source in sources.items():
        source.write_text(SOURCE.format(name=name, number=GETSID))
    with suppress(ProbeError):  # without a compiler neither is counted, which is told
        compile_source(sources["once"], place / "once.o")
    probes = [Probe(path) for path in (sources["twice"], place / "once.o") if path.exists()]
    with observe(run_dir=place / "run", probes=["auto", *probes]) as obs, obs.step():
        call_all(CALLS)
    found = judge(RunLog.open(place / "run"))
    print(json.dumps(found))
    return bool(found["lies"])


if __name__ == "__main__":
    sys.exit(main())
