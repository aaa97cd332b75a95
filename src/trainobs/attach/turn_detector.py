"""The turns of a loop as they come: its period, when that changes, and when the loop stops."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from trainobs.attach.period import Floats, NoPeriod, Numbers, Pattern, Times, find

LOOK_S = 3.0
"""How long is looked before a period is taken: what comes faster may be a part of a step."""

_LOOK_EVERY_NS = 500_000_000

BLOCK = 16
"""Turns that are looked at together."""

_CHANGE = 0.1
"""Least change of a period that is told, ..."""

_DEVIATIONS = 3.0
"""... and of the median of a block of turns, in standard deviations of such medians."""

_LASTING_NS = 2_000_000_000
"""How long a change must last: for less than that, others may have had the CPUs."""

_UNSETTLED = 64
"""Blocks, none of which is like those before, and few of them like each other."""

_GAP_TURNS, _GAP_NS = 6, 1_000_000_000
"""A loop has stopped when nothing comes for so many turns, and so long."""

_STRAYS = 0.25
"""Share of turns of a block that have other calls, from which on the order is another one."""

_BATCHES, _STUDENT = 8, 2.365
"""The interval is from the means of so many batches: the 97.5 % quantile of Student's t."""

_KEPT = 32768
"""Calls in which a period is looked for."""


@dataclass(frozen=True)
class TurnBlock:
    """Some turns, one after the other.

    Attributes:
        begin: when the first began, CLOCK_MONOTONIC in ns.
        end: when the last ended.
        middle: their median, ns.
        spread: their standard deviation over that, from the quartiles.
    """

    begin: int
    end: int
    middle: float
    spread: float


@dataclass
class Spell:
    """A time in which turns take about as long as each other.

    Attributes:
        pattern: by what a turn is known.
        ends: when its blocks of turns ended, CLOCK_MONOTONIC in ns; the first is its begin.
        spreads: standard deviation of the turns of each block, over their median.
        middle: median turn of the first block, ns.
    """

    pattern: Pattern
    middle: float
    ends: list[int]
    spreads: list[float] = field(default_factory=list)

    def extend(self, *blocks: TurnBlock) -> None:
        """The next blocks of turns are of it."""
        self.ends += (block.end for block in blocks)
        self.spreads += (block.spread for block in blocks)

    @property
    def count(self) -> int:
        """Turns in it."""
        return BLOCK * (len(self.ends) - 1)

    @property
    def period_ns(self) -> float:
        """Mean turn."""
        return (self.ends[-1] - self.ends[0]) / self.count

    def interval_ns(self) -> tuple[float, float] | None:
        """Where the mean turn of such a loop lies, at 95 %; None of too few turns to say."""
        took = np.diff(self.ends) / BLOCK
        if len(took) < _BATCHES:
            return None
        means = np.array([batch.mean() for batch in np.array_split(took, _BATCHES)])
        half = _STUDENT * float(means.std(ddof=1)) / _BATCHES**0.5
        return self.period_ns - half, self.period_ns + half

    def are_like(self, middle: float, other: float) -> bool:
        """Whether blocks with such medians may be of one spell, as turns of this one differ."""
        deviation = 1.25 * float(np.median(self.spreads)) / BLOCK**0.5  # of a median
        return bool(abs(middle / other - 1) <= max(_CHANGE, _DEVIATIONS * deviation))


