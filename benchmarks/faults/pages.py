"""The table of results for docs/verdicts.md."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from faults.cases import CASES
from faults.judge import BUSY
from faults.machine import CPUS


def table(results: dict[str, Any], source: Path) -> str:
    """Markdown table of one set of results."""
    return "\n".join(
        [
            *_head(results, source),
            "| what is wrong | verdict | | remedy | advice followed |",
            "|---|---|---|---|---|",
            *(_row(name, found) for name, found in results["cases"].items()),
        ]
    )


def exceptions(results: dict[str, Any], source: Path) -> str:
    """The same of those that are neither right nor vague, without remedies."""
    rest = {
        name: found
        for name, found in results["cases"].items()
        if found["result"] not in ("right", "vague")
    }
    rows = [
        f"| {_tells(name)} | {(found.get('verdict') or _NONE)['text'][0]} | {found['result']} |"
        for name, found in rest.items()
    ]
    return "\n".join(
        [*_head(results, source), "| what is wrong | verdict | |", "|---|---|---|", *rows]
    )


_NONE = {"text": [""]}


def _head(results: dict[str, Any], source: Path) -> list[str]:
    machine, cases = results["machine"], results["cases"]
    taken = [found["others_cpus"] for found in cases.values() if "others_cpus" in found]
    counts = Counter(found["result"] for found in cases.values())
    busy = sum(each > BUSY * CPUS for each in taken) * 2 > len(taken)
    measured = "Preliminary, on a busy machine: measured" if busy else "Measured"
    return [
        f"{measured} {results['date']} on {machine['usable_cpu_count']} cores, Linux "
        f"{machine['kernel']}; others took {min(taken, default=0):.1f} to "
        f"{max(taken, default=0):.1f} CPUs; all numbers: "
        f"[{source.name}](../benchmarks/results/{source.name}).",
        "",
        f"Of {len(cases)}: {', '.join(f'{count} {result}' for result, count in counts.items())}.",
        "",
    ]


def _row(name: str, found: dict[str, Any]) -> str:
    tells = _tells(name)
    if "verdict" not in found:
        return f"| {tells} | | {found['result']} | | |"
    gain = found["remedy"]["gain"]
    return (
        f"| {tells} | {found['verdict']['text'][0]} | {found['result']} "
        f"| {f'{gain:.1f}x' if gain else ''} | {advice(found['followed'])} |"
    )


def _tells(name: str) -> str:
    case = CASES[name]
    return f"nothing: {case.tells}" if case.healthy else case.tells


def advice(followed: dict[str, Any]) -> str:
    """What came of following advice."""
    if not followed:
        return ""
    change = ", ".join(f"{name}={value}" for name, value in followed["change"].items())
    told = followed.get("predicted")
    gain = f"{followed['gain']:.1f}x" if "gain" in followed else "not followed"
    if not told:
        return f"`{change}`: {gain}"
    most = "or more" if told[1] is None else f"to {told[1]:.1f}"
    return f"`{change}`: {gain}, told {told[0]:.1f} {most}"
