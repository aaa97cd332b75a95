"""Adam counts lookups: hot rows have the count, and both averages, that their tables have.

FBGEMM trains by Adam on GPUs alone. Here both sharders get `tests.fae.host_adam`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation, PoolingMode
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor
from torch.nn import functional
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae import host_adam
from tests.fae.batches import Batch, batches
from tests.fae.cases import Case, profile_of
from tests.fae.compared import Trained, difference
from tests.fae.parity import SEQUENCES, build, fae_sharder, stock_sharder, train
from tests.fae.ranks import Ranks
from tests.fae.small import case, fed
from trainobs.core.errors import FAEError
from trainobs.fae.sharding.rates import LookupCounts

TOLERANCE = 4e-6
KINDS = ("mixed", "pure", "pure", "plain", "pure", "cold")
MODES = pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])


def test_fbgemm_has_no_adam_on_hosts() -> None:
    host_adam.install()
    stock: Any = SplitTableBatchedEmbeddingBagsCodegen.__init__
    module = SplitTableBatchedEmbeddingBagsCodegen.__new__(SplitTableBatchedEmbeddingBagsCodegen)
    specs = [(4, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)]
    with pytest.raises(AssertionError, match="adam is not supported in CPU mode"):
        stock.__wrapped__(module, specs, optimizer=EmbOptimType.ADAM)


@pytest.mark.parametrize("mode", [PoolingMode.SUM, PoolingMode.MEAN])
def test_the_stand_in_trains_as_adamw_does_where_all_rows_are_looked_up(mode: PoolingMode) -> None:
    host_adam.install()
    tables = SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, 8, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in (5, 3)],
        optimizer=EmbOptimType.ADAM,
        pooling_mode=mode,
        learning_rate=0.1,
        eps=1e-3,
        beta1=0.8,
        beta2=0.9,
        weight_decay=0.1,
    )
    torch.manual_seed(0)
    weights = [w.copy_(torch.randn_like(w)).clone() for w in tables.split_embedding_weights()]
    known = [torch.nn.Parameter(w) for w in weights]
    adam = torch.optim.AdamW(known, lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)
    ids = torch.tensor([0, 1, 1, 2, 3, 4, 2, 0, 1, 2, 2, 1])
    offsets = torch.tensor([0, 3, 6, 7, 9, 10, 12])  # of three bags for each table
    for _ in range(4):
        pooled = tables(ids, offsets)
        parts = zip(known, (ids[:7], ids[7:]), (offsets[:3], offsets[3:6] - 7), strict=True)
        kind: Any = mode.name.lower()
        mine = torch.cat([functional.embedding_bag(i, w, o, mode=kind) for w, i, o in parts], dim=1)
        assert torch.allclose(pooled, mine, atol=1e-5)
        for output in (pooled, mine):
            (output**3).sum().backward()
        adam.step()
        adam.zero_grad()
    for one, other in zip(tables.split_embedding_weights(), known, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


@MODES
@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
def test_lookups_without_a_backward_count(mode: str, sequences: bool) -> None:
    optimizer = "partial_rowwise_adam" if sequences else "adam"
    one = case(mode=mode, kinds=KINDS, optimizer=optimizer, sequences=sequences)
    assert _worst(0, replace(one, weight_decay=0.05)) < TOLERANCE


@MODES
def test_ranks_without_a_table_learn_the_count(pair: Ranks, mode: str) -> None:
    one = case("table_wise", 2, mode=mode, kinds=KINDS, optimizer="adam")
    lone = replace(one, tables=one.tables[:1])
    assert max(pair.run(_worst, lone)) < TOLERANCE


@pytest.mark.usefixtures("lone_rank")
def test_a_count_that_lags_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    one = case(kinds=KINDS, optimizer="adam")
    monkeypatch.setattr(LookupCounts, "skip", lambda self: None)
    assert _worst(0, one) > 100 * TOLERANCE


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_a_load_continues_at_the_step_that_is_set(mode: str) -> None:
    one = case(mode=mode, kinds=("pure", "mixed", "pure"), optimizer="adam")
    expected = _continued(one, "stock", "stock")
    for first, second in (("stock", "fae"), ("fae", "stock")):
        assert max(difference(expected, _continued(one, first, second)).values()) < TOLERANCE


def _continued(one: Case, *kinds: str) -> Trained:
    """Train by one sharder, load what it came to into another's model, and go on."""
    model = None
    for kind in kinds:
        sharder = stock_sharder(one) if kind == "stock" else fae_sharder(one, profile_of(one))
        before, model = model, build(one, sharder)
        if before is not None:
            model.load_state_dict(before.state_dict())
            model.fused_optimizer.load_state_dict(before.fused_optimizer.state_dict())
            model.fused_optimizer.set_optimizer_step(len(one.kinds))
        whole = [kjt for _, kjt in batches(one, 0)]
        result = train(one, model, whole if kind == "stock" else fed(one))
    return result


@pytest.mark.usefixtures("lone_rank")
def test_tables_that_count_differently_are_refused() -> None:
    one = case(optimizer="adam")  # two plans: two kernels
    model = build(one, fae_sharder(one, profile_of(one)))
    (_, of_collection), *_ = model.fused_optimizer.optimizers
    of_collection.optimizers[0][1].set_optimizer_step(7)
    with pytest.raises(FAEError, match=r"Adam has trained for \[0.0, 7.0\] steps"):
        model(Batch(fed(one)[0]))


def _worst(rank: int, one: Case) -> float:
    """The largest difference to the stock sharder, with lookups between the steps."""
    whole = [kjt for _, kjt in batches(one, rank)]
    stock = _trained(one, stock_sharder(one), whole)
    fae = _trained(one, fae_sharder(one, profile_of(one)), fed(one, rank))
    return max(difference(stock, fae).values())


def _trained(one: Case, sharder: Any, feed: list[KeyedJaggedTensor]) -> Trained:
    model = build(one, sharder)
    outputs: list[Tensor] = []
    for number, kjt in enumerate(feed):
        with torch.set_grad_enabled(number % 2 == 0):
            outputs.append(model(Batch(kjt))[1])
    result = train(one, model, feed)
    return replace(result, outputs=[*outputs, *result.outputs])
