"""All storms, one after the other: what was tried, how often, what was lost.

Usage (as root): python -m benchmarks.storms.run [NAME ...] [--results FILE] [--page]

Keeps what each printed in one file of results. With --page its rows go into the table of
docs/reliability.md; rows there stay of which the file knows nothing, or nothing as new. Each storm
is a command of its own, with options of its own: see STORMS.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.page import fill, filled
from benchmarks.storms.processes import ROOT


class Storm(NamedTuple):
    """A storm.

    Attributes:
        what: is tried.
        words: of its command, behind `python -m benchmarks.storms.`.
    """

    what: str
    words: str


STORMS = {
    "run_logs": Storm("run logs changed at random, given to readers", "run_logs --count 10000"),
    "kills": Storm(
        "runs killed, ended or stopped at random moments", "kills --count 500 --probes auto"
    ),
    "writers": Storm(
        "runs with a writer process, of which either or both are killed, ended or stopped",
        "kills --count 250 --probes auto --writers",
    ),
    "disks": Storm("disks that fill up or become read-only, and recover", "disks --count 100"),
    "writers_disks": Storm(
        "the same, of runs with a writer process", "disks --count 100 --writers"
    ),
    "runs": Storm("runs at once, all of one name", "crowds --runs 64 --steps 0 --tables 0"),
    "steps": Storm("steps in one run", "crowds --runs 0 --steps 1000000 --tables 0"),
    "tables": Storm("embedding tables in one model", "crowds --runs 0 --steps 0 --tables 5000"),
    "service": Storm("attacks of one user on the service, while another uses it", "service"),
    "attaching": Storm(
        "times attached to a training, until one of both ended, was killed, or let go",
        "attaching --count 1000",
    ),
    "confined": Storm("trainings with less than the usual", "confined"),
}


def main() -> None:
    """Run the storms, and keep what they print."""
    parser = argparse.ArgumentParser(description="Try to break runs and their readers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STORMS)}")
    day = time.strftime("%Y-%m-%d")
    results = ROOT / "benchmarks" / "results" / f"storms-{day}.json"
    parser.add_argument("--results", type=Path, default=results)
    parser.add_argument("--page", action="store_true", help="put the rows into the page")
    options = parser.parse_args()
    known = json.loads(options.results.read_bytes()) if options.results.exists() else {}
    for name in options.names or STORMS:
        known[name] = {"date": day, "words": STORMS[name].words, "found": _found(STORMS[name])}
        options.results.write_text(json.dumps(known, indent=2) + "\n")
    if options.page:
        page = ROOT / "docs" / "reliability.md"
        fill(page, table(known, filled(page, "storms")), "storms")


def _found(storm: Storm) -> Any:
    command = [sys.executable, "-m", *f"benchmarks.storms.{storm.words}".split()]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def table(known: dict[str, Any], before: str = "") -> str:
    """The table of the page.

    Args:
        known: what a file of results holds.
        before: the table as it was, whose rows stay where `known` has none, or an older one.

    Raises:
        ValueError: a row of the former table belongs to no storm: it would be gone.
    """
    kept = {row.split(" | ")[0].removeprefix("| "): row for row in before.splitlines()[2:]}
    if lost := set(kept) - {storm.what for storm in STORMS.values()}:
        raise ValueError(f"rows of the page that no storm has: {sorted(lost)}")
    lines = [
        "| what was tried | how often | what was lost or broken | command, and when |",
        "|---|---|---|---|",
    ]
    for name, storm in STORMS.items():
        row = kept.get(storm.what)
        if name not in known or (row is not None and _date(row) > known[name]["date"]):
            lines += [] if row is None else [row]
        else:
            result = known[name]
            found = result["found"].get(name, result["found"])
            command = f"`{result['words']}`, {result['date']}"
            lines.append(f"| {storm.what} | {found['tried']:,} | {_lost(found)} | {command} |")
    return "\n".join(lines)


def _date(row: str) -> str:
    """The day that a row of the table ends with."""
    return re.findall(r"\d{4}-\d\d-\d\d", row)[-1]


def _lost(found: dict[str, Any]) -> str:
    """What a storm found, in a few words."""
    parts = [f"{len(found['troubles'])} troubles" if found["troubles"] else "nothing broke"]
    for key, text in (
        ("longest", "longest reading {0[seconds]} s"),
        ("largest", "most memory {0[peak_bytes]:,} B"),
        ("most_steps_lost", "at most {0} steps of a killed run"),
        ("lost", "{0:,} steps lost"),
        ("kept", "{0:,} in the log"),
        ("told_lost", "{0:,} told to be lost"),
        ("report_peak_bytes", "a report took {0:,} B"),
    ):
        if key in found:
            parts.append(text.format(found[key]))
    if "readings" in found:
        parts.append(", ".join(f"{number:,} {kind}" for kind, number in found["readings"].items()))
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
