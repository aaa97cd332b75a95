"""The period of a loop, from the order of its system calls and the times between them.

A loop asks the kernel for the same things in the same order each time around. So the order tells
how many calls a turn has, however uneven its times are; the times tell whether that is where the
time goes. What could as well be a part of a longer turn, or several of it, is no period: two are
told, and none is taken.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from trainobs.core.text import duration, percent

Times = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int16]
Floats = npt.NDArray[np.float64]

FEWEST = 12
"""Turns that must have been seen."""

_ALIKE = 0.7
"""Least share of calls, beyond chance, that come back after a turn."""

_NEARLY = 0.9
"""The shortest turn is taken that has this share of the best one's likeness ..."""

_RIVAL = 0.5
"""... unless a shorter one has this much of it: nobody knows which of the two is a step."""

_LASTING = 0.8
"""Likeness after two, three and four turns, of that after one: a phrase alone is no loop."""

_STRAYS = 0.02
"""Largest share of turns that are cut short, or missed: as far as a rate may be wrong."""

_EXTRA = 0.05
"""Share of the time by which some turns may differ from others, as those that write a log do."""

_DOMINATED = 0.2
"""Median turn over mean turn, below which the time goes into a few of them."""

_SPREADS = (0.2, 0.4, 0.4, 1.0)
"""Largest distance of the quartiles of turns, of their median, for turns of one kind of call, of
two, of three, and of more: the more kinds, the more their order tells by itself."""

_ALIKE_TIMES, _DEVIATIONS = 0.25, 5.0
"""Least likeness of the times of turns some turns later, also in standard deviations of chance."""

_SOON, _SOON_SHARE = 0.7, 0.03
"""What is less of the median turn is none, where few kinds of calls tell of it, but a call of
another timer; so many of them make a rate wrong by 2 %."""

_WINDOW = 16384
"""Calls that are looked at."""

UNEVEN_COUNT = 256
"""Turns of which some take much longer are looked at until there are so many, ..."""

UNEVEN_S = 20.0
"""... or for so long: maybe each hundredth is the longer one."""

_NOISE = {
    # futex, brk, mmap, munmap, madvise, mremap, mprotect, sched_yield, restart_syscall,
    # rt_sigreturn, gettimeofday, clock_gettime
    "x86_64": (202, 12, 9, 11, 28, 25, 10, 24, 219, 15, 96, 228),
    "aarch64": (98, 214, 222, 215, 233, 216, 226, 124, 128, 139, 169, 113),
}
"""Calls of allocators, locks and clocks: how many there are differs from turn to turn."""

TOO_FEW = "too few system calls"


@dataclass(frozen=True)
class Pattern:
    """By what a turn is known.

    Attributes:
        number: the system call that marks it.
        each: how many of these calls a turn has.
        calls: how many calls a turn has in all, the median, without the ...
        ignored: ... system calls that come as they like, or seldom.
    """

    number: int
    each: int
    calls: int
    ignored: tuple[int, ...] = ()


@dataclass(frozen=True)
class NoPeriod:
    """There is none that anybody could be sure of.

    Attributes:
        why: in words.
        has_order: whether calls come back in their order, and their times make it no period.
    """

    why: str
    has_order: bool = False


def find(times: Times, numbers: Numbers, seconds: float) -> Pattern | NoPeriod:
    """What comes back again and again.

    Args:
        times: when system calls of one thread began, in ns, rising, shape (n,).
        numbers: which they were, of the same shape.
        seconds: how long they were looked at.
    """
    times, numbers = times[-_WINDOW:], numbers[-_WINDOW:]
    kinds, counts = np.unique(numbers, return_counts=True)
    noise = (*_NOISE.get(platform.machine(), ()), *kinds[counts < FEWEST].tolist())
    telling = ~np.isin(numbers, noise)
    if telling.sum() > 2 * FEWEST:
        found = _find(times[telling], numbers[telling], seconds)
        return replace(found, ignored=noise) if isinstance(found, Pattern) else found
    return _find(times, numbers, seconds)


def _find(times: Times, numbers: Numbers, seconds: float) -> Pattern | NoPeriod:
    most = len(numbers) // FEWEST
    if most < 1:
        return NoPeriod(f"{TOO_FEW}: {len(numbers)} in {seconds:.1f} s")
    alike, same = likeness(numbers, 4 * most)
    best = float(alike[1 : most + 1].max())
    if best < _ALIKE:
        return NoPeriod(f"its {len(numbers)} system calls come in no order that comes back")
    calls = _first(alike, _NEARLY * best, most)
    if alike[[2 * calls, 3 * calls, 4 * calls]].min() < _LASTING * best:
        return NoPeriod("the order of its system calls comes back, and does not stay")
    shorter = _first(same, _RIVAL * float(same[calls]), calls - 1) if calls > 1 else 0
    if shorter and _dominance(times, shorter) > _DOMINATED:
        return _two(times, shorter, calls)
    pattern = _pattern(numbers, calls)
    if pattern is None:
        return NoPeriod("no system call of it comes once in each period")
    places = np.flatnonzero(numbers == pattern.number)
    spread = _SPREADS[min(len(np.unique(numbers[-calls:])), len(_SPREADS)) - 1]
    found = _checked(pattern, times[places[:: pattern.each]], seconds, spread)
    if isinstance(found, NoPeriod):
        return found
    return replace(found, calls=int(np.median(np.diff(places[:: found.each]))))


