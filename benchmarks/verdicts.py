"""Inject faults into small trainings, and see whether the verdicts name them: `make faults`.

    python benchmarks/verdicts.py [--unprivileged] [--quick] [--only NAME]... [--keep DIR]
    python benchmarks/verdicts.py [--unprivileged] --judge DIR [--write]
    python benchmarks/verdicts.py --predict [--rounds N] [--keep DIR | --judge DIR]

Each case is run with its fault, once more with the remedy that takes the fault away, and, if the
verdict advises a change that can be carried out, after that change; each time in a process of its
own, under observation. The verdict is the one that `trainobs report` gives. Then the results go to
`benchmarks/results/` as JSON, and as a table into `docs/verdicts.md`.

`--keep` keeps every run, and does not run again what it finds there; `--judge` runs nothing, and
judges what was kept, with `--write` into the page as well. `--predict` does the same for predicted
effects of changes. Root is needed where a fault needs control groups, and for the eBPF level; with
`--unprivileged` no training may load probes, and the page has what is not right then.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import page
from faults import pages
from faults.case import Case
from faults.cases import CASES
from faults.groups import Unavailable
from faults.judge import FAULT, LOSES, REMEDY, WHY_NOT, advised, again, judged, measured_gain
from faults.predictions import judge_pairs, lines_of, run_pairs
from faults.runner import Failed, run
from faults.setting import Setting

from trainobs.host.facts import host_facts

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "verdicts.md"

_USUAL = "verdicts", "measured", pages.table
_UNPRIVILEGED = "verdicts-unprivileged", "unprivileged", pages.exceptions
"""Begin of the file's name, markers in the page, and what stands between them."""


def main() -> int:
    """Run the suite, or judge what it left; 1 if a verdict was wrong."""
    arguments = _arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contexts are left
    with ExitStack() as stack:
        folder = arguments.judge or arguments.keep
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/var/tmp")))
        if arguments.predict:
            return _predictions(folder, arguments)
        names = arguments.only or [
            name for name, case in CASES.items() if case.quick or not arguments.quick
        ]
        change = {"unprivileged": True} if arguments.unprivileged else {}
        cases = {name: CASES[name].changed(**change) for name in names}
        results = suite(cases, folder, arguments)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2))
    whole = not (arguments.only or arguments.quick)
    if whole and (arguments.write or not arguments.judge):
        kind, marker, table = _UNPRIVILEGED if arguments.unprivileged else _USUAL
        path = RESULTS / f"{kind}-{results['date']}.json"
        path.write_text(json.dumps(results, indent=2) + "\n")
        page.fill(PAGE, table(results, path), marker)
        print(f"written: {path} and {PAGE}")
    return 1 if any(found["result"] == "wrong" for found in results["cases"].values()) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a few cases, without their remedies")
    parser.add_argument("--unprivileged", action="store_true", help="nobody may load probes")
    parser.add_argument("--only", choices=CASES, action="append", help="this case; no results")
    parser.add_argument("--keep", type=Path, help="keep runs there; run only what is missing")
    parser.add_argument("--judge", type=Path, help="run nothing, judge what was kept there")
    parser.add_argument("--write", action="store_true", help="--judge writes the results, too")
    parser.add_argument("--predict", action="store_true", help="predictions in place of verdicts")
    parser.add_argument("--rounds", type=int, default=3, help="of predictions")
    parser.add_argument("--json", type=Path, help="write the results there, too")
    return parser.parse_args()


def suite(cases: Mapping[str, Case], folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run cases one after the other, unless they are only to be judged."""
    found = {}
    for name, case in cases.items():
        place = folder / name
        if not arguments.judge:
            attempt(case, place, with_remedy=not arguments.quick)
        found[name] = judged(case, place)
        _tell(name, found[name])
    return {**_machine(folder), "cases": found}


def attempt(case: Case, place: Path, *, with_remedy: bool) -> None:
    """Run a case: with its fault, with its remedy, and after its advice."""
    place.mkdir(parents=True, exist_ok=True)
    (place / WHY_NOT).unlink(missing_ok=True)
    try:
        run(case.setting, place / FAULT)
        if not with_remedy:
            return
        if case.remedy:
            run(case.setting.changed(**case.remedy), place / REMEDY)
        if advice := advised(case, place):
            follow(case, place / FAULT, *advice)
    except (Unavailable, Failed) as why:
        (place / WHY_NOT).write_text(str(why))


def follow(case: Case, fault: Path, setting: Setting, place: Path) -> None:
    """Run a setting after what was advised; if it loses, both once more, lest chance decides."""
    run(setting, place)
    gain = measured_gain(fault, place)
    if gain is not None and gain < LOSES:
        run(case.setting, again(fault))
        run(setting, again(place))


def _tell(name: str, found: dict[str, Any]) -> None:
    text = found["verdict"]["text"] if "verdict" in found else [""]
    print(f"{name:<26}{found['result']:<14}{text[0]}", *text[1:], sep="\n    ")
    if found["reason"]:
        print(f"    {found['result']}: {found['reason']}")
    if "verdict" in found:
        gain = found["remedy"]["gain"]
        print(f"    remedy: {gain:.2f}x" if gain else "    no remedy", end="; ")
        print(f"advice: {pages.advice(found['followed']) or 'none'}", flush=True)


def _machine(folder: Path) -> dict[str, Any]:
    """The machine and the day of what is kept."""
    path = folder / "machine.json"
    if not path.exists():
        facts = {"machine": host_facts(), "date": time.strftime("%Y-%m-%d")}
        path.write_text(json.dumps(facts))
    return dict(json.loads(path.read_text()))


def _predictions(folder: Path, arguments: argparse.Namespace) -> int:
    if not arguments.judge:
        run_pairs(folder, arguments.rounds)
    found = judge_pairs(folder, arguments.rounds)
    print(*lines_of(found), sep="\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))
    return 1 if any(pair["result"] == "bad" for pair in found) else 0


if __name__ == "__main__":
    raise SystemExit(main())
