"""What a model sees of a sharded collection that is held by another module."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from tests.fae.batches import Batch, batches
from tests.fae.cases import profile_of
from tests.fae.parity import SEQUENCES, build, fae_sharder, stock_sharder
from tests.fae.small import case
from trainobs.embeddings.find import find

pytestmark = pytest.mark.usefixtures("lone_rank")


def _models(sequences: bool) -> tuple[Any, Any]:
    """One sharded by TorchRec and one by FAE, after a batch with keys in another order."""
    one = case(kinds=("plain",), sequences=sequences)
    models = build(one, stock_sharder(one)), build(one, fae_sharder(one, profile_of(one)))
    ((_, kjt),) = batches(one, 0)
    for model in models:
        model(Batch(kjt.permute([2, 1, 0])))
    return models


@SEQUENCES
def test_names_are_those_of_the_stock_collection(sequences: bool) -> None:
    stock, fae = _models(sequences)
    assert list(fae.state_dict()) == list(stock.state_dict())
    for ask in ("named_parameters", "named_buffers", "named_modules"):
        of_fae, of_stock = ([name for name, _ in getattr(m, ask)()] for m in (fae, stock))
        assert of_fae == of_stock, ask
        inner = [[name for name, _ in getattr(m.module, ask)()] for m in (fae, stock)]
        assert inner[0] == inner[1], ask
    optimizers = fae.fused_optimizer, stock.fused_optimizer
    states = [optimizer.state_dict()["state"] for optimizer in optimizers]
    assert {name: list(s) for name, s in states[0].items()} == {
        name: list(s) for name, s in states[1].items()
    }
    assert optimizers[0].params.keys() == optimizers[1].params.keys()


@SEQUENCES
def test_a_module_above_loads_a_state_dict_of_the_stock_collection(sequences: bool) -> None:
    stock, fae = _models(sequences)
    for value in stock.state_dict().values():
        tensors = (
            [s.tensor for s in value.local_shards()] if hasattr(value, "metadata") else [value]
        )
        for tensor in tensors:
            tensor.detach().fill_(0.5)
    above: nn.Module = fae.module  # not DistributedModelParallel, which loads each by itself
    result = above.load_state_dict(stock.module.state_dict())
    assert not result.missing_keys
    assert not result.unexpected_keys
    ((_, kjt),) = batches(case(kinds=("plain",), sequences=sequences), 0)
    kjt = kjt.permute([2, 1, 0])
    assert torch.equal(fae(Batch(kjt))[1], stock(Batch(kjt))[1])


@SEQUENCES
def test_the_observer_finds_it_among_the_modules_of_the_model(sequences: bool) -> None:
    stock, fae = (find(model) for model in _models(sequences))
    assert [table.info for table in fae.tables] == [table.info for table in stock.tables]
    assert [site.path for site in fae.sites] == [site.path for site in stock.sites]
    (site,) = fae.sites
    assert hasattr(site.module, "served_by_hot_rows")


def test_a_collection_is_gone_when_its_model_is() -> None:
    _, fae = _models(False)
    collection = weakref.ref(fae.module.collection)
    env = fae.module.collection._env
    assert len(env.trainobs_hot_collections._overlays) == 1
    del fae, _
    gc.collect()
    assert collection() is None
    assert len(env.trainobs_hot_collections._overlays) == 0