def likeness(numbers: Numbers, most: int) -> tuple[Floats, Floats]:
    """How many calls are the same so many calls later.

    Returns:
        By that distance, from 0 to `most`: their share beyond chance, and their share. Both are 1
        where all are the same.
    """
    count = len(numbers)
    size = 1 << (count + most).bit_length()
    same, chance = np.zeros(most + 1), 0.0
    for number in np.unique(numbers):
        is_it = (numbers == number).astype(np.float64)
        spectrum = np.fft.rfft(is_it, size)
        same += np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[: most + 1]
        chance += float(is_it.mean()) ** 2
    shares: Floats = np.round(same) / (count - np.arange(most + 1))
    beyond: Floats = shares if chance == 1.0 else (shares - chance) / (1 - chance)
    return beyond, shares


def _first(alike: Floats, enough: float, most: int) -> int:
    """The first distance of such a likeness that is no less than those beside it; 0: none."""
    is_top = (alike[1:-1] >= alike[:-2]) & (alike[1:-1] >= alike[2:])
    is_top[0] = alike[1] >= alike[2]  # of no distance all are alike
    found = np.flatnonzero(is_top[:most] & (alike[1 : most + 1] >= enough))
    return int(found[0]) + 1 if len(found) else 0


def _dominance(times: Times, calls: int) -> float:
    """Median over mean of the time that so many calls take."""
    took = times[calls:] - times[:-calls]
    return float(np.median(took) / took.mean())


def _two(times: Times, shorter: int, longer: int) -> NoPeriod:
    each = float(times[-1] - times[0]) / (len(times) - 1)
    short, long = duration(shorter * each), duration(longer * each)
    return NoPeriod(f"two periods, of {short} and {long}: either may be a step", True)


def _pattern(numbers: Numbers, calls: int) -> Pattern | None:
    """The call that comes most evenly, equally often in each turn."""
    found: dict[tuple[float, float, int], Pattern] = {}
    for number, count in zip(*np.unique(numbers, return_counts=True), strict=True):
        each = round(count * calls / len(numbers))
        if each < 1 or count < each * FEWEST:
            continue
        distances = np.diff(np.flatnonzero(numbers == number)[::each])
        strays = float(max((distances < calls).mean(), (distances > 1.9 * calls).mean()))
        odd = float((distances != calls).mean())  # what others do in between
        found[strays, odd, each] = Pattern(int(number), each, calls)
    best = min(found, default=None)
    return found[best] if best and best[0] <= _STRAYS else None


def _checked(pattern: Pattern, marks: Times, seconds: float, spread: float) -> Pattern | NoPeriod:
    """A pattern whose turns take about as long as each other, or none."""
    took = np.diff(marks).astype(np.float64)
    if len(took) < FEWEST:
        return NoPeriod(f"{len(took)} periods in {seconds:.1f} s, and {FEWEST} are needed")
    middle = float(np.median(took))
    extra = float(np.maximum(took - 1.5 * middle, 0).sum() / took.sum())
    many, strength = _turns_together(took)
    if many and not _is_even(took, many):
        longer = replace(pattern, each=pattern.each * many)
        if middle <= _DOMINATED * took.mean() and strength >= _RIVAL:
            return _checked(longer, marks[::many], seconds, spread)
        short, long = duration(took.mean()), duration(took.mean() * many)
        return NoPeriod(f"two periods, of {short} and {long}: either may be a step", True)
    if extra > _EXTRA and len(took) < UNEVEN_COUNT and seconds < UNEVEN_S:
        return NoPeriod("some of its periods take much longer, and it is too early to say", True)
    low, high = np.quantile(took, (0.25, 0.75))
    if high - low > spread * middle:
        told = f"a quarter below {duration(low)}, a quarter above {duration(high)}"
        return NoPeriod(f"its system calls come back at no regular time: {told}", True)
    soon = float((took < _SOON * middle).mean())
    if soon > _SOON_SHARE and spread < max(_SPREADS):
        told = f"{percent(soon)} of them much sooner"
        return NoPeriod(f"its system calls come back at no regular time: {told}", True)
    if middle <= _DOMINATED * took.mean():
        return NoPeriod("its time goes into a few turns, which come at no regular time", True)
    return pattern


def _turns_together(took: Floats) -> tuple[int, float]:
    """After how many turns the same times come back, if these differ, and how like they are then.

    Returns:
        0 if nothing of that kind is seen.
    """
    most = len(took) // 4
    if most < 2:
        return 0, 0.0
    about = np.minimum(took, np.quantile(took, 0.99))
    about = about - about.mean()
    size = 1 << (2 * len(took)).bit_length()
    spectrum = np.fft.rfft(about, size)
    product = np.fft.irfft(spectrum.real**2 + spectrum.imag**2, size)[: 2 * most + 1]
    if product[0] <= 0:
        return 0, 0.0
    alike = product / product[0] * len(took) / (len(took) - np.arange(2 * most + 1))
    enough = max(_ALIKE_TIMES, _DEVIATIONS / len(took) ** 0.5)
    lowest = np.minimum.accumulate(alike[1:])
    rise = np.append(1.0, alike[1:] - lowest)  # of what drifts, all that are near are alike
    many = _first(rise, max(enough, float(rise[2 : most + 1].max()) * _NEARLY), most)
    if many < 2 or rise[2 * many] < enough / 2:
        return 0, 0.0
    return many, float(rise[many])


def _is_even(took: Floats, many: int) -> bool:
    """Whether turns that come after so many are as long as the others."""
    whole = took[: len(took) // many * many].reshape(-1, many).mean(0)
    return bool(np.abs(whole - np.median(whole)).sum() <= _EXTRA * whole.sum())
