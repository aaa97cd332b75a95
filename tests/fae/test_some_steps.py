"""Profiles and refreshes from a run of which some steps are counted, against all of its steps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from torchrec.modules.embedding_configs import EmbeddingBagConfig

from tests.embeddings.streams import ROWS, SHAPE, TABLE, Zipf, all_ids, steps_of, watched
from trainobs.access.counts import AccessCounts
from trainobs.core.errors import FAEError
from trainobs.fae import calibrate, propose_refresh

TABLES = [
    EmbeddingBagConfig(name=TABLE, embedding_dim=4, num_embeddings=ROWS, feature_names=["clicked"])
]
BUDGET = 20 * ROWS // 5
draw = Zipf()


def calibrated(source, budget=BUDGET):
    return calibrate(source, TABLES, budget, progress=False)


def truth(profile, ids):
    """What its hot rows serve: of lookups, and of inputs wholly."""
    hot = np.isin(ids, profile.tables[0].hot_ids)
    return hot.mean(), hot.all(axis=1).mean()


def order(name, random):
    days = [random.permutation(ROWS) for _ in range(14)]
    return {
        "shuffled": lambda step: draw(random),
        "days": lambda step: days[step // 50 % 14][draw(random)],
        "drifting": lambda step: (draw(random) + step) % ROWS,
        "drifting fast": lambda step: (draw(random) + 10 * step) % ROWS,
        "a window": lambda step: (random.integers(0, 2000, SHAPE) + 20 * step) % ROWS,
        "new rows": lambda step: (draw(random) % 100 + 28 * step) % ROWS,
    }[name]


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize(
    "name", ["shuffled", "days", "drifting", "drifting fast", "a window", "new rows"]
)
def test_what_is_predicted_holds_for_the_steps_that_were_not_counted(name, epochs, caplog):
    random = np.random.default_rng(5)
    stream = [steps_of(700 // epochs, order(name, random))] * epochs
    counts = watched(stream)
    try:
        profile = calibrated(counts)
    except FAEError:
        assert name in ("a window", "new rows", "drifting fast")
        return
    told, (lookups, all_hot) = profile.predictions, truth(profile, all_ids(stream))
    assert told.hot_lookup_ratio.low <= lookups <= told.hot_lookup_ratio.high
    assert told.all_hot_ratio.low <= all_hot <= told.all_hot_ratio.high
    width = told.hot_lookup_ratio.high - told.hot_lookup_ratio.low
    assert width < 0.06 or name != "shuffled"
    warned = [record.getMessage() for record in caplog.records]
    assert any("do not stand for the others" in each for each in warned) or width < 0.35


def test_of_few_steps_an_interval_says_that_nothing_is_known(caplog):
    random = np.random.default_rng(5)
    counts = watched([steps_of(100, lambda step: draw(random))])
    told = calibrated(counts).predictions
    assert (told.hot_lookup_ratio.low, told.hot_lookup_ratio.high) == (0, 1)
    assert "do not stand for the others" in caplog.text
    refresh = propose_refresh(calibrated(counts), counts, TABLES, least_gain=-1.0)
    assert not refresh.is_worth_it
    assert "0 % to 100 % now" in refresh.summary()


def test_counts_that_do_not_know_their_steps_predict_nothing():
    """Those of an older trainobs, of which it is known that some steps were counted."""
    random = np.random.default_rng(5)
    counts = AccessCounts({TABLE: ROWS}, seed=0)
    for _ in range(40):
        ids = draw(random)
        counts.add(TABLE, ids.ravel())
        counts.add_inputs([TABLE], ids.ravel(), np.full((1, len(ids)), ids.shape[1]))
    assert calibrated(counts).predictions.hot_lookup_ratio.low > 0
    counts.pass_steps(700, 40)
    assert calibrated(counts).predictions.hot_lookup_ratio.low == 0


@pytest.mark.parametrize("changed", [True, False])
def test_a_refresh_is_proposed_where_other_rows_surely_serve_more(changed):
    random = np.random.default_rng(5)
    other = random.permutation(ROWS) if changed else np.arange(ROWS)
    profile = calibrated(watched([steps_of(700, lambda step: draw(random))]))
    later = [steps_of(700, lambda step: other[draw(random)])]
    refresh = propose_refresh(profile, watched(later), TABLES)
    now, _ = truth(profile, all_ids(later))
    then, _ = truth(refresh.profile, all_ids(later))
    assert refresh.now.hot_lookups.low <= now <= refresh.now.hot_lookups.high
    assert refresh.then.hot_lookups.low <= then <= refresh.then.hot_lookups.high
    assert refresh.is_worth_it == changed


def test_what_hot_rows_serve_now_is_not_that_of_one_kind_of_steps():
    """A packed run: steps of hot inputs alone come in turn with others, in runs of both kinds."""
    random = np.random.default_rng(5)
    profile = calibrated(watched([steps_of(700, lambda step: draw(random))]))
    hot = np.isin(
        inputs := np.concatenate(steps_of(700, lambda step: draw(random))),
        profile.tables[0].hot_ids,
    ).all(axis=1)
    kinds = [inputs[hot], inputs[~hot]]
    steps = [kind[a:b] for kind in kinds for a, b in pairwise(range(0, len(kind), SHAPE[0]))]
    for run_length in (1, 40):
        runs = [steps[at : at + run_length] for at in range(0, len(steps), run_length)]
        packed = [step for at in random.permutation(len(runs)) for step in runs[at]]
        found = propose_refresh(profile, watched([packed]), TABLES).now.hot_lookups
        share, _ = truth(profile, all_ids([packed]))
        assert found.low <= share <= found.high
