"""The packer's batches, trained on with hot rows."""

from __future__ import annotations

import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.batches import batches
from tests.fae.cases import profile_of
from tests.fae.compared import difference
from tests.fae.parity import build, train
from tests.fae.ranks import Ranks
from tests.fae.sharders import StockSharder
from tests.fae.test_sharder_behaviour import case
from trainobs.fae import FAEEmbeddingBagCollectionSharder, pack
from trainobs.fae.kjt.split import read_mark
from trainobs.fae.sharding.batch import SlotRows, join


def test_what_the_packer_gives_trains_as_whole_batches_do(pair: Ranks) -> None:
    results = pair.run(_pack_and_train)
    assert [kinds for kinds, _ in results] == [results[0][0]] * 2
    assert set(results[0][0]) == {True, False}  # pure and mixed steps
    assert max(worst for _, worst in results) < 4e-6


def _pack_and_train(rank: int) -> tuple[list[bool], float]:
    """Train on packed batches, and by the stock sharder on the same inputs in the same order."""
    kinds = ("mixed", "pure", "pure", "mixed", "pure", "mixed", "pure", "pure")
    one = case(world_size=2, kinds=kinds)
    profile = profile_of(one)
    loader = [kjt for _, kjt in batches(one, rank)]
    packed = list(pack(loader, profile, seed=1))
    marks = [read_mark(kjt) for kjt in packed]
    assert None not in marks
    slots = SlotRows.from_profile(profile, torch.device("cpu"))
    whole = [_whole(kjt, slots) for kjt in packed]
    expected = train(one, build(one, StockSharder()), whole)
    got = train(one, build(one, FAEEmbeddingBagCollectionSharder(profile)), packed)
    return [mark.pure for mark in marks if mark], max(difference(expected, got).values())


def _whole(kjt: KeyedJaggedTensor, slots: SlotRows) -> KeyedJaggedTensor:
    mark = read_mark(kjt)
    assert mark is not None
    cold, hot = kjt.split([len(mark.features), len(mark.hot_features)])
    return join(cold, hot, mark.pairs, slots)
