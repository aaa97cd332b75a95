"""The inputs of a window: what is in C takes out of them what its reference in torch does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.packing import KEYS, ROWS, digest, make_input, profile, to_batch
from trainobs.core.errors import FAEError
from trainobs.core.native import loops
from trainobs.fae import pack
from trainobs.fae.kjt.split import Bags, SlotMap
from trainobs.fae.packing import pool_in_c
from trainobs.fae.packing.pool import BagPool

needs_c = pytest.mark.skipif(loops() is None, reason="the part in C is not built")


def random_kjts(draw: np.random.Generator) -> list[KeyedJaggedTensor]:
    """Some batches of one form; with ids that are no rows, too."""
    ids = draw.choice([torch.int32, torch.int64])
    counts = draw.choice([torch.int32, torch.int64, torch.uint8])
    weights = draw.choice([None, torch.float16, torch.float32, torch.float64])
    most = int(draw.choice([1, 1, 4]))

    def kjt() -> KeyedJaggedTensor:
        inputs = int(draw.integers(0, 30))
        size = (len(KEYS), inputs)
        lengths = draw.integers(0, most + 1, size) if most > 1 else np.ones(size, np.int64)
        values = np.concatenate(
            [draw.integers(0, ROWS.get(k, 9), lengths[i].sum()) for i, k in enumerate(KEYS)]
        )
        is_bad = draw.random(len(values)) < 0.01
        values[is_bad] = draw.choice([-1, -(2**31), 40, 2**31 - 1])
        return KeyedJaggedTensor(
            keys=list(KEYS),
            values=torch.from_numpy(values).to(ids),
            lengths=torch.from_numpy(lengths.ravel()).to(counts),
            weights=None if weights is None else torch.rand(len(values)).to(weights),
            stride=inputs,
        )

    return [kjt() for _ in range(draw.integers(1, 5))]


def all_of(pool: BagPool, inputs: torch.Tensor, pairs: list[int] | None) -> list[Any]:
    """What `put` writes and returns."""
    key_count = len(pool.keys) + len(pairs or ())
    (count,) = pool.counts([inputs])
    into = Bags(
        pool.lengths.new_full((key_count * len(inputs),), -9),
        pool.values.new_full((count,), -9),
        None if pool.weights is None else pool.weights.new_full((count,), -9),
    )
    return [pool.put(inputs, pairs, into), *into]


def in_both(kjts: list[KeyedJaggedTensor], slots: SlotMap | None, monkeypatch: Any) -> Any:
    """The pool in C and in torch."""
    in_c = BagPool(kjts, slots)
    monkeypatch.setattr(pool_in_c, "loops", lambda: None)
    in_torch = BagPool(kjts, slots)
    monkeypatch.undo()
    assert in_c._in_c is not None
    assert in_torch._in_c is None
    return in_c, in_torch


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return one == other


@needs_c
@pytest.mark.parametrize("seed", range(300))
def test_c_takes_the_bags_that_torch_takes(seed, monkeypatch):
    draw = np.random.default_rng(seed)
    kjts = random_kjts(draw)
    slots = SlotMap.from_profile(profile(float(draw.choice([0.0, 0.3, 0.7, 1.0])), seed))
    pools = in_both(kjts, slots if seed % 4 else None, monkeypatch)
    count = pools[0].lengths.shape[1]
    inputs = torch.from_numpy(draw.permutation(count)[: draw.integers(0, count + 1)])
    for pairs in ([0, 1, 2], None):
        whole = pairs if seed % 4 else None
        found = [all_of(pool, inputs, whole) for pool in pools]
        assert all(map(same, *found))
    if seed % 4:
        for keys in ([0, 1, 2], [1], [0, 1, 2, 3]):
            assert same(*(pool.all_hot(keys) for pool in pools))


@needs_c
def test_a_difference_of_one_slot_is_seen(monkeypatch):
    kjts = random_kjts(np.random.default_rng(0))
    pools = in_both(kjts, SlotMap.from_profile(profile()), monkeypatch)
    pools[0].slots[3] = -1 if pools[0].slots[3] >= 0 else 0
    inputs = torch.arange(pools[0].lengths.shape[1])
    found = [all_of(pool, inputs, [0, 1, 2]) for pool in pools]
    assert not all(map(same, *found))


def damage_length(pool: BagPool) -> None:
    pool.lengths[0, 0] += 1000


def damage_start(pool: BagPool) -> None:
    pool._starts[-1] = -5


@needs_c
@pytest.mark.parametrize("damage", [damage_length, damage_start])
def test_c_reads_nothing_beside_the_bags(damage):
    kjt = KeyedJaggedTensor(
        keys=list(KEYS),
        values=torch.zeros(12, dtype=torch.int64),
        lengths=torch.tensor([1, 1, 2, 2, 3, 0, 1, 2], dtype=torch.int32),
        stride=2,
    )
    pool = BagPool([kjt], SlotMap.from_profile(profile()))
    inputs = torch.arange(2)
    assert all_of(pool, inputs, [0, 1, 2])
    damage(pool)
    with pytest.raises(RuntimeError, match="bags are not where they were"):
        pool.put(
            inputs, None, Bags(torch.zeros(8, dtype=torch.int32), torch.zeros(12).long(), None)
        )
    with pytest.raises(RuntimeError, match="bags are not where they were"):
        pool.all_hot([0, 1, 2, 3])


@needs_c
@pytest.mark.parametrize("input_number", [-1, 2])
def test_c_takes_no_input_that_is_not_there(input_number):
    kjt = KeyedJaggedTensor(
        keys=["f0"],
        values=torch.zeros(2, dtype=torch.int64),
        lengths=torch.ones(2, dtype=torch.int32),
        stride=2,
    )
    pool = BagPool([kjt], None)
    room = Bags(torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int64), None)
    with pytest.raises(RuntimeError):
        pool.put(torch.tensor([input_number]), None, room)


@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("as_list", [list, tuple])
def test_a_value_for_each_input_is_refused_in_a_list_and_follows_it_in_an_array(window, as_list):
    def source(form):
        batches = [to_batch([make_input(4 * b + i) for i in range(4)]) for b in range(3)]
        users = [[f"u{number}" for number in b.labels.tolist()] for b in batches]
        return [(b.sparse_features, b.labels, form(u)) for b, u in zip(batches, users, strict=True)]

    for batches in (source(as_list), [(k, y, as_list("same")) for k, y, _ in source(as_list)]):
        with pytest.raises(FAEError, match=r"a list at \[2\] that has a value for each input"):
            list(pack(batches, profile(0.9), window=window))
    for _, labels, users in pack(source(np.array), profile(0.9), window=window):
        assert users.tolist() == [f"u{number}" for number in labels.tolist()]
    constants = [(k, y, as_list(["a", "b"]), as_list([1] * 4)) for k, y, _ in source(list)]
    for _, _, names, ones in pack(constants, profile(0.9), window=window):
        assert (names, ones) == (as_list(["a", "b"]), as_list([1] * 4))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16])
def test_ids_of_few_bits_are_packed_as_those_of_more(dtype):
    def source(of_ids):
        return [to_batch([make_input(4 * b + i) for i in range(4)], dtype=of_ids) for b in range(9)]

    few, many = (list(pack(source(each), profile(0.9), window=3)) for each in (dtype, torch.int32))
    assert [digest(batch) for batch in few] == [digest(batch) for batch in many]


@pytest.mark.parametrize("lookups", [1, 2], ids=["one", "bags"])
@pytest.mark.parametrize("weights", [1, 4, 48])
def test_weights_of_another_number_than_the_lookups_are_refused(weights, lookups):
    kjt = KeyedJaggedTensor(
        keys=list(KEYS),
        values=torch.zeros(24, dtype=torch.int64),
        lengths=torch.full((24 // lookups,), lookups, dtype=torch.int32),
        weights=torch.ones(weights),
    )
    with pytest.raises(FAEError, match=r"at \[0\]: "):
        list(pack([(kjt, torch.zeros(6 // lookups))], profile(), window=1))
