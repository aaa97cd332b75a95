"""Tables that TorchRec keeps whole on every rank, beside others with hot rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed.embeddingbag import ShardedEmbeddingBagCollection
from torchrec.distributed.types import ShardingEnv
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from tests.fae.batches import batches
from tests.fae.cases import Case, profile_of
from tests.fae.course import run
from tests.fae.parity import Model, build, fae_sharder, plan_of, stock_sharder
from tests.fae.ranks import Ranks
from tests.fae.small import case, fed
from trainobs.core.errors import FAEError
from trainobs.fae.kjt.split import SlotMap, split

TOLERANCE = 4e-6
KINDS = ("mixed", "pure", "pure", "plain", "cold", "pure")
MODES = pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])


def beside(world_size: int = 1, **changes: Any) -> Case:
    """A table with hot rows, and one that is replicated."""
    one = case(world_size=world_size, kinds=KINDS, **changes)
    hot, other = one.tables
    return replace(one, tables=(hot, replace(other, sharding="data_parallel", hot=())))


@MODES
@pytest.mark.parametrize("pipelined", [False, True])
@pytest.mark.usefixtures("lone_rank")
def test_both_train_as_in_the_stock_collection(mode: str, pipelined: bool) -> None:
    assert max(run(beside(mode=mode, pipelined=pipelined)).values()) < TOLERANCE


@MODES
def test_they_do_on_two_ranks(pair: Ranks, mode: str) -> None:
    for found in pair.run(_run, beside(2, mode=mode)):
        assert max(found.values()) < TOLERANCE


@pytest.mark.usefixtures("lone_rank")
def test_torchrec_would_leave_it_untrained_by_an_optimizer_in_the_backward() -> None:
    one = beside()
    model: Any = Model(one)
    apply_optimizer_in_backward(torch.optim.SGD, model.collection.parameters(), {"lr": 0.1})
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    plan = plan_of(model, one).plan["collection"]
    stock = stock_sharder(one).shard(model.collection, plan, env)
    before = {name: value.detach().clone() for name, value in stock.named_parameters()}
    stock(batches(one, 0)[0][1]).values().sum().backward()
    same = {n: torch.equal(before[n], now) for n, now in stock.named_parameters()}
    assert same == {"embedding_bags.t0.weight": False, "embedding_bags.t1.weight": True}


def _run(rank: int, one: Case) -> dict[str, float]:
    return run(one, rank)


@pytest.mark.usefixtures("lone_rank")
def test_the_replicated_table_is_trained_and_costs_no_flush() -> None:
    one = beside()
    collection = build(one, fae_sharder(one, profile_of(one))).module.collection
    named = dict(collection.named_parameters())
    replicated, sharded = named["embedding_bags.t1.weight"], named["embedding_bags.t0.weight"]
    before = replicated.detach().clone()
    collection(fed(one)[0]).values().sum().backward()
    torch.optim.SGD([replicated], lr=0.1).step()
    assert not torch.equal(before, replicated)
    assert collection._overlay._is_ahead
    sharded.sum()
    assert not collection._overlay._is_ahead


@pytest.mark.usefixtures("lone_rank")
def test_a_collection_of_replicated_tables_alone_is_the_stock_one() -> None:
    one = beside()
    alone = replace(one, tables=one.tables[1:])
    model: Any = Model(alone)
    plan = plan_of(model, alone).plan["collection"]
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    sharded = fae_sharder(one, profile_of(one)).shard(model.collection, plan, env)
    assert type(sharded) is ShardedEmbeddingBagCollection
    (kjt,) = (kjt for kind, kjt in batches(one, 0) if kind == "plain")
    given = split(kjt, SlotMap.from_profile(profile_of(one)))
    assert torch.equal(sharded(given).values(), sharded(kjt).values())


@pytest.mark.usefixtures("lone_rank")
def test_it_is_refused_if_the_hot_lookups_of_its_tables_stand_apart() -> None:
    one = beside()
    alone = replace(one, tables=tuple(replace(t, sharding="data_parallel") for t in one.tables))
    model: Any = Model(alone)
    plan = plan_of(model, alone).plan["collection"]
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    with pytest.raises(FAEError, match="of table 't0'") as error:
        fae_sharder(one, profile_of(one)).shard(model.collection, plan, env)
    assert "calibrate without it" in str(error.value)


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("profile", "calibrate without it"),
        ("optimizer", "leaves the table untrained"),
        ("feature", "whose hot lookups go to table 't0' alone"),
        ("sequences", "which TorchRec 1.8 cannot train on hosts"),
    ],
)
def test_what_would_not_be_exact_is_refused(what: str, message: str) -> None:
    one = beside(sequences=what == "sequences")
    profile = profile_of(case() if what == "profile" else one)
    if what == "feature":
        shared = replace(one.tables[1], features=("f0", "f2"))
        one = replace(one, tables=(one.tables[0], shared))
    model = nn.Module()
    model.collection = Model(one).collection
    bags = model.collection.embeddings if one.sequences else model.collection.embedding_bags
    trained = bags.parameters() if what == "optimizer" else bags["t0"].parameters()
    apply_optimizer_in_backward(torch.optim.SGD, trained, {"lr": 0.1})
    plan = plan_of(model, one).plan["collection"]  # type: ignore[arg-type]
    env = ShardingEnv.from_process_group(dist.group.WORLD)
    with pytest.raises(FAEError, match=message):
        fae_sharder(one, profile).shard(model.collection, plan, env)
