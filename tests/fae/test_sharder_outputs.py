"""Embeddings of half precision.

FBGEMM gives no bfloat16 on hosts but through `tests.fae.host_adam`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torchrec.modules.embedding_configs import DataType, PoolingType, data_type_to_dtype

from tests.fae.batches import batches
from tests.fae.cases import Case, profile_of
from tests.fae.compared import Trained, difference, local
from tests.fae.parity import SEQUENCES, build, fae_sharder, stock_sharder
from tests.fae.ranks import Ranks
from tests.fae.small import case, fed

EPSILON = {DataType.FP16: 2**-10, DataType.BF16: 2**-7}
KINDS = ("mixed", "pure", "plain", "pure")
HALVES = pytest.mark.parametrize(
    "half",
    [{"output_type": DataType.FP16}, {"output_type": DataType.BF16, "optimizer": "adam"}],
    ids=["float16", "bfloat16"],
)


@HALVES
@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_they_are_those_of_the_stock_collection(mode: str, sequences: bool, half: Any) -> None:
    one = case(mode=mode, kinds=KINDS, sequences=sequences, **half)
    assert _worst(0, one) < EPSILON[one.output_type]


@SEQUENCES
@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_they_are_on_two_ranks(pair: Ranks, mode: str, sequences: bool) -> None:
    half = DataType.FP16
    one = case("table_wise", 2, mode=mode, kinds=KINDS, sequences=sequences, output_type=half)
    assert max(pair.run(_worst, one)) < EPSILON[one.output_type]


@SEQUENCES
@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_a_rank_without_tables_takes_part(pair: Ranks, mode: str, sequences: bool) -> None:
    """With the stock sharder it sends and expects float32, and gloo ends the processes."""
    half = DataType.FP16
    one = case("table_wise", 2, mode=mode, kinds=KINDS, sequences=sequences, output_type=half)
    one = replace(one, tables=one.tables[:1])
    assert max(pair.run(_worst_of_float, one)) < EPSILON[half]


@HALVES
@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
def test_pure_batches_give_the_same_bits(sequences: bool, half: Any) -> None:
    one = case("table_wise", kinds=("pure",), sequences=sequences, **half)
    one = replace(one, tables=tuple(replace(t, pooling=PoolingType.SUM) for t in one.tables))
    stock, fae = (_trained(0, one, is_stock) for is_stock in (True, False))
    assert stock.losses == fae.losses == [1.0]
    assert torch.equal(stock.outputs[0], fae.outputs[0])


def _worst(rank: int, one: Case) -> float:
    return max(difference(_trained(rank, one, True), _trained(rank, one, False)).values())


def _worst_of_float(rank: int, one: Case) -> float:
    whole = replace(one, output_type=DataType.FP32)
    return max(difference(_trained(rank, whole, True), _trained(rank, one, False)).values())


def _trained(rank: int, one: Case, is_stock: bool) -> Trained:
    """Outputs and weights; in the place of losses, whether all embeddings were of the type."""
    sharder: Any = stock_sharder(one) if is_stock else fae_sharder(one, profile_of(one))
    model = build(one, sharder)
    collection = model.module.collection
    result, types = Trained([], [], {}), set()
    for kjt in [kjt for _, kjt in batches(one, rank)] if is_stock else fed(one, rank):
        found = collection(kjt)
        parts = (
            [found[feature].values() for table in one.tables for feature in table.features]
            if one.sequences
            else [found.values()]
        )
        types.update(part.dtype for part in parts)
        output = torch.cat([part.float().flatten() for part in parts])
        output.pow(2).sum().backward()
        result.outputs.append(output.detach())
    result.weights = {name: local(value) for name, value in model.state_dict().items()}
    half = data_type_to_dtype(one.output_type)  # TorchRec itself gives float32 for some plans
    result.losses = [float(types == {half})]
    return result
