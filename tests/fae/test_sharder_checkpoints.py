"""Checkpoints are those of the stock module, and go both ways."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torchrec.distributed import DistributedModelParallel
from torchrec.modules.embedding_configs import DataType

from tests.fae.batches import Batch, batches, packed
from tests.fae.cases import Case, profile_of
from tests.fae.compared import difference
from tests.fae.course import copied
from tests.fae.parity import (
    SEQUENCES,
    Model,
    build,
    fae_sharder,
    plain_parameters,
    stock_sharder,
    train,
)
from tests.fae.random_cases import random_case
from tests.fae.ranks import Ranks
from trainobs.fae.kjt.split import SlotMap

TOLERANCE = 4e-6
SEEDS = range(12)
MODES = pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])


def checkpoint_case(seed: int, world_size: int, **changes: object) -> Case:
    """A random case, eager, with batches of every kind; the last leaves hot rows on the device."""
    kinds = ("mixed", "pure", "plain", "mixed", "pure")
    one = random_case(seed, world_size, sequences=bool(changes.get("sequences")))
    if "adam" in one.optimizer:  # which counts steps, and no state dict has that
        one = replace(one, optimizer="adagrad", weight_decay=0.0)
    one = replace(one, data_type=DataType.FP32, output_type=DataType.FP32)
    return replace(one, pipelined=False, kinds=kinds, **changes)  # type: ignore[arg-type]


@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("way", ["stock to FAE", "FAE to stock", "FAE to FAE"])
def test_training_goes_on_from_a_state_dict_of_the_other(way: str, sequences: bool) -> None:
    for seed in SEEDS:
        one = checkpoint_case(seed, 1, sequences=sequences)
        assert _hand_over(0, one, way) < TOLERANCE, seed


@pytest.mark.parametrize("way", ["stock to FAE", "FAE to stock"])
def test_two_ranks_go_on_from_a_state_dict_of_the_other(pair: Ranks, way: str) -> None:
    for seed in SEEDS:
        assert max(pair.run(_hand_over, checkpoint_case(seed, 2), way)) < TOLERANCE, seed


def _hand_over(rank: int, one: Case, way: str) -> float:
    """Train with one sharder, hand weights and optimizer state over, train with the other."""
    givers, takers = way.split(" to ")
    expected = train(one, _sharded(one, "stock"), _feed(one, rank, "stock") * 2)
    giver = _sharded(one, givers)
    train(one, giver, _feed(one, rank, givers))
    taker = _sharded(one, takers)
    train(one, taker, _feed(one, rank, takers)[:1])  # what it has learned is to be forgotten
    taker.load_state_dict(copied(giver.state_dict()))
    taker.fused_optimizer.load_state_dict(copied(giver.fused_optimizer.state_dict()))
    got = train(one, taker, _feed(one, rank, takers))
    half = len(one.kinds)
    expected.losses, expected.outputs = expected.losses[half:], expected.outputs[half:]
    return max(difference(expected, got).values())


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_a_save_changes_nothing_and_may_come_at_any_time(mode: str) -> None:
    one = checkpoint_case(3, 1, mode=mode)
    expected = train(one, _sharded(one, "stock"), _feed(one, 0, "stock"))
    model = _sharded(one, "FAE")
    optimizer = torch.optim.SGD(plain_parameters(one, model).values(), lr=0.05)
    losses = []
    for kjt in _feed(one, 0, "FAE"):
        optimizer.zero_grad()
        loss, _ = model(Batch(kjt))
        model.state_dict()
        loss.backward()
        model.fused_optimizer.state_dict()
        optimizer.step()
        model.state_dict()
        losses.append(float(loss.detach()))
    assert losses == pytest.approx(expected.losses, abs=TOLERANCE)


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_a_load_of_one_table_leaves_the_others(mode: str) -> None:
    cases = (checkpoint_case(seed, 1, mode=mode) for seed in SEEDS)
    one = next(case for case in cases if len(case.tables) == 2)
    model = _sharded(one, "FAE")
    train(one, model, _feed(one, 0, "FAE"))
    before = copied(model.state_dict())
    name = next(key for key in before if "t0" in key)
    part = {name: before[name]}
    for shard in part[name].local_shards():
        shard.tensor.fill_(7)
    model.load_state_dict(part, strict=False)
    model(Batch(_feed(one, 0, "FAE")[0]))
    after = model.state_dict()
    for key, value in after.items():
        for now, then in zip(_shards(value), _shards(before[key]), strict=True):
            assert torch.equal(now, then), key


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_initialising_the_tables_leaves_the_optimizers_state(mode: str) -> None:
    one = checkpoint_case(3, 1, mode=mode, optimizer="adagrad")
    one = replace(one, processed="")  # under processors nothing initialises tables
    runs = []
    for kind in ("stock", "FAE"):
        model = _sharded(one, kind)
        for kjt in _feed(one, 0, kind):
            model(Batch(kjt))[0].backward()  # no save, which writes the state to the tables
        torch.manual_seed(1)
        model.module.collection.reset_parameters()
        runs.append(train(one, model, _feed(one, 0, kind)))
    assert max(difference(*runs).values()) < TOLERANCE


@MODES
@pytest.mark.parametrize("way", ["FAE to stock", "stock to FAE", "FAE to FAE"])
def test_distributed_checkpoints_move_between_numbers_of_ranks(
    pair: Ranks, lone_rank: None, tmp_path: Path, way: str, mode: str
) -> None:
    one = checkpoint_case(4, 2, mode=mode)
    plans = ("row_wise", "table_wise")
    tables = tuple(
        replace(t, sharding=plans[i % 2]) for i, t in enumerate(one.tables)
    )  # both numbers of ranks can have them
    one = replace(one, tables=tables, optimizer="rowwise_adagrad")
    alone = replace(one, world_size=1)
    givers, takers = way.split(" to ")
    saved = pair.run(_save, one, givers, str(tmp_path / "two"))[0]
    model = _sharded(alone, takers)
    train(alone, model, _feed(alone, 0, takers)[:1])
    _load(model, str(tmp_path / "two"))
    model(Batch(_feed(alone, 0, takers)[0]))  # hot rows are read here
    for name, value in _whole(model).items():
        assert torch.equal(value, saved[name]), name
    _save(0, alone, takers, str(tmp_path / "one"), model)
    loaded = pair.run(_load_and_look, one, givers, str(tmp_path / "one"))
    for rank in loaded:
        for name, value in rank.items():
            assert torch.equal(value, saved[name]), name


@MODES
def test_a_load_in_place_is_seen_by_ranks_without_hot_rows(
    pair: Ranks, tmp_path: Path, mode: str
) -> None:
    one = checkpoint_case(4, 2, mode=mode)
    held = [replace(t, sharding="table_wise") for t in (one.tables * 2)[:2]]
    first = replace(held[0], name="t0", hot=(1, 3), features=("f0",))
    second = replace(held[1], name="t1", hot=(), features=("f1",))  # all that rank 1 has
    one = replace(one, tables=(first, second))
    saved = pair.run(_save, one, "FAE", str(tmp_path))[0]
    for rank in pair.run(_load_and_look, one, "FAE", str(tmp_path)):
        for name, value in rank.items():
            assert torch.equal(value, saved[name]), name


@MODES
def test_an_asynchronous_save_holds_what_was_trained_before_it(
    pair: Ranks, tmp_path: Path, mode: str
) -> None:
    one = checkpoint_case(4, 2, mode=mode)
    saved = pair.run(_save_and_train_on, one, str(tmp_path))[0]
    loaded = pair.run(_load_and_look, one, "stock", str(tmp_path))[0]
    for name, value in loaded.items():
        assert torch.equal(value, saved[name]), name


def test_an_unsharded_model_reads_the_checkpoint(pair: Ranks, tmp_path: Path) -> None:
    one = checkpoint_case(4, 2)
    saved = pair.run(_save, one, "FAE", str(tmp_path))[0]
    model = Model(one)
    state = model.state_dict()
    dcp.load({"model": state}, checkpoint_id=str(tmp_path))
    for name, value in state.items():
        if name in saved:
            assert torch.equal(value, saved[name]), name
    assert any(name in saved for name in state)


def _sharded(one: Case, kind: str) -> DistributedModelParallel:
    return build(one, stock_sharder(one) if kind == "stock" else fae_sharder(one, profile_of(one)))


def _save(
    rank: int, one: Case, kind: str, folder: str, model: DistributedModelParallel | None = None
) -> dict[str, Tensor]:
    if model is None:
        model = _sharded(one, kind)
        train(one, model, _feed(one, rank, kind))
    dcp.save(_states(model), checkpoint_id=folder)
    return _whole(model)


def _save_and_train_on(rank: int, one: Case, folder: str) -> dict[str, Tensor]:
    """What was trained until the save, which is written while the training goes on."""
    model = _sharded(one, "FAE")
    train(one, model, _feed(one, rank, "FAE"))
    saved = _whole(model)
    group = dist.new_group(backend="gloo")
    save = dcp.async_save(
        _states(model),
        checkpoint_id=folder,
        process_group=group,
        async_stager=BlockingAsyncStager(),
    )
    train(one, model, _feed(one, rank, "FAE"))
    save.result()
    changed = _whole(model)
    assert any(not torch.equal(value, saved[name]) for name, value in changed.items())
    dist.destroy_process_group(group)
    return saved


def _load(model: DistributedModelParallel, folder: str) -> None:
    """In place, as torch.distributed.checkpoint does; TorchRec's tensors are the model's own."""
    dcp.load(_states(model), checkpoint_id=folder)


def _load_and_look(rank: int, one: Case, kind: str, folder: str) -> dict[str, Tensor]:
    model = _sharded(one, kind)
    train(one, model, _feed(one, rank, kind)[:1])
    _load(model, folder)
    model(Batch(_feed(one, rank, kind)[0]))
    return _whole(model)


def _states(model: DistributedModelParallel) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": model.fused_optimizer.state_dict()}


def _whole(model: DistributedModelParallel) -> dict[str, Tensor]:
    """The embedding tables and optimizer states, whole, on every rank."""
    found = {k: v for k, v in model.state_dict().items() if hasattr(v, "local_shards")}
    for name, states in model.fused_optimizer.state_dict()["state"].items():
        found.update({f"{name} {key}": value for key, value in states.items()})
    mine = [
        (name, tuple(value.metadata().size), shard.metadata.shard_offsets, shard.tensor)
        for name, value in found.items()
        for shard in value.local_shards()
    ]
    ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ranks, mine)
    whole: dict[str, Tensor] = {}
    for name, size, offsets, part in itertools.chain.from_iterable(ranks):
        window = tuple(
            slice(start, start + count) for start, count in zip(offsets, part.shape, strict=True)
        )
        whole.setdefault(name, torch.full(size, torch.nan))[window] = part
    assert not any(value.isnan().any() for value in whole.values())
    return whole


def _feed(one: Case, rank: int, kind: str) -> list[Any]:
    slots = SlotMap.from_profile(profile_of(one))
    whole = batches(one, rank)
    return [kjt if kind == "stock" else packed(k, kjt, slots) for k, kjt in whole]


def _shards(value: Any) -> list[Tensor]:
    return [s.tensor for s in value.local_shards()] if hasattr(value, "local_shards") else [value]
