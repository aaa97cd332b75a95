"""What the report says of what is lost, unreadable or was not observed."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

from trainobs.analysis.summary import Summary
from trainobs.core.text import counted, size

_KERNEL = {
    "tasks": ("task that was not followed", "tasks that were not followed"),
    "requests": ("block request", "block requests"),
    "classes": ("class of files", "classes of files"),
    "runs": ("run of a probe that the kernel left out", "runs of probes that the kernel left out"),
    "service": ("loss of the service", "losses of the service"),
}

_LACKING = {
    "tasks": "and counted in no number",
    "requests": "missing from what block devices read and wrote",
    "classes": "whose bytes may be told as those of others",
    "runs": "any number may be too small",
    "service": "all later steps lack the kernel's counts, and their batches",
}
"""What numbers lack by each of these."""

_FULL = {
    "ENOSPC": "the disk was full",
    "EDQUOT": "a quota was used up",
    "EFBIG": "files may not be that large (`ulimit -f`)",
}

_SINKS = {"runlog": "in the run log", "tensorboard": "in TensorBoard"}

_LITTLE = 1_000_000
"""Bytes below which a disk is as good as full."""


def lost(summary: Summary) -> list[str]:
    """What the numbers lack, one phrase each; empty if they lack nothing."""
    return [*_mixed(summary), *_steps(summary), *_disk(summary), *_events(summary)]


def told(summary: Summary) -> str | None:
    """The same, and what `missing_files` says, in a sentence; None if they lack nothing."""
    found = [*missing_files(summary), *lost(summary)]
    return f"Lost: {'; '.join(found)}." if found else None


def killed(summary: Summary) -> str | None:
    """What the kernel killed for want of memory; None if nothing, or nobody knows."""
    count, host = summary["metrics"]["memory/oom_kill_count"]["sum"], summary["host"]
    if not count:
        return None
    told = f"the kernel killed {counted(int(count), 'process', 'processes')}"
    if host.get("oom_kills_of") != "control group":
        return f"{told} of this machine, of this run or not"
    limit = host.get("memory_limit_bytes")
    return f"{told} of the run's control group{f' (memory limit {size(limit)})' if limit else ''}"


def nothing_lost(summary: Summary) -> str:
    """What is said where nothing is known to be lost: a run that was killed cannot tell of more."""
    if summary["outcome"] is None:
        return "nothing up to its newest step; if it was killed, what came after that"
    return "nothing"


def _mixed(summary: Summary) -> Iterator[str]:
    """Files that are not those that the run stored."""
    found = summary["lost"]
    at_odds = dict(found["at_odds"])
    steps = at_odds.pop("steps", None)
    if steps or found["are_mixed"]:
        few = f" ({steps['found']:,}, of {steps['stored']:,} stored)" if steps else ""
        yield f"steps are there twice, or those of another run{few}: trust no number of this report"
    for table, rows in at_odds.items():
        counts = f"{rows['found']:,} rows of {rows['stored']:,} stored"
        why = "some are gone" if rows["found"] < rows["stored"] else "some are there twice"
        why = f"{why}, or they are another run's" if rows["found"] else "all are gone"
        yield f"{table}: {counts}: {why}"


def _steps(summary: Summary) -> Iterator[str]:
    found = summary["lost"]
    if found["dropped"]:
        have = "has" if found["dropped"] == 1 else "have"
        yield f"{counted(found['dropped'], 'step')} {have} no record: the observer was held up"
    for sink, count in found["steps"].items():
        if count:
            why = _because(found["because"].get(sink, ""))
            verb = "is" if count == 1 else "are"
            yield f"{why}{counted(count, 'step')} {verb} not {_SINKS.get(sink, f'in the {sink}')}"


def _because(why: str) -> str:
    """What refused them, where that was recorded."""
    code, _, text = why.partition(": ")
    if code in _FULL:
        return f"{_FULL[code]}: "
    if code in errno.errorcode.values():
        return f"the disk refused ({text or code}): "
    if code == "OSError":  # raised by no call of the system
        return f"refused ({text or code}): "
    return f"a fault of trainobs ({why}): " if why else ""


def _disk(summary: Summary) -> Iterator[str]:
    """A run that was killed cannot say that its disk was full; the disk may still be."""
    free = summary["lost"]["free_bytes"]
    if free is not None and free < _LITTLE:
        yield f"the disk of the run is full ({size(free)} left): its last steps may be missing"


def _events(summary: Summary) -> Iterator[str]:
    found = summary["lost"]
    causes = {name: n for name, n in found["kernel"].items() if n}
    for name, n in causes.items():
        lacking = f" ({_LACKING[name]})" if name in _LACKING else ""
        yield f"{counted(n, *_KERNEL.get(name, (name, name)))}{lacking}"
    rest = int(found["events"] or 0) - found["dropped"] - sum(causes.values())
    if rest > 0:
        yield counted(rest, "kernel event")


def missing_files(summary: Summary) -> Iterator[str]:
    """What files are gone or cannot be read, and how many steps all of them held, if known."""
    found = summary["lost"]
    partly = set(found["partly"])
    whole = [file for file in found["files"] if file not in partly]
    if missing := found["missing_steps"]:
        whose = f" of rank {summary['rank']}" if len(summary["ranks"]) > 1 else ""
        # A file that cannot be read need not be the only one: the last ones may be gone, unnamed.
        where = "gone or cannot be read" if any(map(_has_steps, whole)) else "gone"
        are = "is" if missing == 1 else "are"
        yield f"files of steps are {where}: {counted(missing, 'step')}{whose} {are} missing"
    yield from _unread(whole, "cannot be read")
    yield from _unread(found["partly"], "cannot be read in all columns")


def _has_steps(file: str) -> bool:
    return Path(file).name.startswith("steps-")


def _unread(files: Sequence[str], how: str) -> Iterator[str]:
    if steps := sum(map(_has_steps, files)):
        yield f"{counted(steps, 'file')} of steps {how}"
    if about := sum(Path(file).suffix == ".json" for file in files):
        yield f"{counted(about, 'file')} about a rank {how}"
    if others := len(files) - steps - about:
        yield f"{counted(others, 'file')} of other tables {how}"


def unreadable(summary: Summary) -> list[str]:
    """Each file that could not be read, within the run, with the reason."""
    run = Path(summary["run"])
    return [
        f"{Path(file).relative_to(run) if Path(file).is_relative_to(run) else file}: {why}"
        for file, why in summary["lost"]["files"].items()
    ]


def not_observed(summary: Summary) -> dict[str, str]:
    """Probe -> why it was off; some reasons are messages of several lines."""
    off = {name: why for name, why in summary["capabilities"].items() if why != "on"}
    gpm = summary["gpu"].get("gpm", "on")
    if gpm != "on":  # known only where the process used a GPU
        off["gpu activity"] = gpm
    return {name: " ".join(why.split()) for name, why in off.items()}


def found_and_remedy(why: str) -> tuple[str, str]:
    """Of a reason from `not_observed`: what was found, and what to do, "" where nobody says.

    A message of trainobs (`core.errors`) has these in lines of their own.
    """
    _, is_message, rest = why.partition(" found: ")
    found, _, remedy = rest.rpartition(" do: ") if is_message else (why, "", "")
    return found or why, remedy
