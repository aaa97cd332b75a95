"""Ids outside of their table: trained as TorchRec and FBGEMM train them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.batches import Batch
from tests.fae.cases import Case, profile_of
from tests.fae.compared import difference
from tests.fae.parity import SEQUENCES, build, fae_sharder, train
from tests.fae.parity import stock_sharder as stock
from tests.fae.ranks import Ranks
from tests.fae.small import case
from trainobs.fae import pack

BAD = [20, 21, 25, 100, 2**31 - 1, -2, -3, -100]
MODES = pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])


@MODES
@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
def test_bad_ids_train_what_they_train_in_the_stock_collection(mode: str, sequences: bool) -> None:
    assert _worst(0, _case("table_wise", 1, mode, sequences), torch.int64) < 4e-6


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_they_do_in_packed_batches(mode: str) -> None:
    one = _case("table_wise", 1, mode, False)
    assert _worst(0, one, torch.int64, packs=True) < 4e-6


@MODES
@pytest.mark.parametrize("sharding", ["table_wise", "row_wise"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_they_do_on_two_ranks(pair: Ranks, mode: str, sharding: str, dtype: torch.dtype) -> None:
    assert max(pair.run(_worst, _case(sharding, 2, mode, False), dtype)) < 4e-6


@pytest.mark.usefixtures("lone_rank")
def test_fbgemms_mode_decides() -> None:
    one = _case("table_wise", 1, "overlay", False)
    for sharder in (stock(one), fae_sharder(one, profile_of(one))):
        sharder._fused_params = {"bounds_check_mode": BoundsCheckMode.FATAL}
        with pytest.raises(RuntimeError, match="idx < num_rows"):
            build(one, sharder)(Batch(_bad(0, torch.int64)))


def _case(sharding: str, world_size: int, mode: str, sequences: bool) -> Case:
    one = case(sharding, world_size, mode=mode, sequences=sequences, inputs=len(BAD))
    first = replace(one.tables[0], hot=(0, 1, 5, 10, 11, 12), pooling=PoolingType.SUM)
    return replace(one, tables=(first,))


def _bad(rank: int, dtype: torch.dtype) -> KeyedJaggedTensor:
    """Each bad id, beside a row that is there."""
    ids = [row for bad in BAD for row in (bad, rank)]
    return KeyedJaggedTensor(["f0"], torch.tensor(ids, dtype=dtype), lengths=torch.tensor([2] * 8))


def _worst(rank: int, one: Case, dtype: torch.dtype, packs: bool = False) -> float:
    runs: list[Any] = []
    for sharder in (stock(one), fae_sharder(one, profile_of(one))):
        # a new batch each time: FBGEMM writes to the ids
        feed = [_bad(rank, dtype) for _ in range(3)]
        if packs and runs:
            feed = list(pack(feed, profile_of(one), window=1))
        runs.append(train(one, build(one, sharder), feed))
    return max(difference(*runs).values())
