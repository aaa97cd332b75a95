"""The tables in docs/peers.md, between two markers; the words around them are by hand."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.peers.tools import AGAIN, BARE, OURS, TOOLS

PAGE = Path(__file__).parents[2] / "docs" / "peers.md"
QUIET_LOAD = 0.3
AIMS = {"light": 1.03, "heavy": 1.01, "syscalls": 1.05}
LOOPS = {"light": "light loop", "heavy": "heavy loop", "syscalls": "syscall-heavy loop"}

Cell = dict[str, Any]


def update(results: dict[str, Any], source: Path) -> None:
    """Put the results into the page, with a link to the file they are from."""
    link = f"; all numbers: [{source.name}](../benchmarks/results/{source.name})"
    page.fill(PAGE, render(results, link))


def render(results: dict[str, Any], link: str = "") -> str:
    """Markdown of a set of results."""
    loops = [loop for loop in LOOPS if any(cell["loop"] == loop for cell in _cells(results))]
    parts = [_heading(results, link), _ratios(results, loops), *_verdicts(results, loops)]
    parts += [_resources(results, loop) for loop in loops]
    return "\n\n".join(parts)


def ratios(results: dict[str, Any], loop: str, tool: str, key: str = "mean_step_us") -> list[float]:
    """Step / step of the bare loop, of each round in which both were measured.

    The bare loop runs twice a round. The tools are compared with the mean of the two, which is the
    more certain, and the second of them with the first.
    """
    names = (BARE,) if tool in (BARE, AGAIN) else (BARE, AGAIN)
    found = []
    for cells in results["rounds"]:
        cell = _find(cells, loop, tool)
        steps = [bare[key] for name in names if (bare := _find(cells, loop, name))]
        if cell and steps:
            found.append(cell[key] / statistics.fmean(steps))
    return found


def _heading(results: dict[str, Any], link: str) -> str:
    machine, load = results["machine"], results["load_before"]
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    lines = [
        f"Measured {results['date']} on {machine['usable_cpu_count']} cores, Linux "
        f"{machine['kernel']}, Python {machine['python']}; rounds: {len(results['rounds'])}, in "
        f"{results['minutes']} minutes, load average {load} before{link}.",
        f"Versions: {versions}.",
    ]
    if load > QUIET_LOAD:
        lines.append(f"**Not a quiet machine** (a load above {QUIET_LOAD}): not to be relied on.")
    return "\n".join(lines)


def _ratios(results: dict[str, Any], loops: list[str]) -> str:
    bare = (_median_of(results, loop, BARE, "mean_step_us") for loop in loops)
    steps = [f"{LOOPS[loop]}, {us / 1e3:.2f} ms" for loop, us in zip(loops, bare, strict=True)]
    rows = []
    for name in _tools(results):
        tool = TOOLS[name]
        found = [_ratio_cell(results, loop, name) for loop in loops]
        rows.append([tool.title, *found, tool.per_step or "-", tool.tells or "-"])
    return _table(["step time, ratio", *steps, "steps it reports on", "what it tells"], rows)


def _ratio_cell(results: dict[str, Any], loop: str, tool: str) -> str:
    if tool in results["missing"]:
        return f"not run: {results['missing'][tool]}"
    found, failures = ratios(results, loop, tool), _failures(results, loop, tool)
    if not found:
        return f"failed: {(failures or ['no bare loop to compare with'])[0]}"
    if tool == BARE:
        return "1"
    notes = [f"{len(failures)} failed"] if failures else []
    if len(found) > 1:
        low, _, high = statistics.quantiles(found, n=4, method="inclusive")
        notes.insert(0, f"{low:.3f} to {high:.3f}")
    return f"{statistics.median(found):.3f}" + (f" ({'; '.join(notes)})" if notes else "")


def _verdicts(results: dict[str, Any], loops: list[str]) -> Iterator[str]:
    """A sentence a loop: is the aim met, and is ours the lowest of all that report on steps?"""
    for loop in loops:
        found = {
            name: statistics.median(values)
            for name in _tools(results)
            if TOOLS[name].per_step and (values := ratios(results, loop, name))
        }
        if OURS not in found:
            continue
        ours, aim = found[OURS], AIMS[loop]
        lowest = min(found, key=lambda name: found[name])
        word = _word(ours, aim, ratios(results, loop, AGAIN))
        yield (
            f"{LOOPS[loop].capitalize()}: trainobs {ours:.3f}, aim {aim} {word}; "
            f"the lowest of the {len(found)} that report on single steps: "
            f"{TOOLS[lowest].title}, {found[lowest]:.3f}."
        )


def _word(ours: float, aim: float, again: list[float]) -> str:
    """Whether the aim is met, unless the bare loop differs from itself by more than is at stake."""
    chance = abs(statistics.median(again) - 1) if again else 0.0
    if chance > aim - 1:
        return f"**not decided**, since the bare loop differs from itself by {chance:.3f}"
    return "met" if ours <= aim else "**missed**"


def _resources(results: dict[str, Any], loop: str) -> str:
    columns: list[tuple[str, str, Callable[[float], str]]] = [
        ("cpu_us_per_step", "CPU a step", lambda us: f"{us / 1e3:.2f} ms"),
        ("peak_rss_bytes", "peak RSS", lambda size: f"{size / 2**20:.0f} MiB"),
        ("bytes_per_1000_steps", "written in 1,000 steps", lambda size: f"{size / 1024:.0f} KiB"),
        ("outside_s", "start and end", lambda seconds: f"{seconds:.1f} s"),
    ]
    rows = []
    for name in _tools(results):
        if found := ratios(results, loop, name, "median_step_us"):
            used = [show(_median_of(results, loop, name, key)) for key, _, show in columns]
            rows.append([TOOLS[name].title, f"{statistics.median(found):.3f}", *used])
    return _table([LOOPS[loop], "median step, ratio", *(title for _, title, _ in columns)], rows)


def _tools(results: dict[str, Any]) -> list[str]:
    """What was measured or missing, in the order of `TOOLS`."""
    seen = {cell["tool"] for cell in _cells(results)} | results["missing"].keys()
    return [name for name in TOOLS if name in seen]


def _cells(results: dict[str, Any]) -> Iterator[Cell]:
    for cells in results["rounds"]:
        yield from cells


def _find(cells: list[Cell], loop: str, tool: str) -> Cell | None:
    """The measured cell of a round, None if it failed or was not run."""
    matches = (cell for cell in cells if (cell["loop"], cell["tool"]) == (loop, tool))
    return next((cell for cell in matches if "failed" not in cell), None)


def _failures(results: dict[str, Any], loop: str, tool: str) -> list[str]:
    """Why it failed, each time that it did."""
    cells = (cell for cell in _cells(results) if (cell["loop"], cell["tool"]) == (loop, tool))
    return [cell["failed"] for cell in cells if "failed" in cell]


def _median_of(results: dict[str, Any], loop: str, tool: str, key: str) -> float:
    found = (_find(cells, loop, tool) for cells in results["rounds"])
    values = [cell[key] for cell in found if cell]
    return statistics.median(values) if values else float("nan")


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
