"""Ids outside of their table: trained as TorchRec and FBGEMM train them."""

from __future__ import annotations

import logging
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
from trainobs.fae.kjt import split

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


@MODES
@pytest.mark.usefixtures("lone_rank")
def test_a_batch_that_is_refused_is_not_counted(mode: str) -> None:
    one = _case("table_wise", 1, mode, False)
    sharder = fae_sharder(one, profile_of(one))
    sharder._fused_params = {"bounds_check_mode": BoundsCheckMode.FATAL}
    model = build(one, sharder)
    with pytest.raises(RuntimeError, match="idx < num_rows"):
        model(Batch(_bad(0, torch.int64)))
    model(Batch(_of_tables(one, _bad(0, torch.int64), is_bad=False)))
    counted = model.module.collection.served_by_hot_rows.totals()
    assert (counted.batch_count, counted.lookup_count) == (1, 16)


@pytest.mark.usefixtures("lone_rank")
def test_a_warning_says_what_becomes_of_bad_ids(caplog: pytest.LogCaptureFixture) -> None:
    one = _case("table_wise", 1, "overlay", False)
    model = build(one, fae_sharder(one, profile_of(one)))
    split._TOLD.clear()
    logging.disable(logging.NOTSET)
    model(Batch(_bad(0, torch.int64)))
    logging.disable(logging.WARNING)
    assert "feature 'f0' asks for rows that are not there: id 20, 8 of 16 ids" in caplog.text
    assert "take their place (bounds_check_mode WARNING of table 't0')" in caplog.text


def _case(sharding: str, world_size: int, mode: str, sequences: bool) -> Case:
    one = case(sharding, world_size, mode=mode, sequences=sequences, inputs=len(BAD))
    first = replace(one.tables[0], hot=(0, 1, 5, 10, 11, 12), pooling=PoolingType.SUM)
    return replace(one, tables=(first,))


def _bad(rank: int, dtype: torch.dtype) -> KeyedJaggedTensor:
    """Each bad id, beside a row that is there."""
    ids = [row for bad in BAD for row in (bad, rank)]
    return KeyedJaggedTensor(["f0"], torch.tensor(ids, dtype=dtype), lengths=torch.tensor([2] * 8))


def _worst(
    rank: int, one: Case, dtype: torch.dtype, packs: bool = False, is_bad: bool = True
) -> float:
    runs: list[Any] = []
    for sharder in (stock(one), fae_sharder(one, profile_of(one))):
        # a new batch each time: FBGEMM writes to the ids
        feed = [_of_tables(one, _bad(rank, dtype), is_bad) for _ in range(3)]
        if packs and runs:
            feed = list(pack(feed, profile_of(one), window=1))
        runs.append(train(one, build(one, sharder), feed))
    return max(difference(*runs).values())


def _of_tables(one: Case, kjt: KeyedJaggedTensor, is_bad: bool) -> KeyedJaggedTensor:
    """The same lookups for each feature of a case, good ones in the place of bad ones if not."""
    features = sorted({feature for table in one.tables for feature in table.features})
    values = kjt.values() if is_bad else kjt.values().remainder(20)
    times = len(features)
    return KeyedJaggedTensor(features, values.repeat(times), lengths=kjt.lengths().repeat(times))


@MODES
def test_ids_come_with_sequences_as_they_were(pair: Ranks, mode: str) -> None:
    one = replace(_case("row_wise", 2, mode, True), with_ids=True)
    for expected, got in pair.run(_ids, one, torch.int64):
        assert expected == got == _bad(0, torch.int64).values().tolist()


@MODES
@pytest.mark.parametrize("sharding", ["table_wise", "row_wise", "column_wise"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.usefixtures("lone_rank")
def test_ids_come_from_one_rank_as_from_the_stock_collection(
    mode: str, sharding: str, dtype: torch.dtype
) -> None:
    expected, got = _ids(0, replace(_case(sharding, 1, mode, True), with_ids=True), dtype)
    assert expected == got
    is_same = got == _bad(0, dtype).values().tolist()
    assert is_same == (sharding == "row_wise" or dtype == torch.int32)


@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
@pytest.mark.parametrize("hot", [(0, 1, 5, 10, 11, 12), (0, 1)], ids=["alike", "other rows hot"])
@pytest.mark.usefixtures("lone_rank")
def test_ids_of_one_feature_differ_by_the_plans_of_its_tables(
    mode: str, hot: tuple[int, ...]
) -> None:
    first, second = _in_two_tables(mode, world_size=1).tables
    one = replace(_case("row_wise", 1, mode, True), with_ids=True)
    one = replace(one, tables=(first, replace(second, hot=hot)))
    expected, got = _ids(0, one, torch.int64)
    assert expected == got
    assert got[:16] != got[16:]


def _ids(rank: int, one: Case, dtype: torch.dtype) -> list[list[float]]:
    runs = []
    for sharder in (stock(one), fae_sharder(one, profile_of(one))):
        found = build(one, sharder).module.collection(_bad(0, dtype))
        runs.append(torch.cat([output.weights() for output in found.values()]).tolist())
    return runs


@MODES
@pytest.mark.parametrize("bad_ranks", [(0,), (1,), (0, 1)])
def test_tables_that_take_different_rows_for_an_id_are_refused_on_all_ranks(
    pair: Ranks, mode: str, bad_ranks: tuple[int, ...]
) -> None:
    for said in pair.run(_said, _in_two_tables(mode), bad_ranks, patience_s=60):
        if mode == "paper":  # where the tables serve such a batch
            assert said < 4e-6
        else:
            assert f"ids of feature 'f0' on rank {bad_ranks[0]} that are outside of its" in said


@MODES
def test_they_are_not_where_no_row_is_hot(pair: Ranks, mode: str) -> None:
    one = _in_two_tables(mode)
    cold = tuple(replace(table, hot=()) for table in one.tables)
    other = replace(one.tables[0], name="t2", features=("f1",))
    for said in pair.run(_said, replace(one, tables=(*cold, other)), (0, 1)):
        assert said < 4e-6


def _in_two_tables(mode: str, world_size: int = 2) -> Case:
    """One feature, in tables that are split by row and by nothing."""
    one = _case("row_wise", world_size, mode, True)
    second = replace(one.tables[0], name="t1", sharding="table_wise")
    return replace(one, tables=(*one.tables, second))


def _said(rank: int, one: Case, bad_ranks: tuple[int, ...]) -> float | str:
    try:
        return _worst(rank, one, torch.int64, is_bad=rank in bad_ranks)
    except FAEError as error:
        return error.found
