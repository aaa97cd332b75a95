"""Inject faults, and see whether the verdicts name them: `make faults`.

    python benchmarks/verdicts.py [--quick] [--only NAME]...

Each fault gets a process of its own, which trains for some seconds under observation; the verdict
is the one that `trainobs report` gives. The result goes to `benchmarks/results/` as JSON, and as a
table into `docs/verdicts.md`. Root is needed where a fault needs control groups, and for the eBPF
level.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import page
from faults.fault import Fault, Unavailable
from faults.groups import join_groups
from faults.table import FAULTS

from trainobs.analysis.summary import summarize
from trainobs.host.facts import host_facts
from trainobs.runlog.reader import RunLog
from trainobs.verdict.rules import WORTH_TELLING

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "verdicts.md"
JOB_S = 240
BUSY_LOAD = 0.5
"""Load average for each CPU, before a fault is injected, above which the machine is not ours."""


def main() -> int:
    """Run the suite; 1 if a verdict was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few faults; writes no results")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    parser.add_argument("--only", choices=FAULTS, action="append", help="this one; no results")
    parser.add_argument("--job", choices=FAULTS, help=argparse.SUPPRESS)
    parser.add_argument("places", nargs="*", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.job:
        join_groups()
        FAULTS[arguments.job].job(*arguments.places)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contexts are left
    names = arguments.only or [
        n for n, fault in FAULTS.items() if fault.quick or not arguments.quick
    ]
    results = suite(names)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    if not (arguments.only or arguments.quick):
        RESULTS.mkdir(exist_ok=True)
        path = RESULTS / f"verdicts-{results['date']}.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        page.fill(PAGE, table(results, path))
        print(f"written: {path} and {PAGE}")
    return 1 if any(found["result"] == "wrong" for found in results["faults"].values()) else 0


def suite(names: list[str]) -> dict[str, Any]:
    """Run faults one after the other."""
    found = {}
    for name in names:
        found[name] = measure(FAULTS[name])
        head, *rest = found[name]["text"]
        print(f"{name:<22}{found[name]['result']:<14}{head}", *rest, sep="\n    ", flush=True)
    return {"machine": host_facts(), "date": time.strftime("%Y-%m-%d"), "faults": found}


def measure(fault: Fault) -> dict[str, Any]:
    """Inject one fault: its verdict, and whether that is right."""
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="trainobs-fault-", dir="/var/tmp") as folder:
        files, run_dir = Path(folder, "data"), Path(folder, "run")
        files.mkdir()
        try:
            with fault.around(files) as environment:
                _run(fault, files, run_dir, environment)
        except Unavailable as why:
            return {"result": "not injected", "text": [str(why)], "load_before": load}
        summary = summarize(RunLog.open(run_dir))
    verdict = summary["verdict"]["run"]
    return {
        "result": _result(fault, verdict, load),
        "expected": fault.kind.value,
        "level": summary["level"],
        "load_before": load,
        **verdict,
    }


def _result(fault: Fault, verdict: dict[str, Any], load: float) -> str:
    """A cause that is not named is no wrong one.

    "disturbed": not right, on a machine that was busy before we came, and the training thread
    lacked a CPU for a good part of the step. To be repeated when it is quiet.
    """
    if verdict["kind"] is None:
        return "abstained"
    causes = {None, *(cause.value for cause in fault.causes)}
    if verdict["kind"] == fault.kind.value and verdict["cause"] in causes:
        return "right"
    shares = {row["metric"]: row["share"] for row in verdict["evidence"]}
    lacked = shares.get("sched/main_runqueue_ns", 0.0) >= WORTH_TELLING
    busy = load > BUSY_LOAD * len(os.sched_getaffinity(0))
    return "disturbed" if lacked and busy else "wrong"


def _run(fault: Fault, files: Path, run_dir: Path, environment: dict[str, str]) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={fault.ranks}"]
    command = [
        sys.executable,
        *(launcher if fault.ranks > 1 else []),
        __file__,
        "--job",
        fault.name,
    ]
    with _process([*command, str(files), str(run_dir)], os.environ | environment) as process:
        output, _ = process.communicate(timeout=JOB_S)
        if process.returncode:
            raise RuntimeError(f"{fault.name} failed:\n{output.decode()[-4000:]}")


@contextmanager
def _process(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, of which nothing is left afterwards."""
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def table(results: dict[str, Any], source: Path) -> str:
    """Markdown table of one set of results."""
    machine, faults = results["machine"], results["faults"]
    loads = [found["load_before"] for found in faults.values()]
    counts = Counter(found["result"] for found in faults.values())
    busy = max(loads) > BUSY_LOAD * machine["usable_cpu_count"]
    measured = "Preliminary, on a busy machine: measured" if busy else "Measured"
    lines = [
        f"{measured} {results['date']} on {machine['usable_cpu_count']} cores, Linux "
        f"{machine['kernel']}, load average {min(loads):.1f} to {max(loads):.1f} before each run; "
        f"all numbers: [{source.name}](../benchmarks/results/{source.name}).",
        "",
        f"Of {len(faults)}: {', '.join(f'{count} {result}' for result, count in counts.items())}.",
        "",
        "| fault | loop | expected | verdict | |",
        "|---|---|---|---|---|",
    ]
    for name, found in faults.items():
        fault = FAULTS[name]
        lines.append(
            f"| {fault.tells} | {fault.loop} | {fault.kind.value} "
            f"| {found['text'][0]} | {found['result']} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
