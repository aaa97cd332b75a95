"""The tables of a study: Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from grid import Cell
from measured import (
    BUSY,
    DISK,
    HIT,
    NOT_MEASURED,
    OTHERS,
    READ,
    SAVED,
    TRAIN_STEP,
    Spread,
    Study,
)

from trainobs.core.text import counted
from trainobs.verdict.metric_names import LOADER

NO_WORKERS, NONE_SAVED, NO_CALLS, NO_NUMBER = "no workers", "none", "mapped", "-"


class Column(NamedTuple):
    """A column of the tables of medians.

    Attributes:
        title: with the unit.
        value: of a cell; a text says why there is none.
        scale: what a value is multiplied by.
        digits: behind the point.
    """

    title: str
    value: Callable[[Study, Cell], Spread | str | None]
    scale: float
    digits: int = 0


def first(name: str) -> Callable[[Study, Cell], Spread | None]:
    """A number of the first epoch."""
    return lambda study, cell: study.of_epoch(cell, 0, name)


def last(name: str) -> Callable[[Study, Cell], Spread | None]:
    """A number of the last epoch."""
    return lambda study, cell: study.of_epoch(cell, -1, name)


def images_per_s(study: Study, cell: Cell) -> Spread | None:
    """Training images in a second of the first epoch; the fastest step gives the most."""
    step = study.of_epoch(cell, 0, TRAIN_STEP)
    if step is None:
        return None
    rate = [study.settings["batch_size"] * 1e9 / ns for ns in (step.median, step.high, step.low)]
    return Spread(*rate, step.count)


def unless_mapped(name: str) -> Callable[[Study, Cell], Spread | str | None]:
    """A number of the first epoch that reads of a mapped file do not have."""
    return lambda study, cell: NO_CALLS if cell.format == "memmap" else first(name)(study, cell)


def busy(study: Study, cell: Cell) -> Spread | str | None:
    """Share of the time in which workers made batches, in the first epoch."""
    if not cell.workers:
        return NO_WORKERS
    rows = [one.epochs[0] for one in study.runs if one.run.cell == cell and one.epochs]
    return Spread.from_values(sum(row[n] for n in BUSY) for row in rows if row.keys() >= set(BUSY))


def saved(name: str) -> Callable[[Study, Cell], Spread | str | None]:
    """A number of checkpoints."""
    return lambda study, cell: (
        NONE_SAVED if cell.checkpoints == "never" else study.of_run(cell, name)
    )


COLUMNS = (
    Column("step, epoch 1 (ms)", first(TRAIN_STEP), 1e-6),
    Column("step, last epoch (ms)", last(TRAIN_STEP), 1e-6),
    Column("images/s, epoch 1", images_per_s, 1),
    Column("wait for data (ms)", first(LOADER), 1e-6),
    Column("read (MB)", unless_mapped(READ), 1e-6, 1),
    Column("from disk (MB)", first(DISK), 1e-6, 1),
    Column("page cache hits (%)", unless_mapped(HIT), 100),
    Column("workers busy (%)", busy, 100),
    Column("a checkpoint (ms)", saved("blocking_ns"), 1e-6),
    Column("CPU taken by others (%)", lambda study, cell: study.of_run(cell, OTHERS), 100),
)
KEYS = ("format", "page cache", "workers", "checkpoint", "runs")


def rows(study: Study) -> Iterable[list[str]]:
    """The rows of the tables of medians, without the head."""
    for cell in study.asked():
        keys = (cell.format, cell.cache, str(cell.workers), cell.checkpoints)
        runs = f"{study.count(cell)} of {study.repeats[cell]}"
        if not study.count(cell):
            yield [*keys, f"{runs}: {study.why_none(cell)}", *(NO_NUMBER for _ in COLUMNS)]
            continue
        yield [*keys, runs, *(text(column, study, cell) for column in COLUMNS)]


def text(column: Column, study: Study, cell: Cell) -> str:
    """A median with least and most, or why there is none."""
    value = column.value(study, cell)
    if not isinstance(value, Spread):
        return value or NOT_MEASURED
    middle, low, high = (f"{part * column.scale:,.{column.digits}f}" for part in value[:3])
    return middle if low == high else f"{middle} ({low}-{high})"


def write_tables(study: Study, folder: Path) -> list[Path]:
    """Write all tables; return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    head = [*KEYS, *(column.title for column in COLUMNS)]
    body = list(rows(study))
    paths = [folder / name for name in ("results.md", "results.tex", "runs.csv")]
    paths[0].write_text(markdown(study, head, body))
    paths[1].write_text(latex(head, body))
    with paths[2].open("w", newline="") as file:
        csv.writer(file).writerows(tidy(study))
    return paths


