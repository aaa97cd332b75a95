"""Batches whose bags are of several inputs at once (VBE)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.batches import Batch
from tests.fae.cases import Case, profile_of
from tests.fae.compared import difference
from tests.fae.parity import build, fae_sharder, stock_sharder, train
from tests.fae.random_cases import with_processors
from tests.fae.ranks import Ranks
from tests.fae.small import case
from trainobs.core.errors import FAEError
from trainobs.fae.kjt.expand import expanded

TOLERANCE = 4e-6
BATCHES, INPUTS = 3, 5
SHARDINGS = ["table_wise", "row_wise", "column_wise"]


@pytest.mark.parametrize("sharding", SHARDINGS[1:])  # TorchRec itself has no other on hosts,
@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
@pytest.mark.usefixtures("lone_rank")
def test_they_train_what_the_stock_collection_trains(mode: str, sharding: str) -> None:
    one = case(sharding, mode=mode, weighted=sharding == "row_wise")
    if one.weighted:
        sums = tuple(replace(table, pooling=PoolingType.SUM) for table in one.tables)
        one = replace(one, tables=sums)
    assert _worst(0, one, lambda kjt: kjt) < TOLERANCE


@pytest.mark.parametrize("sharding", SHARDINGS)  # and none at all on two
def test_ranks_train_what_a_bag_for_each_input_trains(pair: Ranks, sharding: str) -> None:
    assert max(pair.run(_worst, case(sharding, 2))) < TOLERANCE


def test_weights_are_learned_as_with_a_bag_for_each_input(pair: Ranks) -> None:
    one = with_processors(case("row_wise", 2), "collection")
    assert max(pair.run(_worst, one)) < TOLERANCE


def test_each_input_gets_the_bags_that_are_its_own() -> None:
    (kjt, *_) = _batches(case(), 0)
    inverse = kjt.inverse_indices()[1]
    whole = expanded(kjt).to_dict()
    for key, of_inputs in zip(kjt.keys(), inverse, strict=True):
        bags = kjt[key].to_dense()
        for bag, mine in zip(of_inputs, whole[key].to_dense(), strict=True):
            assert torch.equal(bags[int(bag)], mine)


@pytest.mark.usefixtures("lone_rank")
def test_what_nobody_knows_the_inputs_of_is_refused() -> None:
    (kjt, *_) = _batches(case(), 0)
    model = build(case(), fae_sharder(case(), profile_of(case())))
    keys, indices = kjt.inverse_indices()
    for known, lacking in ((None, "f0"), ((keys[:1], indices[:1]), "f1")):
        kjt._inverse_indices = known
        with pytest.raises(FAEError, match=f"no inverse indices of feature '{lacking}'"):
            model(Batch(kjt))


@pytest.mark.usefixtures("lone_rank")
def test_clipped_gradients_and_sequences_are_refused() -> None:
    (kjt, *_) = _batches(case(), 0)
    sharder: Any = fae_sharder(case("row_wise"), profile_of(case()))
    sharder._fused_params = {"gradient_clipping": True}
    one = case("row_wise")
    rows = replace(one, tables=tuple(replace(t, sharding="row_wise") for t in one.tables))
    with pytest.raises(FAEError, match="gradient_clipping, which TorchRec does"):
        build(rows, sharder)(Batch(kjt))
    one = case(sequences=True)
    with pytest.raises(FAEError, match="give each input sequences of its own"):
        build(one, fae_sharder(one, profile_of(one)))(Batch(kjt))


def _batches(one: Case, rank: int) -> list[KeyedJaggedTensor]:
    """Each feature with fewer bags than inputs, another number of each."""
    rng = np.random.default_rng([one.seed, rank])
    found = []
    for _ in range(BATCHES):
        keys, lengths, values, strides, inverse = [], [], [], [], []
        for table in one.tables:
            for feature in table.features:
                bags = int(rng.integers(2, INPUTS))
                counts = rng.integers(0, 4, size=bags)
                keys.append(feature)
                strides.append([bags])
                lengths.append(counts)
                values.append(rng.integers(0, table.rows, size=counts.sum()))
                inverse.append(rng.integers(0, bags, size=INPUTS))
        found.append(
            KeyedJaggedTensor(
                keys=keys,
                values=torch.tensor(np.concatenate(values), dtype=torch.int64),
                lengths=torch.tensor(np.concatenate(lengths), dtype=torch.int32),
                weights=torch.rand(sum(map(len, values)))
                if one.weighted and not one.processed
                else None,
                stride_per_key_per_rank=strides,
                inverse_indices=(keys, torch.tensor(np.stack(inverse))),
            )
        )
    return found


def _worst(rank: int, one: Case, given: Callable[..., KeyedJaggedTensor] = expanded) -> float:
    """The largest difference to TorchRec, which is given other batches."""
    feed = _batches(one, rank)
    stock = train(one, build(one, stock_sharder(one)), [given(kjt) for kjt in feed])
    fae = train(one, build(one, fae_sharder(one, profile_of(one))), feed)
    return max(difference(stock, fae).values())
