"""What others write to the tables in the middle of a training is in the hot rows too."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.train_pipeline import TrainPipelineSparseDist
from torchrec.distributed.types import ShardingEnv

from tests.fae.batches import Batch, batches
from tests.fae.cases import Case, profile_of
from tests.fae.compared import Trained, difference
from tests.fae.parity import (
    SEQUENCES,
    build,
    fae_sharder,
    sharded_alone,
    stock_sharder,
    train,
)
from tests.fae.ranks import Ranks
from tests.fae.small import case, fed
from trainobs.core.errors import FAEError

TOLERANCE = 4e-6


def _reset_rows(weight: Tensor) -> None:
    weight[: len(weight) // 2] = 0.25


WRITES: dict[str, Callable[[Tensor], object]] = {
    "zero": lambda weight: weight.zero_(),
    "clamp": lambda weight: weight.clamp_(-0.1, 0.1),
    "reset rows": _reset_rows,
    "import": lambda weight: weight.copy_(torch.linspace(-1, 1, weight.numel()).view_as(weight)),
    "average": lambda weight: weight.lerp_(torch.ones_like(weight), 0.1),
    "read": lambda weight: weight.add_(weight.norm()),
    "data": lambda weight: weight.data.mul_(0.5),
    "on its rank": lambda weight: weight.numel() and weight.zero_(),
}


@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_a_write_to_the_parameters_reaches_hot_rows(mode: str, sequences: bool) -> None:
    one = case(mode=mode, sequences=sequences, kinds=("mixed", "pure", "plain", "pure"))
    assert _worst(0, one, WRITES) == pytest.approx(dict.fromkeys(WRITES, 0.0), abs=TOLERANCE)


@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_it_does_on_all_ranks(pair: Ranks, mode: str) -> None:
    # t1 is on one rank alone
    one = case(mode=mode, world_size=2, kinds=("mixed", "pure", "plain", "pure"))
    for worst in pair.run(_worst, one, ("reset rows", "average", "data")):
        assert max(worst.values()) < TOLERANCE


@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_it_does_where_a_rank_has_one_table_alone(pair: Ranks, mode: str) -> None:
    # the parameter of t0, which is written to first, is empty on the rank of t1
    one = case("table_wise", mode=mode, world_size=2, kinds=("mixed", "pure", "plain", "pure"))
    for worst in pair.run(_worst, one, ("zero", "clamp", "average", "data")):
        assert max(worst.values()) < TOLERANCE


@pytest.mark.parametrize(
    ("mode", "kinds"),
    [
        ("overlay", ("mixed", "plain", "mixed")),
        ("paper", ("mixed", "plain")),
        ("partitioned", ("mixed", "pure", "plain", "pure")),
    ],
)
def test_a_write_that_one_rank_alone_sees_is_read_by_all(
    pair: Ranks, mode: str, kinds: tuple[str, ...]
) -> None:
    one = case("table_wise", mode=mode, world_size=2, kinds=kinds)
    # the first table is on rank 0 alone
    for worst in pair.run(_worst, one, ("on its rank",), patience_s=60):
        assert max(worst.values()) < TOLERANCE


@pytest.mark.parametrize("mode", ["overlay", "paper"])
def test_before_a_pure_batch_it_is_refused_with_what_to_do(pair: Ranks, mode: str) -> None:
    for told in pair.run(_refused, mode, patience_s=60):
        assert "rank 0: reading of hot rows from their tables" in told
        assert "call tables_changed() of the collection on every rank" in told


def _refused(rank: int, mode: str) -> str:
    one = case("table_wise", mode=mode, world_size=2, kinds=("pure", "pure"))
    group = dist.new_group([0, 1])  # of its own, since a collective on it stays half done
    collection = sharded_alone(one, ShardingEnv.from_process_group(group), mode)
    first, second = fed(one, rank)
    collection(first).values().sum().backward()
    with torch.no_grad():
        WRITES["on its rank"](next(collection.parameters()))
    with pytest.raises(FAEError) as refused:
        collection(second).values().sum().backward()
    return str(refused.value)


@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_it_is_where_a_pipeline_has_the_next_batch_on_its_way(pair: Ranks, mode: str) -> None:
    one = case("table_wise", mode=mode, world_size=2, kinds=("mixed",) * 6)
    for worst in pair.run(_piped_worst, one, patience_s=60):
        assert worst < TOLERANCE


def _piped_worst(rank: int, one: Case) -> float:
    """As `_worst`, of a write between two batches of TorchRec's pipeline, on one rank alone."""
    stock, without, fae = (
        _piped(rank, one, kind, does_write)
        for kind, does_write in (("stock", True), ("stock", False), ("FAE", True))
    )
    assert float((stock - without).abs().max()) > 1e-3
    return float((stock - fae).abs().max())


