"""Which period is found in what order and at what times system calls come, and where none is."""

from __future__ import annotations

import platform
from collections.abc import Sequence

import numpy as np
import pytest

from trainobs.attach.period import _NOISE, NoPeriod, Numbers, Pattern, Times, find, likeness
from trainobs.attach.turn_detector import BLOCK, TurnDetector

MS = 1_000_000
OPEN, STAT, READ, CLOSE, SLEEP, WRITE = 300, 301, 302, 303, 304, 305
FILE = [(OPEN, 0.02), (STAT, 0.01), (READ, 0.1), (CLOSE, 0.01)]
"""A call, and how many ms come after it."""

Turn = Sequence[tuple[int, float]]


def calls(turns: Sequence[Turn], seed: int = 0, jitter: float = 0.05) -> tuple[Times, Numbers]:
    """System calls of some turns, whose times differ a little."""
    numbers = np.array([number for turn in turns for number, _ in turn], np.int16)
    after = np.array([ms for turn in turns for _, ms in turn])
    after *= np.random.default_rng(seed).uniform(1 - jitter, 1 + jitter, len(after))
    times = np.concatenate(([0.0], after.cumsum()[:-1])) * MS
    return times.astype(np.int64), numbers


def found(turns: Sequence[Turn], seconds: float = 30, **settings: float) -> Pattern | NoPeriod:
    return find(*calls(turns, **settings), seconds)


def why(turns: Sequence[Turn], seconds: float = 30, **settings: float) -> str:
    nothing = found(turns, seconds, **settings)
    assert isinstance(nothing, NoPeriod), nothing
    return nothing.why


PLAIN = [*FILE, (SLEEP, 20.0)]


def test_a_loop_has_the_turn_that_it_has() -> None:
    pattern = found([PLAIN] * 100)
    assert isinstance(pattern, Pattern)
    assert pattern.calls == len(PLAIN)
    assert pattern.each == 1


def test_a_log_each_now_and_then_is_no_turn() -> None:
    pattern = found(([PLAIN] * 49 + [[*PLAIN, (WRITE, 0.1)]]) * 6)
    assert isinstance(pattern, Pattern)
    assert pattern.calls == len(PLAIN)


@pytest.mark.parametrize("jitter", [0.1, 0.3])
def test_turns_of_different_length_are_turns(jitter: float) -> None:
    pattern = found([PLAIN] * 100, jitter=jitter)
    assert isinstance(pattern, Pattern)
    assert pattern.calls == len(PLAIN)


def test_calls_that_come_a_few_times_make_no_turn_of_others() -> None:
    gaps = np.random.default_rng(3).uniform(8, 12, 400)
    turns = [[(SLEEP, gap)] for gap in gaps]
    turns[100:100] = [[(STAT, 0.1)], [(SLEEP, 10.0)], [(STAT, 0.1)]]
    pattern = found(turns)
    assert isinstance(pattern, Pattern)
    assert pattern.calls == 1


def test_calls_of_allocators_and_locks_in_between_change_nothing() -> None:
    noise = _NOISE[platform.machine()][0]
    rng = np.random.default_rng(0)
    turns = [[*PLAIN, *[(noise, 0.01)] * rng.integers(5)] for _ in range(100)]
    pattern = found(turns)
    assert isinstance(pattern, Pattern)
    assert pattern.calls == len(PLAIN)


def test_files_of_a_batch_are_no_turns_where_the_time_goes_elsewhere() -> None:
    pattern = found([[*FILE * 32, (READ, 30.0)]] * 40)
    assert isinstance(pattern, Pattern)
    assert pattern.calls == 32 * len(FILE) + 1


def test_what_only_the_times_tell_is_a_turn_where_all_the_time_goes_there() -> None:
    batch = [*FILE * 7, *FILE[:-1], (CLOSE, 30.0)]
    pattern = found([batch] * 40)
    assert isinstance(pattern, Pattern)
    assert pattern.calls == 8 * len(FILE)


@pytest.mark.parametrize(
    "turn",
    [
        pytest.param([*PLAIN * 4, (WRITE, 0.1)], id="four batches for a step, or a log"),
        pytest.param([*PLAIN, *FILE, (SLEEP, 40.0)], id="a short one, a long one"),
        pytest.param([(READ, 10.0)] * 9 + [(WRITE, 0.1)], id="one call, and now and then another"),
        pytest.param([*FILE[:-1], (CLOSE, 5.0)] * 8 + [(STAT, 12.0)], id="in part where time goes"),
    ],
)
def test_what_may_be_one_or_the_other_is_neither(turn: Turn) -> None:
    assert "two periods" in why([turn] * 60)


