"""Why nothing is known of the batches of a run that was observed by eBPF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from trainobs.verdict import record as names
from trainobs.verdict.record import Record

NO_LOADER = "its thread got its batches from no DataLoader of torch"
NO_STEP = "torch's DataLoader made its batches, and it is not known which step got which"


class Unknown(NamedTuple):
    """What is not known, and what to do about it."""

    why: str
    do: str


_NO_LOADER = Unknown(NO_LOADER, "nothing, or load the data with a DataLoader of torch")
_NO_STEP = Unknown(NO_STEP, "see `for_step` in docs/run-log.md: of which loaders that is known")
_TOO_LITTLE = Unknown(
    "its record does not tell what it took to make each batch of at least 24 steps",
    "observe a run from inside, with eBPF and torch's DataLoader: `trainobs doctor`",
)


def why_unknown(info: Mapping[str, Any], record: Record) -> Unknown:
    """Why a run cannot be replayed that is not too short, and of a kind that can be.

    Args:
        info: contents of the `run.json`.
        record: its steps.
    """
    if info.get("level") != "ebpf" or "loaders" not in info or knows_batches(record):
        return _TOO_LITTLE
    return _NO_STEP if info["loaders"] else _NO_LOADER


def knows_batches(record: Record) -> bool:
    """Whether of any step it is known which batches it got."""
    return len(record) > 0 and record.mean()[names.LOADERS] > 0
