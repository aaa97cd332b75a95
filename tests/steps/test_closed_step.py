"""Columns of closed steps say what each step says, whatever some of them have more than others."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import numpy as np
import pytest

from trainobs.steps.closed_step import ClosedStep, ClosedSteps, packed, with_more

COLUMNS = ("serial", "step", "epoch", "start_ns", "end_ns", "switches", "unexplained")


class Truth(NamedTuple):
    """What a step is made of: its numbers, in the order of `COLUMNS`, and what has a length."""

    head: list[int]
    phase_ns: list[int]
    merged: tuple[int, ...]
    totals: list[int] | None

    def made(self, chance: random.Random) -> bytes:
        numbers = (*self.head, len(self.phase_ns), *self.phase_ns)
        step = with_more(packed(numbers), self.totals, self.merged)
        return chance.choice([step, ClosedStep(step)])


def run(chance: random.Random, *, merges: bool, totals: int | None) -> list[Truth]:
    """Consecutive steps; now and then phases get names, and serials become one step."""
    truth, serial, phases = [], 0, chance.randrange(9)
    for _ in range(chance.randrange(1, 12)):
        phases += chance.choice([0, 0, 0, 2])
        several = chance.randrange(4) if merges and chance.randrange(3) == 0 else 0
        first, serial = serial, serial + several
        head = [serial, *(chance.randrange(2**62) for _ in COLUMNS[1:])]
        phase_ns = [chance.randrange(2**40) for _ in range(phases)]
        more = None if totals is None else [chance.randrange(2**53) for _ in range(totals)]
        truth.append(Truth(head, phase_ns, tuple(range(first, serial)), more))
        serial += 1
    return truth


@pytest.mark.parametrize("seed", range(60))
def test_columns_are_those_of_the_steps(seed: int) -> None:
    chance = random.Random(seed)
    truth = run(chance, merges=seed % 3 > 0, totals=[None, 0, 3][seed % 7 % 3])
    steps = ClosedSteps(one.made(chance) for one in truth)
    cut = chance.randrange(len(truth) + 1)
    joined = ClosedSteps.joined([steps[:cut], steps[cut:]])
    for each in (steps, joined):
        for place, name in enumerate(COLUMNS):
            assert getattr(each, name).tolist() == [one.head[place] for one in truth]
            assert [getattr(step, name) for step in each] == [one.head[place] for one in truth]
        width = max(len(one.phase_ns) for one in truth)
        none = [0] * width
        assert each.phase_ns.tolist() == [(one.phase_ns + none)[:width] for one in truth]
        assert [(step.phase_ns, step.merged) for step in each] == [one[1:3] for one in truth]
        assert each.totals.tolist() == [step.totals for step in each]
        assert [step.totals for step in each] == [one.totals or [] for one in truth]


@pytest.mark.parametrize("seed", range(20))
def test_a_serial_is_found_in_the_step_that_has_it(seed: int) -> None:
    chance = random.Random(seed)
    truth = run(chance, merges=True, totals=None)
    steps = ClosedSteps(one.made(chance) for one in truth)
    place = {serial: at for at, step in enumerate(steps) for serial in step.serials}
    serials = range(-2, truth[-1].head[0] + 3)
    assert steps.places(np.array(serials)).tolist() == [place.get(one, -1) for one in serials]


@pytest.mark.parametrize("count", [1, 2])
def test_who_gets_a_column_may_write_into_it(count: int) -> None:
    columns: Any = ClosedSteps([ClosedStep.from_numbers(1, 1, (0, 5), [5])] * count)
    columns.step[0] = 7
    assert columns.step[0] == 7
