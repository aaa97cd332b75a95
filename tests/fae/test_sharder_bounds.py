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
from trainobs.core.errors import FAEError
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


@MODES
def test_ids_come_with_sequences_as_they_were(pair: Ranks, mode: str) -> None:
    one = replace(_case("row_wise", 2, mode, True), with_ids=True)
    for expected, got in pair.run(_ids, one):
        assert expected == got == _bad(0, torch.int64).values().tolist()


def _ids(rank: int, one: Case) -> list[list[float]]:
    models = (build(one, sharder) for sharder in (stock(one), fae_sharder(one, profile_of(one))))
    return [m.module.collection(_bad(0, torch.int64))["f0"].weights().tolist() for m in models]


@MODES
def test_tables_that_take_different_rows_for_an_id_are_refused(pair: Ranks, mode: str) -> None:
    one = case("row_wise", 2, mode=mode, sequences=True, inputs=len(BAD))
    first = replace(one.tables[0], hot=(0, 1, 5, 10, 11, 12))
    second = replace(first, name="t1", sharding="table_wise")
    both = replace(one, tables=(first, second))
    for said in pair.run(_said, both):
        if mode == "paper":  # where the tables serve such a batch
            assert said < 4e-6
        else:
            assert "ids of feature 'f0' that are outside of its tables, which are split" in said


def _said(rank: int, one: Case) -> float | str:
    try:
        return _worst(rank, one, torch.int64)
    except FAEError as error:
        return error.found
