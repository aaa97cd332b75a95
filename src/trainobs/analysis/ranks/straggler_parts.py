"""What the rank that others wait for takes longer for than they do.

Its own verdict does not tell: what takes most of its step may take as much of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

import numpy as np

from trainobs.core.records import SETUP
from trainobs.core.text import duration
from trainobs.replay.trace import COVERAGE
from trainobs.runlog.rank import RankLog
from trainobs.verdict.metric_names import CHECKPOINT, LOADER, SLEEPS, STEP, VALIDATION

_OFF = "sched/work_offcpu_ns"

_APART = (LOADER, CHECKPOINT, VALIDATION)
"""Parts of a step that `sched/work_*` leave out."""

PARTS: Mapping[str, tuple[str, ...]] = {
    "waiting for data": (LOADER,),
    "saving checkpoints": (CHECKPOINT,),
    "in validation": (VALIDATION,),
    "ready to run, no CPU free": ("sched/work_runqueue_ns",),
    "asleep for a device": ("sched/work_iowait_ns",),
    "asleep or stopped": SLEEPS,
}
"""Parts that do not overlap -> the metrics that are added up; what is left is on a CPU, or asleep
for another thread, as a rank is that waits for others."""

_ON_CPU = "on a CPU"

_NAMES = (STEP, _OFF, *dict.fromkeys(name for names in PARTS.values() for name in names))


class LongerPart(TypedDict):
    """What a rank that is late takes longer for.

    Attributes:
        part: in words.
        ns: what it takes in a step: the median, as a rank that stalls once is no straggler, or the
            mean, if less.
        other_ns: the same of a rank that waits for it.
    """

    part: str
    ns: float
    other_ns: float


def longer(late: RankLog, other: RankLog, held_up_ns: float) -> LongerPart | None:
    """The part of a step that explains most of why a rank is late; None if none does.

    Args:
        late: the rank that others wait for.
        other: one that waits.
        held_up_ns: how long they wait for it in a step.
    """
    own, others = _parts(late), _parts(other)
    more = {part: own[part] - others[part] for part in own if part in others}
    part = max(more, key=lambda name: more[name], default=None)
    if part is None or more[part] < COVERAGE * held_up_ns:
        return None
    return {"part": part, "ns": own[part], "other_ns": others[part]}


def told(found: LongerPart, other: int) -> str:
    """The same in words, beside the number of the other rank."""
    there = f"{duration(found['other_ns'])} on rank {other}"
    return f"{found['part']} {duration(found['ns'])} a step, and {there}"


def _parts(log: RankLog) -> dict[str, float]:
    """The median of each part that is known of a rank, or the mean, if less."""
    training = log.step() != SETUP
    columns = {name: column[training] for name, column in log.metrics(_NAMES).items()}
    known = {name: column for name, column in columns.items() if np.isfinite(column).any()}
    found = {}
    for part, names in PARTS.items():
        there = [known[name] for name in names if name in known]
        if there:
            found[part] = np.nansum(there, axis=0)
    if {STEP, _OFF} <= known.keys():
        apart = np.nansum([known[name] for name in _APART if name in known], axis=0)
        found[_ON_CPU] = known[STEP] - known[_OFF] - apart
    return {part: float(min(np.nanmedian(it), np.nanmean(it))) for part, it in found.items()}