class TurnDetector:
    """Takes system calls as they come, and tells of turns.

    Args:
        now_ns: CLOCK_MONOTONIC as it begins.

    Attributes:
        spells: so far, oldest first; the last one goes on if `has_period`.
        why_not: why there is no period now.
    """

    _times: Times
    _numbers: Numbers

    def __init__(self, now_ns: int) -> None:
        self.spells: list[Spell] = []
        self.why_not = NoPeriod("it was looked for too short a time")
        self._began_ns = self._next_ns = now_ns
        self._forget()

    @property
    def has_period(self) -> bool:
        """Whether a period is known now."""
        return self._pattern is not None

    def take(self, times: Times, numbers: Numbers, now_ns: int) -> None:
        """The next system calls of the thread.

        Args:
            times: when they began, CLOCK_MONOTONIC in ns, rising, shape (n,).
            numbers: which, of the same shape.
            now_ns: until when there are no others.
        """
        self._times = np.concatenate((self._times, times))[-_KEPT:]
        self._numbers = np.concatenate((self._numbers, numbers))[-_KEPT:]
        if self._pattern is None:
            if now_ns >= self._next_ns:
                self._next_ns = now_ns + _LOOK_EVERY_NS
                self._look(now_ns)
            return
        self._follow(times, numbers)
        if self._pattern and self._has_stopped(now_ns):
            self._lose(NoPeriod("it has stopped"), now_ns)

    def forget(self, why: str, now_ns: int) -> None:
        """Some calls are not known: begin anew."""
        self._lose(NoPeriod(why), now_ns)

    def _forget(self) -> None:
        self._pattern: Pattern | None = None
        self._times, self._numbers = np.zeros(0, np.int64), np.zeros(0, np.int16)
        self._open: Spell | None = None
        self._odd: list[TurnBlock] = []
        self._is_other = False
        self._seen = self._calls = 0
        self._marks: list[tuple[int, int]] = []

    def _lose(self, why: NoPeriod, now_ns: int) -> None:
        self.why_not = why
        self._began_ns = now_ns
        self._forget()

    def _look(self, now_ns: int) -> None:
        seconds = (now_ns - self._began_ns) / 1e9
        if seconds < LOOK_S:
            return
        half = np.searchsorted(self._times, (self._began_ns + now_ns) // 2)  # it may have begun
        for begin in (0, int(half)):
            found = find(self._times[begin:], self._numbers[begin:], seconds)
            if isinstance(found, Pattern):
                self._pattern = found
                self._follow(self._times[begin:], self._numbers[begin:])
                return
            if begin == 0:
                self.why_not = found
            if found.has_order:
                return

    def _follow(self, times: Times, numbers: Numbers) -> None:
        """Find the turns among the next calls."""
        pattern = self._pattern
        assert pattern is not None
        telling = ~np.isin(numbers, pattern.ignored)
        times, numbers = times[telling], numbers[telling]
        places = np.flatnonzero(numbers == pattern.number)
        first = -self._seen % pattern.each
        chosen = places[first :: pattern.each]
        self._marks += zip((chosen + self._calls).tolist(), times[chosen].tolist(), strict=True)
        self._seen += len(places)
        self._calls += len(times)
        while len(self._marks) > BLOCK and self._pattern:
            self._close(np.array(self._marks[: BLOCK + 1]))
            self._marks = self._marks[BLOCK:]

    def _close(self, marks: Times) -> None:
        """A block of turns is over."""
        assert self._pattern is not None
        calls = np.diff(marks[:, 0])
        is_other = self._stray_share(calls) > _STRAYS
        if is_other and self._is_other:
            why = "its system calls come in another order now"
            self._lose(NoPeriod(why), int(marks[-1, 1]))
            return
        self._is_other = is_other
        took: Floats = np.diff(marks[:, 1]).astype(np.float64)
        low, middle, high = np.quantile(took, (0.25, 0.5, 0.75))
        spread = float(high - low) / 1.35 / float(middle)
        self._add(TurnBlock(int(marks[0, 1]), int(marks[-1, 1]), float(middle), spread))

    def _stray_share(self, calls: Times) -> float:
        assert self._pattern is not None
        usual = self._pattern.calls
        return float(((calls < 0.9 * usual) | (calls > 1.9 * usual)).mean())

    def _add(self, block: TurnBlock) -> None:
        """A block that is not like those before begins a spell if the next ones are like it."""
        if self._open is None:
            self._begin(block)
        elif self._open.are_like(block.middle, self._open.middle):
            self._open.extend(*self._odd, block)
            self._odd = []
        else:
            self._odd.append(block)
            same = self._last_alike(self._open)
            if len(same) > 1 and same[-1].end - same[0].begin >= _LASTING_NS:
                self._begin(*same)
                self._odd = []
            elif len(self._odd) >= _UNSETTLED:
                self._lose(NoPeriod("its period changes all the time"), block.end)

    def _last_alike(self, spell: Spell) -> list[TurnBlock]:
        """Of the odd blocks the last ones that are like the last."""
        middle = self._odd[-1].middle
        first = len(self._odd)
        while first and spell.are_like(self._odd[first - 1].middle, middle):
            first -= 1
        return self._odd[first:]

    def _begin(self, *blocks: TurnBlock) -> None:
        assert self._pattern is not None
        self._open = Spell(self._pattern, blocks[0].middle, [blocks[0].begin])
        self._open.extend(*blocks)
        self.spells.append(self._open)

    def _has_stopped(self, now_ns: int) -> bool:
        """Whether no turn began for so long that this is none of its turns."""
        if not self._marks or self._open is None:
            return False
        since = now_ns - self._marks[-1][1]
        return since > max(_GAP_NS, _GAP_TURNS * self._open.middle)
