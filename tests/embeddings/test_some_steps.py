"""What is told of a run of which some steps are counted, against the truth of all its steps."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.embeddings.streams import (
    ROWS,
    SHAPE,
    TABLE,
    Zipf,
    all_ids,
    steps_of,
    true_shares,
    watched,
)
from trainobs.access import AccessCounts
from trainobs.access.hot import drift, served_by_hot_rows
from trainobs.access.skew import zipf
from trainobs.access.together import lookups_together

WIDTHS = {TABLE: 4}
STEPS = 700
BUDGETS = [int(4 * ROWS * ratio) for ratio in (0.01, 0.1, 0.5)]

draw = Zipf()


def permutations(seed: int, count: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.permutation(ROWS) for _ in range(count)]


def window(random, step: int, width: int, move: int) -> np.ndarray:
    """Ids that move with time."""
    return (random.integers(0, width, SHAPE) + step * move) % ROWS


def with_bursts(random, step: int, length: int) -> np.ndarray:
    """Two lookups in five are of one row, for some steps."""
    return np.where(random.random(SHAPE) < 0.4, step // length * 77 % ROWS, draw(random))


DAYS = permutations(1, 14)

ORDERS = {
    "shuffled": lambda random, step: draw(random),
    "alike": lambda random, step: random.integers(0, ROWS, SHAPE),
    "new rows in each step": lambda random, step: window(random, step, 28, 28),
    "a window of 20 steps": lambda random, step: window(random, step, 560, 28),
    "a window of 60 steps": lambda random, step: window(random, step, 1680, 28),
    "days of 50 steps": lambda random, step: DAYS[step // 50 % 14][draw(random)],
    "days of 100 steps": lambda random, step: DAYS[step // 100 % 14][draw(random)],
    "days of other rows": lambda random, step: window(random, step // 100, ROWS // 7, ROWS // 7),
    "another kind at each eighth": lambda random, step: (
        draw(random) if step % 8 else ROWS - 1 - draw(random)
    ),
    "drifting fast": lambda random, step: (draw(random) + 10 * step) % ROWS,
    "drifting": lambda random, step: (draw(random) + step) % ROWS,
    "bursts of 5 steps": lambda random, step: with_bursts(random, step, 5),
    "bursts of 30 steps": lambda random, step: with_bursts(random, step, 30),
}
KNOWN = ("shuffled", "alike", "days of 50 steps", "days of 100 steps")
LAW = {"shuffled": 1.0}


@pytest.fixture(scope="module", params=ORDERS)
def run(request):
    random, order = np.random.default_rng(7), ORDERS[request.param]
    stream = [steps_of(STEPS, lambda step: order(random, step))]
    return request.param, stream, watched(stream)


@pytest.mark.parametrize("budget_bytes", BUDGETS)
def test_what_hot_rows_serve_of_all_steps_is_told_or_not_known(run, budget_bytes):
    name, stream, counts = run
    told = served_by_hot_rows(counts, WIDTHS, budget_bytes, 0.99)
    lookups, all_hot = true_shares(counts, all_ids(stream), budget_bytes)
    full = np.sort(np.bincount(all_ids(stream).ravel(), minlength=ROWS))[::-1]
    best = full[: budget_bytes // 4].sum() / full.sum()
    known = not math.isnan(told.lookups.value)
    assert known or name not in KNOWN
    assert (told.why is None) == (not math.isnan(told.all_hot.value))
    if known:
        assert told.lookups.low <= lookups <= told.lookups.high
        assert best <= told.lookups.high
        assert abs(told.lookups.value - lookups) < 0.12
    if not math.isnan(told.all_hot.value):
        assert told.all_hot.low <= all_hot <= told.all_hot.high


def test_an_exponent_is_told_where_rows_keep_what_they_are_looked_up(run):
    name, _, counts = run
    told = zipf(counts.spectrum(TABLE), together=lookups_together(counts, TABLE)).exponent
    assert math.isnan(told.value) == (name not in LAW)
    if name in LAW:
        assert told.low <= LAW[name] <= told.high


def epochs_of(name: str):
    """Two epochs, and whether the hot rows of the second are others."""
    random, half = np.random.default_rng(3), STEPS // 2
    if name in ORDERS:
        same = steps_of(half, lambda step: ORDERS[name](random, step))
        return [same, same], False
    if name == "shuffled again":
        inputs = np.concatenate(steps_of(half, lambda step: draw(random)))
        shuffled = (random.permutation(inputs) for _ in range(2))
        return [list(each.reshape(half, *SHAPE)) for each in shuffled], False
    days = (0, 0, 0, 1, 1, 1) if name == "others" else range(6)
    parts = [steps_of(half // 3, lambda _, d=day: DAYS[d][draw(random)]) for day in days]
    return [sum(parts[:3], []), sum(parts[3:], [])], True


@pytest.mark.parametrize("name", [*ORDERS, "shuffled again", "others", "days that go on"])
def test_drift_is_told_of_epochs_that_differ_more_than_each_does_in_itself(name):
    stream, drifts = epochs_of(name)
    counts = watched(stream)
    before, after = counts.inputs().values()
    budget = BUDGETS[1]
    told = drift(before, after, counts.tables, WIDTHS, budget, by_steps=True)
    old, new = (np.bincount(np.concatenate(s).ravel(), minlength=ROWS) for s in stream)
    hot = np.argsort(-old, kind="stable")[: budget // 4]
    truth = (np.sort(new)[-budget // 4 :].sum() - new[hot].sum()) / new.sum()
    if name in ("shuffled", "shuffled again", "others"):
        assert told.low <= truth <= told.high
    if drifts and name == "others":
        assert told.low > 0.5
    else:
        assert not told.low > 0


@pytest.mark.parametrize("count", [20, 100])
def test_of_few_counted_steps_nothing_is_known(count):
    random = np.random.default_rng(0)
    counts = watched([steps_of(count, lambda step: draw(random))])
    told = served_by_hot_rows(counts, WIDTHS, BUDGETS[1])
    assert math.isnan(told.lookups.value)
    assert "steps" in told.why
    assert math.isnan(lookups_together(counts, TABLE))


def test_ranks_that_read_neighbours_are_not_taken_for_others():
    """Each rank reads half of the batches of data in order."""
    random = np.random.default_rng(0)
    steps = steps_of(STEPS, lambda step: window(random, step // 2, 56, 56))
    both = [watched([steps[rank::2]], rank=rank) for rank in range(2)]
    both[0].merge(both[1])
    assert both[0].steps == (STEPS, both[0].steps.counted)
    assert math.isnan(served_by_hot_rows(both[0], WIDTHS, BUDGETS[1]).lookups.value)
    shuffled = [steps_of(STEPS // 2, lambda step: draw(random)) for _ in range(2)]
    ranks = [watched([of_rank], rank=rank) for rank, of_rank in enumerate(shuffled)]
    ranks[0].merge(ranks[1])
    told = served_by_hot_rows(ranks[0], WIDTHS, BUDGETS[1]).lookups
    truth, _ = true_shares(ranks[0], all_ids(shuffled), BUDGETS[1])
    assert told.low <= truth <= told.high


def test_where_each_step_is_counted_its_order_does_not_matter():
    random = np.random.default_rng(0)
    steps = steps_of(100, lambda step: window(random, step, 200, 200))
    in_order, mixed = (watched([each], every=1) for each in (steps, steps[::3] + steps[1::3]))
    mixed.merge(watched([steps[2::3]], every=1))
    assert not in_order.is_of_some_steps
    told = [served_by_hot_rows(each, WIDTHS, BUDGETS[1]).lookup_ratio for each in (in_order, mixed)]
    assert told[0] == told[1] > 0.05


def test_a_file_keeps_what_is_known_of_steps(tmp_path):
    random = np.random.default_rng(0)
    counts = watched([steps_of(200, lambda step: draw(random))])
    counts.save(tmp_path / "rank=0.npz")
    again = AccessCounts.load(tmp_path / "rank=0.npz")
    assert again.steps == counts.steps
    (one,), (other,) = counts.inputs().values(), again.inputs().values()
    for column, same in zip(one.of_steps, other.of_steps, strict=True):
        np.testing.assert_array_equal(column, same)
    told = (served_by_hot_rows(each, WIDTHS, BUDGETS[1]) for each in (counts, again))
    assert len(set(told)) == 1


def test_a_sampled_lookup_knows_how_often_its_step_had_the_same_row():
    random = np.random.default_rng(0)
    steps = steps_of(60, lambda step: random.integers(0, 50, SHAPE))
    counts = watched([steps], every=3)
    (sample,) = counts.inputs().values()
    of_step = np.repeat(sample.of_steps.steps >> 20, sample.sizes) - 1
    own = np.array([(steps[s] == row).sum() for s, row in zip(of_step, sample.ids, strict=True)])
    np.testing.assert_array_equal(sample.of_steps.own, own)
    known = np.unique(of_step)
    earlier = dict(zip(known[1:], known, strict=False))
    near = [
        (steps[earlier[s]] == row).sum() if s in earlier else np.nan
        for s, row in zip(of_step, sample.ids, strict=True)
    ]
    np.testing.assert_allclose(sample.of_steps.near, near)


def test_intervals_hold_the_truth_at_their_rate_where_inputs_are_shuffled():
    held = np.zeros(3, int)
    for seed in range(40):
        random = np.random.default_rng(seed)
        stream = [steps_of(340, lambda step, r=random: draw(r, (64, 4)))]
        counts = watched(stream, rank=seed)
        told = served_by_hot_rows(counts, WIDTHS, BUDGETS[1])
        lookups, all_hot = true_shares(counts, all_ids(stream), BUDGETS[1])
        held[0] += told.lookups.low <= lookups <= told.lookups.high
        held[1] += told.all_hot.low <= all_hot <= told.all_hot.high
        together = lookups_together(counts, TABLE)
        law = zipf(counts.spectrum(TABLE), together=together).exponent
        held[2] += law.low <= 1.0 <= law.high
    assert (held >= 34).all()
