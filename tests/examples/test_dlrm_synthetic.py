from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

SAMPLE = 7_200  # inputs, as many as in the published measurements


def all_of(batches: Any) -> dict[str, torch.Tensor]:
    """The inputs of batches, one behind the other."""
    made = list(batches)
    ids = [batch.sparse_features.values().view(26, -1) for batch in made]
    return {
        "labels": torch.cat([batch.labels for batch in made]),
        "dense": torch.cat([batch.dense_features for batch in made]),
        "ids": torch.cat(ids, dim=1),
    }


def batches_of(dlrm: SimpleNamespace, size: int, count: int, **settings: Any) -> Any:
    rows = dlrm.columns.table_rows(settings.pop("scale", 0.01))
    return dlrm.synthetic.SyntheticBatches(rows, size, count, **settings)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def inputs(dlrm: SimpleNamespace) -> np.ndarray:
    """Ids ``(26, SAMPLE)`` in tables as large as Kaggle's."""
    return all_of(batches_of(dlrm, SAMPLE, 1, scale=1.0))["ids"].numpy()


def test_inputs_depend_on_the_seed_alone(dlrm: SimpleNamespace) -> None:
    expected = all_of(batches_of(dlrm, 2048, 3))
    assert same(all_of(batches_of(dlrm, 96, 64)), expected)
    assert same(all_of(batches_of(dlrm, 6144, 1)), expected)
    loader = DataLoader(batches_of(dlrm, 512, 12), batch_size=None, num_workers=2)
    assert len(loader) == 12
    assert same(all_of(loader), expected)
    assert not same(all_of(batches_of(dlrm, 2048, 3, seed=1)), expected)


def test_ranks_share_the_batches(dlrm: SimpleNamespace) -> None:
    whole = list(batches_of(dlrm, 100, 7, first=3))
    for rank in range(2):
        part = batches_of(dlrm, 100, 7, first=3, rank=rank, world_size=2)
        assert len(part) == len(whole[rank::2])
        assert same(all_of(part), all_of(whole[rank::2]))


def test_validation_follows_training(dlrm: SimpleNamespace) -> None:
    options = dlrm.options.Options(run_dir=None, steps=3, val_steps=2, batch_size=100, workers=0)
    data = dlrm.data.open_data(options)
    rows = dlrm.columns.table_rows(options.rows_scale)
    whole = dlrm.synthetic.SyntheticBatches(rows, 100, 5)
    assert same(all_of([*data.train, *data.val]), all_of(whole))


@pytest.mark.parametrize("scale", [1e-9, 0.001, 0.1])
def test_ids_are_rows_of_their_tables(dlrm: SimpleNamespace, scale: float) -> None:
    rows = dlrm.columns.table_rows(scale)
    ids = all_of(batches_of(dlrm, 2048, 1, scale=scale))["ids"].numpy()
    assert (ids.min(axis=1) >= 0).all()
    assert (ids.max(axis=1) < rows).all()


@pytest.mark.parametrize("count", [2, 3, 10, 1000])
def test_scattering_gives_each_rank_a_row_of_its_own(dlrm: SimpleNamespace, count: int) -> None:
    scattered = dlrm.synthetic.scatter(np.arange(count), count)
    assert sorted(scattered) == list(range(1, count + 1))


@pytest.mark.parametrize(("head", "knee", "tail"), [(0.8, 20, 1.3), (0.0, 3, 2.0), (1.1, 50, 0.6)])
def test_ranks_are_drawn_by_their_law(
    dlrm: SimpleNamespace, head: float, knee: int, tail: float
) -> None:
    sampler = dlrm.synthetic.Sampler(dlrm.synthetic.Law(head, knee, tail), 400)
    drawn = np.bincount(sampler((np.arange(2**20) + 0.5) / 2**20), minlength=400) / 2**20
    weights = np.arange(1, 401.0) ** -head
    # Beyond the knee the law is one of real numbers r, of which rank n gets those in [n, n + 1).
    edges = np.arange(knee, 401.0) ** (1 - tail) / (1 - tail)
    weights[knee:] = np.diff(edges)[: 400 - knee] * float(knee) ** (tail - head)
    np.testing.assert_allclose(drawn, weights / weights.sum(), atol=2e-3)


@pytest.mark.parametrize("column", [3, 12, 16, 21])
def test_large_tables_are_as_skewed_as_published(inputs: np.ndarray, column: int) -> None:
    counts = np.sort(np.unique(inputs[column - 1], return_counts=True)[1])[::-1]
    counts = counts[counts >= 2]
    slope = np.polyfit(np.log(np.arange(1, len(counts) + 1)), np.log(counts), 1)[0]
    assert -slope == pytest.approx(0.815, abs=0.06)  # published: 0.80 to 0.83


def hot_lookups(ids: np.ndarray, share: float) -> np.ndarray:
    """Which lookups are of the hottest rows of all tables together, of those that were seen."""
    counted = [np.unique(column, return_inverse=True, return_counts=True) for column in ids]
    counts = np.concatenate([of_column for _, _, of_column in counted])
    hot = np.zeros(len(counts), dtype=bool)
    hot[np.argsort(-counts, kind="stable")[: int(share * len(counts))]] = True
    starts = np.cumsum([0, *(len(of_column) for _, _, of_column in counted)])
    return np.array([hot[start + at] for start, (_, at, _) in zip(starts, counted, strict=False)])


# The published measurements of 7,200 lines: lookups that the hottest rows serve, all-hot inputs.
@pytest.mark.parametrize(
    ("share", "served", "all_hot"),
    [(0.01, 0.617, 0.001), (0.10, 0.782, 0.088), (0.20, 0.836, 0.175), (0.50, None, 0.325)],
)
def test_hot_rows_serve_as_much_as_published(
    inputs: np.ndarray, share: float, served: float | None, all_hot: float
) -> None:
    hot = hot_lookups(inputs, share)
    if served is not None:
        assert hot.mean() == pytest.approx(served, abs=0.04)
    assert hot.all(axis=0).mean() == pytest.approx(all_hot, abs=0.06)


def test_columns_depend_on_each_other(inputs: np.ndarray) -> None:
    # Published, for rows seen four times or more: 0.09 % if independent, 11.1 % as it is.
    hot = np.array(
        [
            (counts >= 4)[at]
            for _, at, counts in (
                np.unique(column, return_inverse=True, return_counts=True) for column in inputs
            )
        ]
    )
    independent = hot.mean(axis=1).prod()
    assert hot.all(axis=0).mean() > 20 * independent
    assert hot.all(axis=0).mean() == pytest.approx(0.111, abs=0.05)


def test_some_categories_are_missing_together(inputs: np.ndarray) -> None:
    missing = inputs == 0
    together = missing[[18, 19, 24, 25]]
    assert (together.all(axis=0) == together.any(axis=0)).all()
    assert together[0].mean() == pytest.approx(0.5, abs=0.1)
    assert not missing[:18].any()


@pytest.mark.parametrize("seed", range(3))
def test_a_quarter_are_clicks(dlrm: SimpleNamespace, seed: int) -> None:
    labels = all_of(batches_of(dlrm, 8192, 1, seed=seed))["labels"]
    assert set(labels.tolist()) == {0.0, 1.0}
    assert labels.mean().item() == pytest.approx(0.256, abs=0.025)
