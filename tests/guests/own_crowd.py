"""More processes than CPUs that call getsid all the time, and what a user's programs count of it.

usage: python -m tests.guests.own_crowd DIRECTORY

Prints one JSON object: calls that were made, those that a program counted which has a second one
(bpf/own_preemption.h, since Linux 7.0), those of the same program without, and what the run tells
that the kernel left out.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path

from tests.kernel.own import GETSID
from trainobs import Probe, observe
from trainobs.probes.compiling import compile_source
from trainobs.runlog.reader import RunLog

PROCESSES, CALLS = 8, 4000

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


def main() -> None:
    """Run it."""
    place = Path(sys.argv[1])
    for name in ("twice", "once"):
        (place / f"{name}.c").write_text(SOURCE.format(name=name, number=GETSID))
    once = compile_source(place / "once.c", place / "once.bpf.o")
    getsid = ctypes.CDLL(None).getsid
    probes = ["auto", Probe(place / "twice.c"), Probe(once)]
    with observe(run_dir=place / "run", probes=probes) as obs:
        children = []
        for _ in range(PROCESSES):
            child = os.fork()
            if not child:
                for _ in range(CALLS):
                    getsid(0)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)
        obs.step()
    run = RunLog.open(place / "run")
    counted = {name: run.ranks[0].metric(f"probe/{name}").sum() for name in ("twice", "once")}
    told = {k: v for k, v in run.info["summary"]["losses"].items() if v}
    status = {k: v for k, v in run.info["capabilities"].items() if k.endswith((".c", ".o"))}
    print(json.dumps({"made": PROCESSES * CALLS, **counted, "told": told, "status": status}))


if __name__ == "__main__":
    main()