def test_two_timers_of_one_thread_are_no_period() -> None:
    due = sorted([*np.arange(0, 6000, 10.0), *np.arange(0.5, 6000, 33.0)])
    turns = [[(SLEEP, float(gap))] for gap in np.diff(due)]
    assert isinstance(found(turns, jitter=0), NoPeriod)
    for which in (READ, STAT):  # which differ by what they do
        kinds = [[(SLEEP, gap[0][1]), (which if n % 4 == 3 else WRITE, 0)] for n, gap in
                 enumerate(turns)]  # fmt: skip
        assert isinstance(found(kinds, jitter=0), NoPeriod)


@pytest.mark.parametrize(("one_ms", "other_ms"), [(6.8, 44.4), (2.5, 32.8), (4.2, 28.9)])
def test_a_fast_and_a_slow_timer_that_do_the_same_are_no_period(
    one_ms: float, other_ms: float
) -> None:
    due = sorted([*np.arange(0, 9000, one_ms), *np.arange(0.3, 9000, other_ms)])
    assert isinstance(found([[(SLEEP, float(gap))] for gap in np.diff(due)]), NoPeriod)


def test_whatever_is_found_of_any_loop_is_right() -> None:
    """Loops of any order, time and noise: a period, or none, and never a part of one or several."""
    rng = np.random.default_rng(7)
    outcomes = [_is_right(rng) for _ in range(120)]
    assert False not in outcomes
    assert outcomes.count(True) > 40


def _is_right(rng: np.random.Generator) -> bool | None:
    """Whether the period of a loop is right; None if none is found."""
    length = rng.integers(1, 41)
    order = rng.integers(300, 300 + rng.integers(1, 9), length)
    gaps = np.exp(rng.normal(-2, 1.5, length))
    gaps[rng.integers(length)] += rng.choice([0, 5, 20, 50])
    stray, pause = rng.choice([0, 0.02, 0.2]) / length, rng.choice([0, 0.01, 0.05])
    turns = []
    for _ in range(rng.integers(20, 400)):
        factor = rng.uniform(0.8, 1.2)
        turn = [(int(number), ms * factor) for number, ms in zip(order, gaps, strict=True)]
        if rng.random() < pause:
            turn[-1] = (turn[-1][0], turn[-1][1] + gaps.sum() * rng.uniform(1, 20))
        extra = [(int(number), 0.05) for number in rng.integers(300, 310, rng.binomial(40, stray))]
        turns.append([*turn, *extra])
    times, numbers = calls(turns, jitter=0)
    pattern = find(times, numbers, 30)
    if isinstance(pattern, NoPeriod):
        return None
    marks = times[numbers == pattern.number][:: pattern.each]
    begins = np.cumsum([0, *(len(turn) for turn in turns)])[:-1]
    first, last = np.searchsorted(times[begins], (marks[0], marks[-1]))
    return abs((len(marks) - 1) / (last - first) - 1) <= 0.02 + 1 / len(marks)


def test_calls_at_random_are_no_period() -> None:
    rng = np.random.default_rng(0)
    kinds, gaps = rng.integers(300, 306, 3000), rng.exponential(5, 3000)
    assert "no order" in why([[(int(kind), gap)] for kind, gap in zip(kinds, gaps, strict=True)])
    assert "no regular time" in why([[*FILE, (SLEEP, gap)] for gap in gaps[:300]])


def test_phrases_at_random_are_no_period() -> None:
    """Whose short order comes back, but not for long."""
    rng = np.random.default_rng(1)
    phrases = [FILE, [(STAT, 3.0), (WRITE, 1.0)], [(OPEN, 0.1), (CLOSE, 4.0)]]
    assert isinstance(found([phrases[n] for n in rng.integers(3, size=900)]), NoPeriod)


def test_too_few_are_no_period() -> None:
    nothing = found([PLAIN] * 8)
    assert isinstance(nothing, NoPeriod)
    assert not nothing.has_order
    assert "too few system calls: 0 in 30.0 s" in why([])


