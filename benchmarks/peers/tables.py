"""The tables in docs/peers.md, between two markers; the words around them are by hand."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.peers.tools import AGAIN, BARE, EACH, OURS, TOOLS

PAGE = Path(__file__).parents[2] / "docs" / "peers.md"
QUIET_LOAD = 0.3
AIMS = {"light": 1.03, "heavy": 1.01, "syscalls": 1.05}
LOOPS = {"light": "light loop", "heavy": "heavy loop", "syscalls": "syscall-heavy loop"}

TIME, CPU = "mean_step_us", "cpu_us_per_step"
COSTS = {TIME: "step time, ratio", CPU: "CPU time a step, ratio"}

Cell = dict[str, Any]


def update(results: dict[str, Any], source: Path) -> None:
    """Put the results into the page, with a link to the file they are from."""
    link = f"; all numbers: [{source.name}](../benchmarks/results/{source.name})"
    page.fill(PAGE, render(results, link))


def render(results: dict[str, Any], link: str = "") -> str:
    """Markdown of a set of results."""
    loops = [loop for loop in LOOPS if any(cell["loop"] == loop for cell in _cells(results))]
    parts = [_heading(results, link)]
    parts += [_ratios(results, loops, cost) for cost in COSTS]
    parts += [_verdict(results, loop, cost) for loop in loops for cost in COSTS]
    parts += [_resources(results, loop) for loop in loops]
    return "\n\n".join(parts)


def ratios(results: dict[str, Any], loop: str, tool: str, key: str) -> list[float]:
    """A step's cost / that of the bare loop, of each round in which both were measured.

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


def _ratios(results: dict[str, Any], loops: list[str], cost: str) -> str:
    bare = (_median_of(results, loop, BARE, cost) for loop in loops)
    steps = [f"{LOOPS[loop]}, {us / 1e3:.2f} ms" for loop, us in zip(loops, bare, strict=True)]
    head, rows = [COSTS[cost], *steps], []
    if cost == TIME:
        head += ["steps it reports on", "what it tells"]
    for name in _tools(results):
        tool = TOOLS[name]
        row = [tool.title, *(_ratio_cell(results, loop, name, cost) for loop in loops)]
        rows.append(row + [tool.per_step or "-", tool.tells or "-"] if cost == TIME else row)
    return _table(head, rows)


def _ratio_cell(results: dict[str, Any], loop: str, tool: str, cost: str) -> str:
    if tool in results["missing"]:
        return f"not run: {results['missing'][tool]}"
    found, failures = ratios(results, loop, tool, cost), _failures(results, loop, tool)
    if not found:
        return f"failed: {(failures or ['no bare loop to compare with'])[0]}"
    if tool == BARE:
        return "1"
    notes = [f"{len(failures)} failed"] if failures else []
    if len(found) > 1:
        low, high = _quartiles(found)
        notes.insert(0, f"{low:.3f} to {high:.3f}")
    return f"{statistics.median(found):.3f}" + (f" ({'; '.join(notes)})" if notes else "")


def _verdict(results: dict[str, Any], loop: str, cost: str) -> str:
    """A sentence: is the aim met, and which tools that report on every step cost less than ours?"""
    found = {
        name: values
        for name in _tools(results)
        if TOOLS[name].per_step == EACH and (values := ratios(results, loop, name, cost))
    }
    what = f"{LOOPS[loop].capitalize()}, {COSTS[cost].removesuffix(', ratio')}"
    if OURS not in found:
        return f"{what}: trainobs was not measured."
    ours = found.pop(OURS)
    lower = [
        f"{TOOLS[name].title} ({statistics.median(values):.3f})"
        for name, values in found.items()
        if _quartiles(values)[1] < _quartiles(ours)[0]
    ]
    aim = AIMS[loop]
    word = _word(ours, aim, ratios(results, loop, AGAIN, cost))
    return (
        f"{what}: trainobs {statistics.median(ours):.3f}, aim {aim} {word}. "
        f"Of the {len(found)} others that report on every step, "
        f"{' and '.join(lower) or 'none'} cost less beyond chance."
    )


def _word(ours: list[float], aim: float, again: list[float]) -> str:
    """Whether the aim is met, where both quartiles say so and the bare loop is as it was."""
    chance = abs(statistics.median(again) - 1) if again else 0.0
    if chance > aim - 1:
        return f"**not decided**, since the bare loop differs from itself by {chance:.3f}"
    low, high = _quartiles(ours)
    if low <= aim < high:
        return f"**not decided**, since half of the rounds lie between {low:.3f} and {high:.3f}"
    return "met" if high <= aim else "**missed**"


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


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
