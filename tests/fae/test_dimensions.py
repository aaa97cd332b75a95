"""What random cases vary is there, and what is not done as by the stock sharder is seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torchrec.modules.embedding_configs import PoolingType

from tests.fae import course
from tests.fae.compared import difference
from tests.fae.dimensions import DIMENSIONS, varied
from tests.fae.parity import SEQUENCES
from tests.fae.random_cases import random_case
from tests.fae.ranks import Ranks
from tests.fae.small import case
from trainobs.core.errors import FAEError

TOLERANCE = 4e-6
MODES = pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
KINDS = ("mixed", "pure", "plain", "pure", "mixed", "pure")


@SEQUENCES
@pytest.mark.parametrize("world_size", [1, 2])
def test_cases_vary_in_each_dimension(world_size: int, sequences: bool) -> None:
    cases = [random_case(seed, world_size, sequences) for seed in range(400)]
    many = [varied(one) for one in cases]
    for field in (
        *("max_gradient", "clip", "bounds", "id_type", "length_type", "is_uneven", "is_summed"),
        *("is_divided", "events", "kinds", "tables"),
    ):
        changed = sum(
            getattr(a, field) != getattr(b, field) for a, b in zip(cases, many, strict=True)
        )
        assert 20 < changed < 360, field
    assert any(one.least_weight < 0 and one.weighted for one in many) != sequences
    assert any(one.is_shared for one in many) != sequences
    for event in course.EVENTS:
        assert sum(event in one.events for one in many) > 10, event
    assert len(DIMENSIONS) == 13  # each of them above


ALONE: dict[str, dict[str, object]] = {
    "clipped tables": {"max_gradient": 1e-3},
    "layers clipped by norm": {"clip": "torch norm"},
    "layers clipped by value": {"clip": "torchrec value"},
    "summed losses": {"is_summed": True, "mode": "overlay"},
}


@MODES
@pytest.mark.parametrize("what", ALONE)
@pytest.mark.usefixtures("lone_rank")
def test_what_is_ignored_is_seen(what: str, mode: str) -> None:
    plain = case(mode=mode, kinds=KINDS, optimizer="sgd")
    sums = tuple(replace(table, pooling=PoolingType.SUM) for table in plain.tables)
    plain = replace(plain, tables=sums)
    one = replace(plain, **ALONE[what])  # type: ignore[arg-type]
    assert max(course.run(one).values()) < TOLERANCE
    stock = course.follow(one, 0, is_fae=False)
    ignored = course.follow(plain, 0, is_fae=True)
    assert max(difference(stock, ignored).values()) > 100 * TOLERANCE


def test_gradients_that_are_divided_all_the_same_are_seen(pair: Ranks) -> None:
    for divided, whole in pair.run(_divided):
        assert divided > 1e-3
        assert whole < TOLERANCE


def _divided(rank: int) -> tuple[float, float]:
    one = case("row_wise", 2, kinds=KINDS, is_divided=False)
    stock = course.follow(one, rank, is_fae=False)
    divided = course.follow(replace(one, is_divided=True), rank, is_fae=True)
    return (
        max(difference(stock, divided).values()),
        max(difference(stock, course.follow(one, rank, is_fae=True)).values()),
    )


@MODES
@SEQUENCES
@pytest.mark.parametrize("event", course.EVENTS)
@pytest.mark.usefixtures("lone_rank")
def test_what_comes_in_mid_training_is_not_missed(
    event: str, mode: str, sequences: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = case(mode=mode, kinds=KINDS, sequences=sequences, events=(event,), optimizer="adam")
    assert max(course.run(one).values()) < TOLERANCE
    if event in ("save", "restart"):  # which change nothing
        return
    stock = course.follow(one, 0, is_fae=False)
    monkeypatch.setitem(course.EVENTS, event, lambda _: None)
    if event == "refresh":
        with pytest.raises(FAEError, match="slots of profile"):
            course.follow(one, 0, is_fae=True)
    elif event in ("evaluate", "skip"):
        assert len(course.follow(one, 0, is_fae=True).losses) < len(stock.losses)
    else:
        missed = course.follow(one, 0, is_fae=True)
        assert max(difference(stock, missed).values()) > 100 * TOLERANCE


@pytest.mark.usefixtures("lone_rank")
def test_whole_batches_have_bad_ids_and_shared_bags_if_they_should() -> None:
    one = case(kinds=("plain", "mixed"), bounds="IGNORE", inputs=20)
    plain, mixed = (kjt for _, kjt in course.batches(one, 0))
    rows = torch.tensor([20, 30, 30])
    for kjt, has_bad in ((plain, True), (mixed, False)):
        of_rows = rows.repeat_interleave(torch.tensor(kjt.length_per_key()))
        assert bool(((kjt.values() < 0) | (kjt.values() >= of_rows)).any()) == has_bad
    (_, shared), _ = course.batches(replace(one, is_shared=True), 0)
    assert shared.variable_stride_per_key()
