"""A process in which no function of torch is found: it has a period, and no steps."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trainobs.attach.period import TOO_FEW
from trainobs.attach.process import (
    DO_PID,
    ENDED,
    IDLE_S,
    IDLE_SHARE,
    Target,
    cpu_s,
    ended,
    look_at,
    refused,
    runs_python,
    state_of,
    why_it_stands,
)
from trainobs.attach.turn_detector import Spell, TurnDetector
from trainobs.core.now import clocks
from trainobs.core.records import RunInfo
from trainobs.core.text import counted, duration
from trainobs.host.facts import host_facts
from trainobs.probes.calls import SystemCalls
from trainobs.runlog.writer import RunLogSink
from trainobs.session.ending import tell

READ_S = 0.1
"""How often system calls are read: the kernel keeps 32,768 of them."""

_TORCH_EVERY_S = 1.0

_STEPS = "no steps are known, only the period of its system calls"
_DO = "where it is a torch of your own making, observe it from inside: `trainobs.observe`"


class PeriodWatch:
    """Watches one process, and tells of its period on standard error.

    Args:
        process: the process.
        why: why there are no steps.

    Raises:
        AttachError: it has just ended.
        ProbeError: the kernel side cannot run.
    """

    def __init__(self, process: Target, why: str) -> None:
        self.process = process
        self._calls = SystemCalls(process.tgid, process.own_tid)
        if not self._calls.is_there:
            self._calls.stop()
            raise ended(process.tgid)
        self._began_ns = time.monotonic_ns()
        self._turns = TurnDetector(self._began_ns)
        self._next_s = time.monotonic() + _TORCH_EVERY_S
        self._told = 0
        self._count = 0
        self._had_period = False
        self._cpu_s = cpu_s(process.tgid)
        tell(f"process {process.tgid}: {why}; looking for a period in its system calls")

    @property
    def spells(self) -> Sequence[Spell]:
        """Times in which it had one period."""
        return self._turns.spells

    def read(self) -> None:
        """Take what came, and tell of what has changed."""
        lost = self._calls.lost_count
        now_ns = time.monotonic_ns()
        times, numbers = self._calls.read()
        self._count += len(times)
        if self._calls.lost_count != lost:
            self._turns.forget("its system calls come faster than they are read", now_ns)
        else:
            self._turns.take(times, numbers, now_ns)
        self._tell()

    def check_torch(self) -> None:
        """Now and then, see whether there could be steps by now.

        Raises:
            AttachError: there could.
        """
        tgid = self.process.tgid
        if self.process.torch or time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + _TORCH_EVERY_S
        with suppress(OSError):  # it has ended
            if look_at(tgid).torch:
                found = "it has imported torch meanwhile, so that its steps can be seen"
                raise refused(tgid, found, f"trainobs attach {tgid}")

    def no_period(self) -> str:
        """Why there is no period so far."""
        seconds = (time.monotonic_ns() - self._began_ns) / 1e9
        calls, why = self._count + self._calls.lost_count, self._turns.why_not.why
        told = f"{counted(calls, 'system call')} in {seconds:.1f} s"
        return f"no stable period found: {told if why.startswith(TOO_FEW) else f'{why}; {told}'}"

    def check_idle(self) -> None:
        """After some time, give up a program that cannot be, or become, a training.

        One in Python may import torch later. What is linked to torch has it from its start.

        Raises:
            AttachError: it is neither, and has done nothing so far.
        """
        seconds = (time.monotonic_ns() - self._began_ns) / 1e9
        tgid = self.process.tgid
        if self.process.torch or self._count or seconds < IDLE_S or runs_python(tgid):
            return
        if cpu_s(tgid) - self._cpu_s < IDLE_SHARE * seconds and not why_it_stands(tgid)[0]:
            found = f"it runs no torch and no Python, and did nothing in {seconds:.0f} s"
            raise refused(tgid, found, DO_PID)

    def tell_all(self) -> None:
        """What came of each period, which was told as it had just begun."""
        for spell in self.spells:
            tell(f"{_at(spell.ends[0])} to {_at(spell.ends[-1])} {_told(spell)}")

    def stop(self) -> None:
        """Take everything out of the kernel. May be called twice."""
        self._calls.stop()

    def _tell(self) -> None:
        spells = self._turns.spells
        for before, spell in zip([None, *spells][self._told :], spells[self._told :], strict=False):
            tell(f"{_at(spell.ends[0])} {_told(spell, 'about ')}{_change(before, spell)}")
        self._told = len(spells)
        if self._had_period and not self._turns.has_period:
            tell(f"{_at(spells[-1].ends[-1])} no period any more: {self._turns.why_not.why}")
        self._had_period = self._turns.has_period and bool(spells)


def observe(
    watch: PeriodWatch,
    wait: Callable[[float], bool],
    *,
    seconds: float | None,
    look_s: float,
) -> None:
    """Watch until there is a reason to end.

    Args:
        watch: of the process.
        wait: wait some seconds, and tell whether to end.
        seconds: how long, from the first period on; None: until there is a reason.
        look_s: how long to look for the first.

    Raises:
        AttachError: there was none, or steps could be seen by now.
    """
    until = time.monotonic() + look_s
    while not watch.spells:
        is_over = wait(READ_S)
        watch.read()
        watch.check_torch()
        watch.check_idle()
        if not watch.spells and (is_over or time.monotonic() > until):
            raise refused(watch.process.tgid, watch.no_period() + _state(watch.process), _do(watch))
    end = None if seconds is None else time.monotonic() + seconds
    while not wait(READ_S) and (end is None or time.monotonic() < end):
        watch.read()
    watch.read()
    watch.tell_all()


def record(watch: PeriodWatch, place: Path, outcome: str) -> None:
    """Write the run log, in a directory that was claimed: a run without steps.

    Raises:
        OSError: the disk refuses.
    """
    process = watch.process
    info = RunInfo(
        level="attached",
        host=host_facts(tgid=process.tgid),
        clock=clocks(),
        settings={
            "attached": {
                "pid": process.tgid,
                "user": process.user,
                "command": process.command,
                "steps": _STEPS,
                "periods": [_as_json(spell) for spell in watch.spells],
                "by_pid": os.getpid(),
            }
        },
    )
    log = RunLogSink(place, claimed=True)
    log.begin(info)
    log.end({"outcome": outcome})


def _as_json(spell: Spell) -> dict[str, float | int | None]:
    low, high = spell.interval_ns() or (None, None)
    return {
        "begin_ns": spell.ends[0],
        "end_ns": spell.ends[-1],
        "count": spell.count,
        "period_ns": spell.period_ns,
        "low_ns": low,
        "high_ns": high,
        "calls": spell.pattern.calls,
    }


def _told(spell: Spell, how: str = "") -> str:
    rate = 1e9 / spell.period_ns
    calls = counted(spell.pattern.calls, "system call")
    return f"a period of {how}{duration(spell.period_ns)}, {rate:.3g} a second, of {calls}"


def _change(before: Spell | None, spell: Spell) -> str:
    if before is None:
        return "; whether it is a step nobody knows"
    return f"; before {duration(before.period_ns)}"


def _at(monotonic_ns: int) -> str:
    """The time of day of an instant that is not long ago."""
    seconds = time.time() - (time.monotonic_ns() - monotonic_ns) / 1e9
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _state(process: Target) -> str:
    state = state_of(process.tgid)
    if state in ENDED:
        return "; it has ended"
    why, _ = why_it_stands(process.tgid)
    return f"; {why}" if why else ""


def _do(watch: PeriodWatch) -> str:
    tgid = watch.process.tgid
    _, do = why_it_stands(tgid)
    return do or f"give the number of the process that trains: `trainobs top`; {_DO}"
