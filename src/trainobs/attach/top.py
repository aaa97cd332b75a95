"""All training processes of this machine, observed from outside, without run logs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from trainobs.attach.process import (
    DO_PROC,
    NO_PROC,
    Target,
    look_at,
    tells_of_others,
    training_processes,
)
from trainobs.attach.run import AttachedRun, loaded
from trainobs.core.abi import SLOTS, Event, FileClass, Op, Phase, Role
from trainobs.core.errors import AttachError, TrainobsError
from trainobs.host.procfs import PROC
from trainobs.probes.shared import SharedProbes
from trainobs.steps.rule import PATIENCE_S, SEVERAL, Rule, rule_for

EVERY_S = 2.0
"""Time that a row is about."""

LOOK_S = 0.1
SETTLE_S, LATE_S = 5.0, PATIENCE_S + 1.0
"""How long one look waits until it is known what steps are: where nothing of a training was seen so
far, and where something was."""

ONCE_S = 2 * LATE_S
"""How long at most: others may begin meanwhile, and to see each begins with work of its own."""

REFRESH_S = 5.0
"""How often processes are looked for that have begun since."""

_REGULAR = [FileClass.OTHER, FileClass.DATA, FileClass.CHECKPOINT, FileClass.LIBRARY]
_READS = [Op.READ, Op.URING_READ]


NOT_SEEN = "not seen to train"
_NO_RULE = "its steps are not known yet"


class Row(NamedTuple):
    """A process, and what it did since the row before; None for what is unknown.

    Attributes:
        process: who.
        steps_per_s: its rate.
        steps: what a step of it is.
        waits: share of the time in which its training thread was off the CPU, by what for: "data"
            in fetches, else for a "device", for a "CPU", or for something "else".
        read_bytes_per_s: read calls on regular files, workers included.
        note: why nothing is known.
    """

    process: Target
    steps_per_s: float | None = None
    steps: str | None = None
    waits: dict[str, float | None] | None = None
    read_bytes_per_s: float | None = None
    note: str = ""


class _Totals(NamedTuple):
    """What only grows."""

    at_ns: int
    serial: int
    data_ns: int
    device_ns: int
    ready_ns: int
    off_ns: int
    read_bytes: int


class WatchedProcess:
    """One process, from `AttachedRun` on.

    Args:
        run: the process; nothing of it is recorded.
    """

    def __init__(self, run: AttachedRun) -> None:
        self.run = run
        self.rule: Rule | None = None
        self._before: _Totals | None = None

    def look(self) -> None:
        """See whether it is known by now what its steps are."""
        is_open = self.rule is None or self.run.clock.doubt()
        if is_open and (rule := rule_for(self.run.clock.look())):
            self.rule = rule
            self.run.start(rule, times_fetches=self.run.times_fetches(rule))
            self._before = None

    @property
    def is_settled(self) -> bool:
        """Whether it is known what its steps are, or waiting for that is no use."""
        patience_s = LATE_S if self._is_seen() else SETTLE_S
        return self.rule is not None or self.run.clock.look().seconds >= patience_s

    def _is_seen(self) -> bool:
        """Whether it was seen to do what belongs to a training."""
        counts = self.run.clock.look().counts
        return bool(counts[Event.BACKWARD] or counts[Event.OPTIMIZER])

    def row(self) -> Row:
        """What it did since the last row."""
        now = self._totals()
        before, self._before = self._before, now
        if self.run.clock.look().elsewhere[Event.OPTIMIZER]:
            return Row(self.run.process, note=SEVERAL)
        if self.rule is None:
            return Row(self.run.process, note=_NO_RULE if self._is_seen() else NOT_SEEN)
        if note := self.run.clock.doubt() or ("" if before else "just seen to train"):
            return Row(self.run.process, steps=self.rule.told, note=note)
        assert before is not None
        grown = _Totals(*(b - a for a, b in zip(before, now, strict=True)))
        seconds = grown.at_ns / 1e9
        return Row(
            self.run.process,
            grown.serial / seconds,
            self.rule.told,
            self._waits(grown),
            grown.read_bytes / seconds,
        )

    def _waits(self, grown: _Totals) -> dict[str, float | None]:
        """Shares that are 1 in all at most.

        A period off the CPU counts when it ends, so that a long one may be from before.
        """
        most_ns = max(grown.at_ns, grown.off_ns)
        rest = grown.off_ns - grown.data_ns - grown.device_ns - grown.ready_ns
        parts = {"data": grown.data_ns, "device": grown.device_ns}
        parts |= {"CPU": grown.ready_ns, "else": rest}
        shares: dict[str, float | None] = {
            name: min(1.0, max(0.0, ns / most_ns)) for name, ns in parts.items()
        }
        return shares if self.run.clock.measured else shares | {"data": None}

    def _totals(self) -> _Totals:
        rows = self.run.rows
        by_phase = rows[:, Op.PHASE_OFF, :, Role.MAIN]
        slept = rows[:, Op.PHASE_SLEEP, :, Role.MAIN]
        reads = rows["bytes"][:, _READS][:, :, _REGULAR]
        return _Totals(
            time.monotonic_ns(),
            self.run.clock.serial,
            int(by_phase["ns"][:, Phase.LOADER].sum()),
            int(slept["wait_ns"][:, Phase.OTHER].sum()),
            int(by_phase["wait_ns"][:, Phase.OTHER].sum()),
            int(by_phase["ns"].sum()),
            int(reads.sum(dtype=np.uint64)),
        )


class Machine:
    """The training processes of this machine; `close` takes everything out of the kernel.

    Args:
        find: tells them.

    Raises:
        AttachError: this user may not.
        ProbeError: the kernel side cannot run.
    """

    def __init__(self, find: Callable[[], list[Target]] = training_processes) -> None:
        if not tells_of_others():
            raise AttachError("cannot look for training processes", NO_PROC, DO_PROC)
        self._find = find
        self._probes = loaded(SharedProbes)
        self._watched: dict[int, WatchedProcess] = {}
        self._others: dict[int, Row] = {}
        self._free = list(range(SLOTS))
        self._slots: dict[int, int] = {}
        self._next_s = 0.0

    def look(self) -> None:
        """Find processes that are new or have ended, and what a step of each is."""
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + REFRESH_S
            self._refresh()
        for watched in self._watched.values():
            watched.look()

    def rows(self) -> list[Row]:
        """What each did since the last time, by number."""
        rows = [watched.row() for watched in self._watched.values()] + list(self._others.values())
        return sorted(rows, key=lambda row: row.process.tgid)

    @property
    def is_settled(self) -> bool:
        """Whether each that was found is."""
        return all(watched.is_settled for watched in self._watched.values())

    def close(self) -> None:
        """Take everything out of the kernel. May be called twice."""
        while self._watched:
            self._drop(next(iter(self._watched)))
        self._probes.stop()

    def _refresh(self) -> None:
        found = {process.tgid: process for process in self._find()}
        for tgid in self._watched.keys() - found.keys():
            self._drop(tgid)
        self._others = {tgid: row for tgid, row in self._others.items() if tgid in found}
        for tgid in sorted(found.keys() - self._watched.keys() - self._others.keys()):
            self._add(found[tgid])

    def _add(self, process: Target) -> None:
        if process.is_observed:
            self._others[process.tgid] = Row(process, note="observed from inside: see its run log")
        elif not self._free:
            self._others[process.tgid] = Row(process, note=f"more than {SLOTS} processes")
        else:
            slot = self._free.pop(0)
            try:
                self._watched[process.tgid] = WatchedProcess(
                    AttachedRun(process, self._probes, slot)
                )
                self._slots[process.tgid] = slot
            except (TrainobsError, OSError) as error:
                self._free.append(slot)
                self._note(process, str(getattr(error, "found", error)))

    def _note(self, process: Target, why: str) -> None:
        with suppress(OSError):  # it has ended meanwhile
            look_at(process.tgid)
            self._others[process.tgid] = Row(process, note=why)

    def _drop(self, tgid: int) -> None:
        self._watched.pop(tgid).run.end("not recorded")
        self._free.append(self._slots.pop(tgid))


_FIRST_NAMESPACE = "pid:[4026531836]"
"""That of the machine: PROC_PID_INIT_INO in include/linux/proc_ns.h, the same in all kernels."""


def whose() -> str:
    """Whose processes this one sees, in words."""
    if os.geteuid() != 0:
        return "yours"
    is_first = os.readlink(PROC / "self" / "ns" / "pid") == _FIRST_NAMESPACE
    return "this machine" if is_first else "this container"


def watch(*, once: bool) -> Iterator[list[dict[str, Any]]]:
    """Rows again and again, as dictionaries that JSON takes.

    Args:
        once: look until all are settled, or for `ONCE_S`, and tell once.

    Raises:
        ProbeError: the kernel side cannot run.
    """
    machine = Machine()
    try:
        began = time.monotonic()
        while True:
            machine.look()
            if once and not machine.is_settled and time.monotonic() < began + ONCE_S:
                time.sleep(LOOK_S)
                continue
            machine.rows()
            _look_for(machine, EVERY_S)
            yield [_as_json(row) for row in machine.rows()]
            if once:
                return
    finally:
        machine.close()


def _look_for(machine: Machine, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(LOOK_S)
        machine.look()


def _as_json(row: Row) -> dict[str, Any]:
    process = row.process
    who = {"pid": process.tgid, "user": process.user, "command": process.command}
    return who | {name: value for name, value in row._asdict().items() if name != "process"}
