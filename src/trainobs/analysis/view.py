"""A run as the page asks for it: what is true of it, its verdict, and its steps piece by piece.

Every piece has a path, by which the page asks a server for it, or finds it in its own file:

    head                    what the run is, and which pieces there are
    summary                 see `analysis.summary.summarize`
    steps/GROUP/EVERY/N     chunk N of a group of columns, as means over EVERY steps
    ranks/EVERY/N           the same of the step and the waits of every rank
    lanes/N                 who made the batches of the steps of chunk N, and when
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.analysis.batches.of_steps import are_for
from trainobs.analysis.batches.workers import OF_A_BATCH
from trainobs.analysis.comparison.step_work import work_of
from trainobs.analysis.io.unnamed_reads import OF_DATA, unnamed_bytes
from trainobs.analysis.levels import CHUNK, Levels, chunks, levels
from trainobs.analysis.observed import observed_by
from trainobs.analysis.summary import Summary, summarize
from trainobs.core.catalogue import METRICS, STEP_METRICS, named_phase_metric
from trainobs.core.catalogue.named import metric_of_phase, named_phase
from trainobs.core.catalogue.own_counters import metrics_of_counter
from trainobs.core.errors import RunLogError
from trainobs.core.labels import TAKING, WITHIN, label_among, label_of
from trainobs.core.records import SETUP, UNKNOWN
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES, STEPS
from trainobs.verdict.facts import facts_from
from trainobs.verdict.metric_names import LOADER, NAMED, PHASES, SPLIT, START, STEP, WAITED_OFF_CPU
from trainobs.verdict.parts import TAKEN_NS, TAKEN_SHARE

PARTS = (*SPLIT, START, *(name for name in PHASES if name != NAMED))
"""Metrics that a step is made of; what the loader was waited for is a part of its wait, and the
start of loaders one of the hand-over."""

_ROOMS = {
    "storage": ("io", "cache", "block"),
    "processor": ("sched", "python"),
    "memory": ("memory", "pressure"),
    "network": ("net", "ranks"),
    "gpu": ("gpu",),
    "hot rows": ("fae",),
    "observing": ("obs",),
}

GROUPS = {
    "parts": (STEP, *PARTS, WAITED_OFF_CPU),
    **{
        group: tuple(
            metric.name
            for metric in STEP_METRICS
            if metric.chart and metric.name.split("/")[0] in rooms
        )
        for group, rooms in _ROOMS.items()
    },
}
"""Columns that are asked for together: what a step is made of, and the charts below it."""

OWN_GROUP = "own probes"
"""One more, of a run with programs of the user's."""

LANE_STEPS = 64
"""Steps in a chunk of the lanes."""

_OF_A_BATCH = (*OF_A_BATCH, "fetch_end_ns", "read_bytes")


def _fill(columns: Mapping[str, npt.NDArray[np.float32]], parts: Iterable[str]) -> None:
    """A part that is unknown in some steps took no time there, as a validation before the first.

    Else means over the steps that know it would add up to more than a step.
    """
    for column in (columns[name] for name in parts):
        if np.isfinite(column).any():
            column[np.isnan(column) & np.isfinite(columns[STEP])] = 0.0


class _BeyondError(Exception):
    """There are fewer pieces of a kind."""