def markdown(study: Study, head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """The table with what one has to know to read it."""
    lines = [
        "# Results",
        "",
        "Medians over the runs of a cell, with the least and the most. Times are per step, without",
        "the first step of a run; a step is without validation and checkpoints. What has no epoch",
        "in its title is of the first; checkpoints and the CPU taken by others are of whole runs.",
        "",
        *(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)),
        "",
        *environments(study),
    ]
    if told := study.not_counted():
        lines += ["", "Runs that do not count:", "", *(f"* {line}" for line in told)]
    return "\n".join(lines) + "\n"


def environments(study: Study) -> list[str]:
    """Where the runs were made, and with what; a line for each machine that was not the same."""
    known = study.settings
    options = {name: value for name, value in known.items() if isinstance(value, int)}
    lines = [
        f"Data: {known['images']['train']:,} images to train on and {known['images']['val']:,} to "
        f"validate, {sum(known['bytes'].values()) / 1e6:,.0f} MB, of {known['data']}.",
        f"Settings: {', '.join(f'{name} {value}' for name, value in options.items())}.",
    ]
    found: dict[str, int] = {}
    for one in study.runs:
        told = machine(one.result["environment"], one.threads, one.level)
        found[told] = found.get(told, 0) + 1
    lines += [f"{counted(count, 'run')} on {told}." for told, count in found.items()]
    lines += [f"Page cache before {cache} runs: {found}." for cache, found in held(study).items()]
    disturbed = study.disturbed()
    return [*lines, f"Note: {disturbed}."] if disturbed else lines


def held(study: Study) -> dict[str, str]:
    """How much of the data set was in memory as training began, by state of the page cache."""
    found: dict[str, list[float | None]] = {}
    for one in study.runs:
        found.setdefault(one.run.cell.cache, []).append(one.result["resident_ratio"])
    told = {}
    for cache, ratios in found.items():
        known = [ratio for ratio in ratios if ratio is not None]
        shares = list(dict.fromkeys(f"{ratio:.1%}" for ratio in sorted(known)))
        words = [f"{' to '.join({shares[0]: 0, shares[-1]: 0})} of the data set"] if known else []
        if len(known) < len(ratios):
            words.append(f"unknown in {counted(len(ratios) - len(known), 'run')}")
        told[cache] = ", ".join(words)
    return told


def machine(facts: dict[str, Any], threads: int | None, level: str) -> str:
    """A machine and its software in a line."""
    disk = facts["disk"]
    kind = "a disk that calls itself rotating" if disk["rotational"] == "1" else "a disk"
    thread_count = counted(threads, "thread") if threads else "an unknown number of threads"
    packages = ", ".join(f"{name} {at}" for name, at in facts["packages"].items() if at)
    return (
        f"{facts['usable_cpu_count']} CPUs ({facts['cpu']}"
        f"{', a virtual machine' if facts['virtual'] else ''}), "
        f"{(facts['memory_bytes'] or 0) / 2**30:.0f} GiB of memory, Linux {facts['kernel']}, "
        f"{disk['file_system']} on {kind} ({disk['source']}, read-ahead of "
        f"{disk['read_ahead_kb']} kB), "
        f"Python {facts['python']}, {packages}; torch on {thread_count}, "
        f"observed at level {level}"
    )


def latex(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """The table for a paper; it needs the package booktabs."""
    lines = [r"\begin{tabular}{" + "l" * 4 + "r" * (len(head) - 4) + "}", r"\toprule"]
    lines += [" & ".join(map(escaped, head)) + r" \\", r"\midrule"]
    lines += [" & ".join(map(escaped, row)) + r" \\" for row in body]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def escaped(text: str) -> str:
    """A text for LaTeX."""
    for sign in "&%$#_{}":
        text = text.replace(sign, "\\" + sign)
    return text


def tidy(study: Study) -> Iterable[list[Any]]:
    """Head and rows of the CSV: each epoch of each run, in ns, bytes and shares of one."""
    names = sorted({name for one in study.runs for row in one.epochs for name in row})
    whole = [OTHERS, *SAVED]
    yield [
        *("format", "page_cache", "workers", "checkpoints", "run", "epoch", "level"),
        *names,
        *(f"run:{name}" for name in whole),
    ]
    for one in study.runs:
        cell = one.run.cell
        keys = [cell.format, cell.cache, cell.workers, cell.checkpoints, one.run.repeat]
        for epoch, row in enumerate(one.epochs, 1):
            numbers = [row.get(name, "") for name in names]
            yield [*keys, epoch, one.level, *numbers, *(one.whole.get(name, "") for name in whole)]