def test_one_slow_turn_of_few_is_too_early_to_say() -> None:
    turns = [*[PLAIN] * 20, [*FILE, (SLEEP, 200.0)], *[PLAIN] * 20]
    assert "too early" in why(turns, seconds=5)
    assert isinstance(found(turns, seconds=25), Pattern)


def test_likeness_counts_what_comes_back() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 5, 300).astype(np.int16)
    beyond, same = likeness(numbers, 20)
    expected = [(numbers[n:] == numbers[: 300 - n]).mean() for n in range(21)]
    assert same == pytest.approx(expected)
    chance = sum((numbers == n).mean() ** 2 for n in range(5))
    assert beyond == pytest.approx((np.array(expected) - chance) / (1 - chance))


class Loop:
    """Makes calls and hands them over each quarter of a second, as they are read."""

    def __init__(self) -> None:
        self.turns = TurnDetector(0)
        self.now_ms = 0.0

    def run(self, turn: Turn, count: int) -> None:
        times, numbers = calls([turn] * count, seed=int(self.now_ms))
        times = times + int(self.now_ms * MS)
        end = self.now_ms + count * sum(ms for _, ms in turn)
        while self.now_ms < end:
            upto = self.now_ms + 250
            chosen = (times >= self.now_ms * MS) & (times < upto * MS)
            self.turns.take(times[chosen], numbers[chosen], int(upto * MS))
            self.now_ms = upto
        self.now_ms = end

    def wait(self, ms: float) -> None:
        self.now_ms += ms
        self.turns.take(np.zeros(0, np.int64), np.zeros(0, np.int16), int(self.now_ms * MS))


def slept(ms: float) -> Turn:
    return [*FILE, (SLEEP, ms - 0.14)]


def test_a_change_begins_a_spell_where_it_was() -> None:
    loop = Loop()
    loop.run(slept(20), 400)
    loop.run(slept(10), 800)
    first, second = loop.turns.spells
    assert first.period_ns == pytest.approx(20 * MS, rel=0.005)
    assert second.period_ns == pytest.approx(10 * MS, rel=0.005)
    assert first.ends[-1] <= 8000 * MS + 20 * MS
    assert second.ends[0] <= 8000 * MS + 2 * BLOCK * 10 * MS
    assert first.count > 400 - 2 * BLOCK
    low, high = second.interval_ns() or (0, 0)
    assert low < 10 * MS < high
    assert high - low < 0.2 * MS


def test_a_few_slow_turns_are_no_change() -> None:
    loop = Loop()
    for _ in range(4):
        loop.run(slept(20), 100)
        loop.run(slept(60), 12)
        loop.run(slept(20), 100)
    (only,) = loop.turns.spells
    assert only.count > 4 * 212 - 2 * BLOCK
    slow = 4 * 12
    mean = (only.count - slow) * 20 + slow * 60
    assert only.period_ns == pytest.approx(mean / only.count * MS, rel=0.005)


def test_a_loop_that_stops_has_no_period_any_more_until_it_goes_on() -> None:
    loop = Loop()
    loop.run(slept(20), 400)
    assert loop.turns.has_period
    loop.wait(2000)
    assert not loop.turns.has_period
    assert loop.turns.why_not.why == "it has stopped"
    loop.run(slept(20), 400)
    first, second = loop.turns.spells
    assert first.ends[-1] <= 8000 * MS
    assert second.ends[0] >= 10000 * MS


def test_another_order_is_no_turn_of_it() -> None:
    loop = Loop()
    loop.run(slept(20), 400)
    loop.run([(STAT, 1.0), (OPEN, 2.0), (WRITE, 3.0), (OPEN, 4.0), (READ, 1.0)], 30)
    assert not loop.turns.has_period or len(loop.turns.spells) == 1
    loop.run([(STAT, 1.0), (OPEN, 2.0), (WRITE, 3.0), (OPEN, 4.0), (READ, 1.0)], 800)
    first, second = loop.turns.spells
    assert first.ends[-1] < 8300 * MS
    assert second.period_ns == pytest.approx(11 * MS, rel=0.005)


def test_calls_that_were_lost_are_no_turns() -> None:
    loop = Loop()
    loop.run(slept(20), 400)
    loop.turns.forget("too fast", int(loop.now_ms * MS))
    assert not loop.turns.has_period
    loop.run(slept(20), 400)
    assert len(loop.turns.spells) == 2
