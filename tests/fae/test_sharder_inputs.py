"""Batches that are odd, and that the stock collection takes: it is trained the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.batches import Batch, batches
from tests.fae.cases import Case, profile_of
from tests.fae.compared import difference
from tests.fae.course import run
from tests.fae.parity import build, fae_sharder, train
from tests.fae.parity import stock_sharder as stock
from tests.fae.ranks import Ranks
from tests.fae.small import case
from trainobs.core.errors import FAEError
from trainobs.fae.sharding.sharded_bags import ShardedFAEEmbeddingBagCollection

ENOUGH = 4e-6
KINDS = ("mixed", "pure", "plain", "pure")
MODES = pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_weights_that_are_integers_are_dropped(mode: str) -> None:
    one = _case(1, "table_wise", mode=mode, weight_type=torch.int64)
    assert all(kjt.weights_or_none() is not None for _, kjt in batches(one, 0))
    assert max(run(one).values()) < ENOUGH


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_weights_of_other_floats_are_taken_on_two_ranks(
    pair: Ranks, mode: str, dtype: torch.dtype
) -> None:
    one = _case(2, "table_wise", mode=mode, weight_type=dtype, weighted=True)
    sums = tuple(replace(table, pooling=PoolingType.SUM) for table in one.tables)
    assert max(max(r.values()) for r in pair.run(_run, replace(one, tables=sums))) < ENOUGH


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_weights_of_means_whose_gradients_nobody_divides_are_refused(mode: str) -> None:
    one = _case(1, "table_wise", mode=mode)
    means = tuple(replace(table, pooling=PoolingType.MEAN) for table in one.tables)

    def with_weights(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
        weights = torch.full(kjt.values().shape, 2.0)
        return KeyedJaggedTensor(kjt.keys(), kjt.values(), weights, lengths=kjt.lengths())

    with pytest.raises(FAEError, match="whose gradients FBGEMM does not divide"):
        _worst(replace(one, tables=means), with_weights)
    by_row = tuple(replace(table, sharding="row_wise") for table in means)
    assert _worst(replace(one, tables=by_row), with_weights) < ENOUGH


@MODES
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
@pytest.mark.usefixtures("lone_rank")
def test_small_integers_are_ids(mode: str, dtype: torch.dtype) -> None:
    one = _case(1, "table_wise", mode=mode, id_type=dtype)
    assert {kjt.values().dtype for _, kjt in batches(one, 0)} == {dtype}
    assert max(run(one).values()) < ENOUGH


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_the_name_of_a_feature_may_have_an_at_sign(mode: str) -> None:
    one = _case(1, "table_wise", mode=mode)
    first, second = one.tables
    named = (replace(first, features=("user@v2",)), second)
    assert max(run(replace(one, tables=named)).values()) < ENOUGH


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_inverse_indices_of_bags_that_nobody_shares_say_nothing(mode: str) -> None:
    one = _case(1, "row_wise", mode=mode)

    def with_inverse(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
        of_each = torch.arange(kjt.stride()).repeat(len(kjt.keys()), 1)
        return KeyedJaggedTensor(
            kjt.keys(), kjt.values(), lengths=kjt.lengths(), inverse_indices=(kjt.keys(), of_each)
        )

    assert _worst(one, with_inverse) < ENOUGH


def test_a_compiled_model_trains_where_a_rank_has_no_table(pair: Ranks) -> None:
    one = _case(2, "table_wise")
    one = replace(one, tables=one.tables[:1])
    for compiled, eager in pair.run(_compiled, one):
        assert compiled == pytest.approx(eager, rel=ENOUGH)


@pytest.mark.parametrize(
    "kind",
    [
        {"mode": "overlay"},
        {"mode": "paper"},
        {"mode": "partitioned"},
        {"sequences": True},
        {"processed": "features", "weighted": True},
    ],
    ids=lambda kind: next(iter(kind.values())),
)
def test_a_compiled_model_trains_as_an_eager_one(pair: Ranks, kind: dict[str, object]) -> None:
    one = _case(2, "row_wise", **kind)
    one = replace(one, tables=tuple(replace(t, pooling=PoolingType.SUM) for t in one.tables))
    for compiled, eager in pair.run(_compiled, one, "aot_eager"):
        assert compiled == pytest.approx(eager, rel=ENOUGH)


def test_hot_rows_are_found_by_one_map_however_the_device_is_named(pair: Ranks) -> None:
    one = _case(2, "table_wise", mode="partitioned")
    assert pair.run(_maps, one) == [1, 1]


def _maps(rank: int, one: Case) -> int:
    """Maps of hot rows that a collection has after it was trained."""
    sharder = fae_sharder(one, profile_of(one))
    shard, named = sharder.shard, torch.device("cpu:0")  # of "cpu", as "cuda" of "cuda:0"
    sharder.shard = lambda module, plan, env, _, name: shard(module, plan, env, named, name)
    model = build(one, sharder)
    train(one, model, [kjt for _, kjt in batches(one, rank)])
    (found,) = (m for m in model.modules() if isinstance(m, ShardedFAEEmbeddingBagCollection))
    return len(found._overlay._bitmaps)


def _case(world_size: int, sharding: str, **changes: object) -> Case:
    return case(sharding, world_size, kinds=KINDS, **changes)


def _run(rank: int, one: Case) -> dict[str, float]:
    return run(one, rank)


def _worst(one: Case, changed: Callable[[KeyedJaggedTensor], KeyedJaggedTensor]) -> float:
    """The largest difference to the stock sharder, on changed batches."""
    feed = [changed(kjt) for _, kjt in batches(one, 0)]
    sharders = (stock(one), fae_sharder(one, profile_of(one)))
    return max(difference(*(train(one, build(one, s), feed) for s in sharders)).values())


def _compiled(rank: int, one: Case, backend: str = "eager") -> tuple[list[float], list[float]]:
    """Losses of a compiled training, and of one that is not."""
    feed = [Batch(kjt) for _, kjt in batches(one, rank)]
    losses: list[list[float]] = []
    for compiles in (True, False):
        model = build(one, fae_sharder(one, profile_of(one)))
        forward = torch.compile(model, backend=backend) if compiles else model
        losses.append([])
        for batch in feed:
            loss, _ = forward(batch)
            loss.backward()
            losses[-1].append(float(loss.detach()))
    torch._dynamo.reset()
    return losses[0], losses[1]
