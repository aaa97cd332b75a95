"""Splitting hot lookups from cold ones, against a loop over single lookups."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.batches import remark
from tests.fae.packing import KEYS, ROWS, make_input, profile, to_batch
from trainobs.core.errors import FAEError
from trainobs.fae import FAEProfile, TableProfile, pack
from trainobs.fae.kjt import split as split_module
from trainobs.fae.kjt.bitmap import HotBitmap, bitmap_bytes
from trainobs.fae.kjt.split import SlotMap, cold_count, is_split, read_mark, split

PROFILE = profile()
SLOTS = SlotMap.from_profile(PROFILE)
HOT = {name: table.hot_ids.tolist() for table in PROFILE.tables for name in table.features}


def by_hand(kjt: KeyedJaggedTensor) -> tuple[list[float], list[int], list[float]]:
    """Values, lengths and weights of the split batch."""
    values, lengths, weights = [], [], []
    if not kjt.stride():  # TorchRec makes no dict of such a batch
        return values, lengths, weights
    bags = {key: jagged.to_dense() for key, jagged in kjt.to_dict().items()}
    own = {key: jagged.to_dense_weights() for key, jagged in kjt.to_dict().items()}
    for hot_half in (False, True):
        for key in list(kjt.keys()):
            if hot_half and key not in HOT:
                continue
            for i, bag in enumerate(bags[key]):
                chosen = [
                    j for j, row in enumerate(bag.tolist()) if (row in HOT.get(key, ())) == hot_half
                ]
                lengths.append(len(chosen))
                rows = [int(bag[j]) for j in chosen]
                values += [HOT[key].index(row) for row in rows] if hot_half else rows
                if own[key] is not None:
                    weights += [float(own[key][i][j]) for j in chosen]
    return values, lengths, weights


@pytest.mark.parametrize("seed", range(60))
def test_a_split_batch_is_the_one_made_by_hand(seed):
    generator = np.random.default_rng(seed)
    first, count, most = (int(n) for n in generator.integers([0, 0, 1], [999, 20, 6]))
    dtype = [torch.int64, torch.int32][seed % 2]
    inputs = [make_input(first + i, most) for i in range(count)]
    kjt = to_batch(inputs, weighted=seed % 3 > 0, dtype=dtype).sparse_features
    if seed % 5 == 0:
        lengths = kjt.lengths().to([torch.int64, torch.int16, torch.uint8][seed % 3])
        kjt = KeyedJaggedTensor(
            kjt.keys(), kjt.values(), kjt.weights_or_none(), lengths, stride=count
        )
    elif seed % 5 == 1 and count:
        kjt = KeyedJaggedTensor(
            kjt.keys(), kjt.values(), kjt.weights_or_none(), offsets=kjt.offsets()
        )
    found = split(kjt, SLOTS)
    values, lengths, weights = by_hand(kjt)
    assert found.values().tolist() == values
    assert found.lengths().tolist() == lengths
    assert found.values().dtype == dtype
    assert found.stride() == count
    assert (found.weights_or_none() is None) == (kjt.weights_or_none() is None)
    assert found.weights_or_none() is None or found.weights().tolist() == weights
    assert found.length_per_key_or_none() == torch.tensor(lengths).view(7, count).sum(1).tolist()


def a_split_batch() -> KeyedJaggedTensor:
    return split(to_batch([make_input(i) for i in range(9)]).sparse_features, SLOTS)


def by_torch(kjt):
    file = io.BytesIO()
    torch.save(kjt, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "way",
    [
        lambda kjt: kjt.to(torch.device("meta")),
        lambda kjt: pickle.loads(pickle.dumps(kjt)),
        copy.deepcopy,
        by_torch,
        lambda kjt: pytree.tree_map_only(torch.Tensor, torch.clone, kjt),
        lambda kjt: kjt.permute(list(range(7))),
        lambda kjt: KeyedJaggedTensor.concat(kjt.split([4, 3])),
    ],
)
def test_the_mark_lives_through_whatever_happens_to_a_batch(way):
    mark = read_mark(a_split_batch())
    assert mark is not None
    assert mark == read_mark(way(a_split_batch()))
    assert mark.features == KEYS
    assert mark.hot_features == ("f0", "f1", "f2")
    assert mark.fingerprint == PROFILE.fingerprint
    assert not mark.pure


def test_how_many_lookups_are_cold_is_known_without_the_device():
    kjt = a_split_batch().to(torch.device("meta"))
    assert kjt.length_per_key_or_none() == a_split_batch().length_per_key()
    rows = {name: a_split_batch()[name].values().tolist() for name in KEYS}
    assert rows["unserved"]
    assert cold_count(kjt, read_mark(kjt)) == sum(len(rows[name]) for name in ROWS) > 0


def test_the_kind_is_in_the_keys_alone():
    kjt = a_split_batch()
    pure = remark(kjt, read_mark(kjt)._replace(pure=True))
    assert read_mark(pure).pure
    assert pure.values().data_ptr() == kjt.values().data_ptr()
    assert read_mark(remark(pure, read_mark(pure)._replace(pure=False))) == read_mark(kjt)


def test_a_batch_that_nobody_split_has_no_mark():
    assert not is_split(to_batch([make_input(0)]).sparse_features)
    assert not is_split(KeyedJaggedTensor([], torch.tensor([]), lengths=torch.tensor([])))


def kjt_of(values, lengths, keys=("f1",), **more) -> KeyedJaggedTensor:
    return KeyedJaggedTensor(list(keys), values, lengths=torch.tensor(lengths), **more)


@pytest.mark.parametrize(
    ("kjt", "found"),
    [
        (lambda: kjt_of(torch.tensor([1.0]), [1]), "ids of torch.float32"),
        (lambda: kjt_of(torch.tensor([1, 2, 3]), [2]), "3 ids and lengths that add up to [2]"),
        (lambda: kjt_of(torch.tensor([1]), [1], ("other",)), "features ['other'], none of which"),
        (a_split_batch, "one that is split already"),
        (lambda: KeyedJaggedTensor([], torch.zeros(0, dtype=torch.int64)), "features [], none of"),
        (
            lambda: kjt_of(torch.tensor([1, 2]), [1, 1], stride_per_key_per_rank=[[2]]),
            "a stride for each key (VBE)",
        ),
        (
            lambda: kjt_of(
                torch.tensor([1]), [1], inverse_indices=(["f1"], torch.tensor([[0, 0]]))
            ),
            "a stride for each key (VBE), or inverse indices",
        ),
    ],
)
def test_what_cannot_be_split_is_refused_with_three_lines(kjt, found):
    with pytest.raises(FAEError) as error:
        split(kjt(), SLOTS)
    assert found in error.value.found
    assert len(str(error.value).splitlines()) == 3


def test_slots_of_a_large_table_are_exact():
    # The artifact of the paper kept ids as float32, in which these two are one.
    rows = 2**24 + 3
    slots = torch.full((rows,), -1, dtype=torch.int32)
    slots[2**24 + 1] = 0
    large = SlotMap({"f": slots}, "mark")
    found = split(kjt_of(torch.tensor([2**24, 2**24 + 1]), [2], ("f",)), large)
    assert found.values().tolist() == [2**24, 0]
    assert found.lengths().tolist() == [1, 1]


@pytest.mark.parametrize("ids", [[1, 7], [1, -1], [1, 2**40]])
def test_ids_outside_their_table_are_left_to_the_table(ids, caplog):
    split_module._TOLD.clear()
    hot = HOT["f1"][0]
    found = split(kjt_of(torch.tensor([hot, *ids]), [3]), SLOTS)
    told = [slots for slots in found.values().tolist() if slots == ids[1]]
    assert told == [ids[1]]
    assert found.length_per_key()[1] == 1 + (ids[0] in HOT["f1"])
    assert f"feature 'f1' asks for rows that are not there: id {ids[1]}, 1 of 3" in caplog.text


def test_an_input_with_such_an_id_is_packed_into_a_mixed_batch():
    hot = HOT["f1"][0]
    loader = [kjt_of(torch.tensor([hot, 99, hot, hot]), [1] * 4) for _ in range(4)]
    of = FAEProfile(tuple(t for t in PROFILE.tables if "f1" in t.features), 1 << 20)
    packed = list(pack(loader, of, window=4))
    marks = [read_mark(kjt) for kjt in packed]
    assert [mark is None for mark in marks].count(True) == 1  # whole: the sharder replaces the id
    for kjt, mark in zip(packed, marks, strict=True):
        assert mark is None or mark.pure
        assert int((kjt.values() == 99).sum()) == 4 * (mark is None)


def test_a_bitmap_finds_what_a_map_of_slots_finds():
    random = np.random.default_rng(1)
    for _ in range(20):
        tables = []
        for i in range(random.integers(1, 4)):
            rows = int(random.integers(1, 2000))
            hot = np.flatnonzero(random.random(rows) < random.choice([0, 0.1, 1.0]))
            tables.append(TableProfile(f"t{i}", rows, 4, (f"a{i}", f"b{i}"), hot, 16))
        of = FAEProfile(tuple(tables), 1 << 20)
        keys = [key for t in tables for key in t.features]
        ids = [torch.from_numpy(random.integers(0, t.row_count, 50)) for t in tables for _ in "ab"]
        kjt = kjt_of(torch.cat(ids), [50] * len(keys), keys)
        found = HotBitmap(of, torch.device("cpu")).lookup(kjt)
        assert torch.equal(found.slots, SlotMap.from_profile(of).lookup(kjt))
        assert not found.is_bad.any()


def test_a_bitmap_takes_less_than_a_byte_a_row():
    row_counts = [1 << 20, 12_345]
    tables = [
        TableProfile(f"t{i}", rows, 4, (f"f{i}",), np.arange(0, rows, 3), 16)
        for i, rows in enumerate(row_counts)
    ]
    bitmap = HotBitmap(FAEProfile(tuple(tables), 1 << 30), torch.device("cpu"))
    bytes_taken = sum(t.numel() * t.element_size() for t in (bitmap._blocks, bitmap._octets))
    assert bitmap_bytes(row_counts) == pytest.approx(bytes_taken, abs=16)
    assert bytes_taken < 0.3 * sum(row_counts)


def test_a_feature_that_looks_up_tables_with_other_hot_rows_stays_cold():
    def table(name: str, features: tuple[str, ...], hot: int = 8) -> TableProfile:
        return TableProfile(name, 8, 4, features, np.arange(hot), 32)

    of = FAEProfile((table("a", ("x", "y")), table("b", ("y",), 7), table("c", ("z",))), 1 << 20)
    slots = SlotMap.from_profile(of)
    kjt = kjt_of(torch.tensor([1, 2, 3]), [1, 1, 1], ("x", "y", "z"))
    found = split(kjt, slots)
    assert found.length_per_key() == [1, 1, 0, 0, 0, 1]
    assert cold_count(found, read_mark(found)) == 2
    batches = [kjt, kjt_of(torch.tensor([4]), [0, 0, 1], ("x", "y", "z"))]
    marks = [read_mark(batch) for batch in pack(batches, of, batch_size=None, window=2)]
    assert sorted(mark.pure for mark in marks) == [False, True]


def test_features_of_one_table_share_its_slots():
    assert SLOTS.slots["f0"] is SLOTS.slots["f2"]
    assert {name: len(slots) for name, slots in SLOTS.slots.items()} == ROWS
