"""A profile of an older trainobs: `old/profile`, calibrated and written by commit 36a3a44."""

from __future__ import annotations

from pathlib import Path

import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.fae.skewed import click_loader, matrix, quiet
from trainobs.fae import FAEProfile

HOT = {"t_small": (40, 780), "t_middle": (87, 3867), "t_large": (73, 2716)}


@pytest.fixture(scope="module")
def old() -> FAEProfile:
    return FAEProfile.load(Path(__file__).parent / "old" / "profile")


def test_it_holds_what_was_saved(old):
    assert old.fingerprint == "c80bc4be805bd02f"
    assert {t.name: (len(t.hot_ids), t.hot_ids.sum()) for t in old.tables} == HOT
    assert (old.budget_bytes, old.hot_bytes) == (4000, 4000)
    assert (old.made["inputs_read"], old.made["inputs_counted"]) == (30_000, 14_903)
    expected = old.predictions
    assert expected.all_hot_ratio == (0.3654174884944116, 0.3497566342157617, 0.3813683037336452)
    assert expected.threshold_bytes == (4040, 2720, 6280)
    large = expected.tables["t_large"]
    assert large.hot_lookup_ratio.value == 0.5658119658119658
    assert (len(large.group_rows), large.group_rows.sum()) == (34, 20_000)


def test_the_same_data_still_give_the_same_profile_where_they_are_sampled(old):
    """In order, blocks of neighbours serve for the same since then."""
    new = quiet(click_loader(matrix(0, 30_000)), budget=4000, margin=0)
    assert new.fingerprint == old.fingerprint
    assert new.made == {**old.made, "source": "DataLoader", "order": "random"}
    now, then = new.predictions, old.predictions
    for name in ("all_hot_ratio", "hot_lookup_ratio", "threshold", "threshold_bytes"):
        assert_allclose(getattr(now, name), getattr(then, name), rtol=1e-12)
    for name, table in then.tables.items():
        assert_array_equal(now.tables[name].group_rows, table.group_rows)
        assert_allclose(now.tables[name].group_ratios, table.group_ratios, rtol=1e-12)