class RunView:
    """Pieces of one run. Columns are read when they are first asked for, and kept.

    Memory: 4 bytes for each step and column of the groups that were asked for.

    Args:
        run: the run.
    """

    def __init__(self, run: RunLog) -> None:
        self.run = run
        self._rank = run.rank
        named = tuple(map(named_phase_metric, self._rank.phases))
        own = chain.from_iterable(map(metrics_of_counter, self._rank.counters))
        self._own = {metric.name: metric for metric in own}
        self._parts = (*PARTS, *named)
        self._names = {**GROUPS, "parts": (*GROUPS["parts"], *named)}
        if self._own:
            self._names[OWN_GROUP] = tuple(self._own)
        read = self._rank.columns(STEPS, ("step", "start_ns", *self._names["parts"]))
        self._rows = np.flatnonzero(read["step"] != SETUP)
        self._step, self._start_ns = (read.pop(name)[self._rows] for name in ("step", "start_ns"))
        steps = self._levels_of(read)
        _fill(steps.columns, self._parts)
        self._groups = {"parts": steps}
        self._batches: dict[str, npt.NDArray[np.int64]] | None = None

    @classmethod
    def open(cls, path: Path, rank: int | None = None) -> RunView:
        """The view of a run directory, or of the newest run below it.

        Args:
            path: the directory.
            rank: see `RunLog.open`.

        Raises:
            RunLogError: there is none that this version can read, or no such rank.
        """
        return cls(RunLog.open(path, rank=rank))

    def piece(self, path: str) -> Mapping[str, object]:
        """The piece of a path, as a dictionary that `json.dumps` takes.

        Raises:
            RunLogError: there is no such piece, or a file is damaged.
        """
        kind, *words = path.split("/")
        pieces: dict[str, tuple[Callable[..., Mapping[str, object]], int]] = {
            "head": (self.head, 0),
            "summary": (self.summary, 0),
            "steps": (self._steps, 3),
            "ranks": (self._ranks, 2),
            "lanes": (self._lanes, 1),
        }
        make, count = pieces.get(kind, (dict, -1))
        numbers = words[1:] if kind == "steps" else words
        are_numbers = all(word.isdecimal() and len(word) < 12 for word in numbers)
        if (
            len(words) != count
            or not are_numbers
            or (kind == "steps" and words[0] not in self._names)
        ):
            raise self._no_such(path)
        try:
            return make(*words[: count - len(numbers)], *map(int, numbers))
        except _BeyondError:
            raise self._no_such(path) from None

    def paths(self, group: str, every: int) -> list[str]:
        """Paths of all chunks of a level of a group, or of "ranks" or "lanes"."""
        rows = len(self._rows)
        if group == "lanes":
            return [f"lanes/{number}" for number in range(-(-rows // LANE_STEPS))]
        place = f"ranks/{every}" if group == "ranks" else f"steps/{group}/{every}"
        return [f"{place}/{number}" for number in range(chunks(rows, every))]

    def head(self) -> dict[str, Any]:
        """What the run is, and which pieces there are.

        Returns:
            `run`, its directory; `info`: what of `run.json` is told; `observed_by`, in words;
            `rank`: the one that the rest is of; `steps`: their number; `levels`: steps in a window
            of each level, finest first; `chunk`: windows in a chunk; `lane_steps`: steps in a chunk
            of lanes; `ranks`; `parts`; `taking`: what taking a batch over is called, and what it
            counts at most; `groups`: name -> its columns; `metrics`: name -> `label`, `alone` (the
            same in a list without what it is `within`), `unit`, `kind`, `chart` and `tells`;
            `lanes`: whether there are batches.
        """
        info = self.run.info
        told = ("host", "level", "capabilities", "world_size", "settings", "loaders", "trainobs")
        return {
            "run": str(self.run.path),
            "info": {name: info.get(name) for name in told},
            "observed_by": observed_by(info.get("level"), info.get("capabilities")),
            "outcome": (info.get("summary") or {}).get("outcome"),
            "rank": self._rank.rank,
            "steps": len(self._rows),
            "levels": levels(len(self._rows)),
            "chunk": CHUNK,
            "lane_steps": LANE_STEPS,
            "ranks": list(self.run.ranks),
            "parts": list(self._parts),
            "taking": self._taking(),
            "groups": {name: list(columns) for name, columns in self._names.items()},
            "metrics": {name: self._about(name) for name in self._told_metrics()},
            "lanes": self._rank.files.has(BATCHES),
        }

    def summary(self) -> Summary:
        """The run in numbers."""
        return summarize(self.run)

    def groups(self) -> tuple[str, ...]:
        """Groups of columns that this run has."""
        return tuple(self._names)

    def _told_metrics(self) -> Iterable[str]:
        return (*METRICS, *self._names["parts"], *self._own)

    def _about(self, name: str) -> dict[str, Any]:
        metric = METRICS.get(name) or self._own.get(name)
        metric = metric or metric_of_phase(named_phase(name) or name)
        return {
            "label": label_of(name).strip(),
            "alone": label_among(name, ()),
            "within": WITHIN.get(name),
            "unit": metric.unit,
            "kind": metric.kind.name.lower(),
            "chart": metric.chart,
            "tells": metric.tells,
        }

    def _taking(self) -> dict[str, Any] | None:
        """As verdicts take it; None where no worker makes batches that would be taken over."""
        if not facts_from(self.run.info).workers:
            return None
        most = TAKEN_NS * work_of(self.run).at_least_one
        return {"label": TAKING, "ns": most, "share": TAKEN_SHARE}

    def _no_such(self, path: str) -> RunLogError:
        return RunLogError(
            failed="The page asked for something that this run does not have.",
            found=f"{path!r}, of {self.run.path}",
            do="load the page again",
        )

    def _steps(self, group: str, every: int, number: int) -> dict[str, Any]:
        """Beside the columns, `step`, the first of each window."""
        step = self._step[self._firsts(every, number)].tolist()
        return {"step": step, "columns": self._levels(group).chunk(every, number)}

    @cached_property
    def _is_unknown_of_data(self) -> bool:
        return unnamed_bytes(self.run, self._rank) is not None

    def _firsts(self, every: int, number: int) -> npt.NDArray[np.intp]:
        """First row of each window of a chunk."""
        if every not in levels(len(self._rows)) or number >= chunks(len(self._rows), every):
            raise _BeyondError
        end = min(len(self._rows), (number + 1) * CHUNK * every)
        return np.arange(number * CHUNK * every, end, every)

    def _levels(self, group: str) -> Levels:
        if group not in self._groups:
            read = self._rank.metrics(self._names[group])
            of_data = read.keys() & OF_DATA
            if of_data and self._is_unknown_of_data:
                read |= {name: np.full_like(read[name], np.nan) for name in of_data}
            self._groups[group] = self._levels_of(read)
        return self._groups[group]

    def _levels_of(self, read: dict[str, npt.NDArray[np.float64]]) -> Levels:
        columns = {name: column[self._rows].astype(np.float32) for name, column in read.items()}
        return Levels(columns, peaks=(STEP,))

    def _ranks(self, every: int, number: int) -> dict[str, Any]:
        """Chunks of each rank: of its step, and of its wait for data and for other ranks."""
        first = self._firsts(every, number)
        found = {}
        for number_of, rank in self.run.ranks.items():
            key = f"rank {number_of}"
            if key not in self._groups:
                training = rank.step() != SETUP
                read = rank.metrics((STEP, LOADER, "ranks/wait_ns"))
                columns = {n: column[training].astype(np.float32) for n, column in read.items()}
                self._groups[key] = Levels(columns)
            found[str(number_of)] = self._groups[key].chunk(every, number)
        return {"step": self._step[first].tolist(), "ranks": found}

    def _lanes(self, number: int) -> dict[str, Any]:
        """The steps of a chunk, and the batches that these consumed.

        Returns:
            `steps`: `step`, `start_ns` and `end_ns` of each, and its `wait_ns`; `batches`: columns
            of the table `batches` of the run log, None where unknown, and `slowest_file`. Times
            are ns since the first step.
        """
        rows = slice(number * LANE_STEPS, (number + 1) * LANE_STEPS)
        steps = self._step[rows]
        if not len(steps):
            raise _BeyondError
        origin = int(self._start_ns[0])
        start_ns = self._start_ns[rows] - origin
        lasted, wait = (self._levels("parts").columns[name][rows] for name in (STEP, LOADER))
        if self._batches is None:
            self._batches = self._rank.columns(BATCHES, _OF_A_BATCH)
            if self._is_unknown_of_data:
                self._batches["read_bytes"] = np.full_like(self._batches["read_bytes"], UNKNOWN)
        batches = self._batches
        asked, for_step = batches["fetch_begin_ns"], batches["for_step"]
        is_own = are_for(rows, self._step, self._start_ns, for_step, asked)
        own = np.flatnonzero(is_own).tolist()
        return {
            "steps": {
                "step": steps.tolist(),
                "start_ns": start_ns.tolist(),
                "end_ns": (start_ns + np.nan_to_num(lasted).astype(np.int64)).tolist(),
                "wait_ns": [None if value != value else value for value in wait.tolist()],
            },
            "batches": {
                **{
                    name: [
                        None if value == UNKNOWN else value - origin * name.endswith(_CLOCK)
                        for value in column[own].tolist()
                    ]
                    for name, column in self._batches.items()
                },
                "slowest_file": self._rank.slowest_files(own),
            },
        }


_CLOCK = ("begin_ns", "end_ns")
"""Columns of the batches that are points in time end so."""
