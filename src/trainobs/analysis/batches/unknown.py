"""Why a run cannot be replayed: mostly, nothing is known of its batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trainobs.analysis.stored import lacking
from trainobs.core.text import counted
from trainobs.replay.trace import FEWEST
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES, STEPS
from trainobs.verdict import metric_names as names
from trainobs.verdict.facts import facts_from
from trainobs.verdict.replayable import why_no_replay
from trainobs.verdict.summed_steps import SummedSteps

NOTHING: Mapping[str, str] = {}

NO_LOADER = "no DataLoader of torch made an iterator for the training thread in this run"
NO_STEP = "torch's DataLoader made its batches, and it is not known which step got which"


class Unknown(NamedTuple):
    """What is not known, and what to do about it."""

    why: str
    do: str


_NO_LOADER = Unknown(
    NO_LOADER, "nothing, or load the data with a DataLoader of torch, whose passes begin in the run"
)
_NO_STEP = Unknown(NO_STEP, "see `for_step` in docs/run-log.md: of which loaders that is known")
_TOO_LITTLE = Unknown(
    "its record does not tell what it took to make each batch of at least 24 steps",
    "observe a run from inside, with eBPF and torch's DataLoader: `trainobs doctor`",
)


def why_unknown(
    info: Mapping[str, Any], summed: SummedSteps, unreadable: Mapping[str, str] = NOTHING
) -> Unknown:
    """Why a run cannot be replayed.

    Args:
        info: contents of the `run.json`.
        summed: its steps.
        unreadable: its files of steps and batches that cannot be read -> why.
    """
    if why := why_no_replay(facts_from(info), summed):
        return Unknown(why, "observe one process with one loader, without a GPU")
    if unreadable:
        (file, why), more = next(iter(unreadable.items())), len(unreadable) - 1
        short = why.partition(" (")[0]  # a report has all of it
        found = f"unreadable files: {file}: {short}{f', and {more} more' if more else ''}"
        return Unknown(found, "copy them anew from where the run was written")
    if len(summed) < FEWEST:
        there = counted(len(summed), "step")
        found = f"{there} to replay; {FEWEST} are needed, and the first does not count"
        return Unknown(found, "observe a longer run" + ("" if _by_ebpf(info) else ", with eBPF"))
    if not _by_ebpf(info) or "loaders" not in info or knows_batches(summed):
        return _TOO_LITTLE
    return _NO_STEP if info["loaders"] else _NO_LOADER


def unreadable_of(run: RunLog) -> dict[str, str]:
    """Files of steps and batches of the rank that is told of, gone or not to be read -> why."""
    found = run.rank.files.unreadable(STEPS) | lacking(run, run.rank, BATCHES)
    return {str(file.relative_to(run.path)): why for file, why in found.items()}


def _by_ebpf(info: Mapping[str, Any]) -> bool:
    return info.get("level") == "ebpf"


def knows_batches(summed: SummedSteps) -> bool:
    """Whether of any step it is known which batches it got."""
    return len(summed) > 0 and summed.mean()[names.LOADERS] > 0
