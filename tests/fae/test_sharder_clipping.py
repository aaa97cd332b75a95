"""Gradients that the fused optimizer clips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torchrec.modules.embedding_configs import PoolingType

from tests.fae.batches import batches
from tests.fae.cases import Case, profile_of
from tests.fae.compared import Trained, difference
from tests.fae.parity import SEQUENCES, build, fae_sharder, train
from tests.fae.parity import stock_sharder as stock
from tests.fae.random_cases import with_processors
from tests.fae.ranks import Ranks
from tests.fae.small import case, fed

CLIPPED = {"gradient_clipping": True, "max_gradient": 1e-3}
KINDS = ("mixed", "pure", "plain", "pure")


@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_they_are_clipped_as_in_the_stock_collection(mode: str, sequences: bool) -> None:
    assert _worst(0, _case(1, mode, sequences)) < 4e-6


@SEQUENCES
@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_they_are_on_two_ranks(pair: Ranks, mode: str, sequences: bool) -> None:
    assert max(pair.run(_worst, _case(2, mode, sequences))) < 4e-6


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("world_size", [1, 2])
def test_weights_are_learned_from_clipped_gradients(world_size: int, pair: Ranks) -> None:
    one = with_processors(_case(world_size, "overlay", False), "features")
    if world_size == 2:
        assert max(pair.run(_worst, one)) < 4e-6
    else:
        assert _worst(0, one) < 4e-6


def _case(world_size: int, mode: str, sequences: bool) -> Case:
    one = case(world_size=world_size, mode=mode, kinds=KINDS, sequences=sequences)
    first, second = one.tables
    sums = (replace(first, pooling=PoolingType.MEAN), replace(second, pooling=PoolingType.SUM))
    return replace(one, tables=sums, optimizer="sgd")


def _clipping(sharder: Any) -> Any:
    of_tables = getattr(sharder, "_ebc_sharder", sharder)  # under feature processors
    of_tables._fused_params = CLIPPED
    return sharder


def _worst(rank: int, one: Case) -> float:
    """The largest difference to the stock sharder, which clips."""
    torch.manual_seed(0)
    whole = [kjt for _, kjt in batches(one, rank)]
    free = train(one, build(one, stock(one)), whole)
    runs: list[Trained] = [train(one, build(one, _clipping(stock(one))), whole)]
    runs.append(
        train(one, build(one, _clipping(fae_sharder(one, profile_of(one)))), fed(one, rank))
    )
    assert max(difference(free, runs[0]).values()) > 1e-4
    return max(difference(*runs).values())