def _piped(rank: int, one: Case, kind: str, does_write: bool) -> Tensor:
    """What each batch was looked up as."""
    stock = kind == "stock"
    model = build(one, stock_sharder(one) if stock else fae_sharder(one, profile_of(one)))
    first = _tables(model)[0]
    layers = [p for name, p in model.named_parameters() if name.startswith("over")]
    pipeline = TrainPipelineSparseDist(model, torch.optim.SGD(layers, 0.1), torch.device("cpu"))
    feed = [kjt for _, kjt in batches(one, rank)] if stock else fed(one, rank)
    source, found = iter(map(Batch, feed)), []
    for number in range(len(feed)):
        found.append(pipeline.progress(source).detach())
        if does_write and number == 2:
            with torch.no_grad():
                WRITES["on its rank"](first)
    pipeline.detach()
    return torch.stack(found)


def _worst(rank: int, one: Case, writes: Iterable[str]) -> dict[str, float]:
    """The largest difference to the stock sharder, which a write left out would make large."""
    without, worst = _trained(rank, one, "stock", None), {}
    for write in writes:
        stock, fae = (_trained(rank, one, sharder, write) for sharder in ("stock", "FAE"))
        assert max(difference(stock, without).values()) > 1e-3
        worst[write] = max(difference(stock, fae).values())
    return worst


def _trained(rank: int, one: Case, kind: str, write: str | None) -> Trained:
    stock = kind == "stock"
    model = build(one, stock_sharder(one) if stock else fae_sharder(one, profile_of(one)))
    held = _tables(model)  # as an average of weights holds them
    feed = [kjt for _, kjt in batches(one, rank)] if stock else fed(one, rank)
    for kjt in feed:
        model(Batch(kjt))[0].backward()
    if write is not None:
        for weight in held[:1] if write == "on its rank" else held:
            with torch.no_grad():
                WRITES[write](weight)
        if write == "data" and not stock:
            model.module.collection.tables_changed()
    return train(one, model, feed)


def _tables(model: nn.Module) -> list[Any]:
    return [p for name, p in model.named_parameters() if not name.startswith("over")]


@pytest.mark.usefixtures("lone_rank")
def test_who_writes_to_an_older_tensor_is_told(caplog: pytest.LogCaptureFixture) -> None:
    one = case(kinds=("mixed", "pure"))
    model = build(one, fae_sharder(one, profile_of(one)))
    logging.disable(logging.NOTSET)
    weight = _tables(model)[0].detach()
    for kjt in fed(one):
        model(Batch(kjt))[0].backward()
    weight.fill_(0.25)
    model(Batch(fed(one)[1]))
    assert "taken before the hot rows were trained" in caplog.text
    logging.disable(logging.WARNING)
    (values,) = (s.tensor for s in next(iter(model.state_dict().values())).local_shards())
    assert torch.equal(values, torch.full_like(values, 0.25))


@pytest.mark.usefixtures("lone_rank")
def test_what_asks_for_no_value_writes_nothing_back() -> None:
    one = case(kinds=("mixed",))
    model = build(one, fae_sharder(one, profile_of(one)))
    model(Batch(fed(one)[0]))[0].backward()
    served = model.module.collection.served_by_hot_rows.syncing
    before = served.total_ns
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    model.zero_grad()
    assert sum(p.numel() + p.dim() + len(p.shape) for p in model.parameters() if p.requires_grad)
    assert served.total_ns == before
    assert sum(float(p.detach().sum()) for p in model.parameters())
    assert served.total_ns > before
