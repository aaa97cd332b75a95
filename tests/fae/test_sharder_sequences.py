"""Sequences: lookups that are not pooled, and so must keep their order."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchrec.datasets.utils import Batch
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.modules.embedding_configs import (
    DataType,
    EmbeddingBagConfig,
    EmbeddingConfig,
    PoolingType,
)
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from tests.fae import packing
from tests.fae.batches import batches, packed
from tests.fae.cases import Case, Table, profile_of
from tests.fae.compared import difference, local
from tests.fae.parity import build, fae_sharder, plan_of, stock_sharder, train
from tests.fae.ranks import Ranks
from tests.fae.small import whole
from trainobs.core.errors import FAEError
from trainobs.fae import (
    FAEEmbeddingBagCollectionSharder,
    FAEEmbeddingCollectionSharder,
    FAEProfile,
    TableProfile,
    calibrate,
    pack,
)
from trainobs.fae.kjt.find import KjtFinder
from trainobs.fae.kjt.split import SlotMap, read_mark, split
from trainobs.fae.packing.window import Packer
from trainobs.fae.sharding.batch import FeatureSequence

pytestmark = pytest.mark.usefixtures("lone_rank")


def case(**changes: object) -> Case:
    """A table of sequences, half of whose rows are hot."""
    table = Table("t0", 20, 8, PoolingType.SUM, ("f0", "f1"), "row_wise", tuple(range(0, 20, 2)))
    plain = Case(3, 1, (table,), "sgd", False, False, ("plain",) * 4, 4, sequences=True)
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_lookups_in_another_order_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one = case()
    feed = [kjt for _, kjt in batches(one, 0)]
    stock = train(one, build(one, stock_sharder(one)), feed)
    fae = fae_sharder(one, profile_of(one))
    assert max(difference(stock, train(one, build(one, fae), feed)).values()) < 4e-6

    def unordered(self: FeatureSequence, cold: Tensor, hot: Tensor) -> Tensor:
        return torch.cat([cold, hot])

    monkeypatch.setattr(FeatureSequence, "merged", unordered)  # the control
    assert max(difference(stock, train(one, build(one, fae), feed)).values()) > 1e-3


@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
@pytest.mark.parametrize("second", ["table_wise", "row_wise"])
@pytest.mark.parametrize("first", ["adam", "sgd"])
def test_embeddings_in_no_loss_are_trained_as_in_the_stock_collection(
    mode: str, second: str, first: str
) -> None:
    assert _worst_unused(0, 1, mode, second, first) < 4e-6


@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
@pytest.mark.parametrize("second", ["table_wise", "row_wise"])
def test_they_are_on_two_ranks(pair: Ranks, mode: str, second: str) -> None:
    assert max(pair.run(_worst_unused, 2, mode, second, "sgd")) < 4e-6


def _worst_unused(rank: int, world_size: int, mode: str, second: str, first: str) -> float:
    """The difference where a table, planned in the same way or another, is in some losses only.

    `first` is the optimizer of the other table.
    """
    tables = tuple(
        Table(f"t{i}", 20, 8, PoolingType.SUM, (f"f{i}",), sharding, tuple(range(0, 20, 2)))
        for i, sharding in enumerate(("table_wise", second))
    )
    tables = (replace(tables[0], optimizer=first), tables[1])
    one = case(mode=mode, tables=tables, optimizer="adam", world_size=world_size)
    one = replace(one, kinds=("pure", "plain", "mixed", "pure"))
    slots, runs = SlotMap.from_profile(profile_of(one)), []
    for sharder in (stock_sharder(one), fae_sharder(one, profile_of(one))):
        model, feed = build(one, sharder), batches(one, rank)
        if runs:
            feed = [(kind, packed(kind, kjt, slots)) for kind, kjt in feed]
        train(one, model, [kjt for _, kjt in feed[:2]])  # so that Adam has averages to train by
        model.module.features = ["f0"]
        runs.append(train(one, model, [kjt for _, kjt in feed[2:]]))
    return max(difference(*runs).values())


def test_a_batch_that_lost_its_order_is_refused() -> None:
    one = case(kinds=("mixed",))
    ((_, kjt),) = batches(one, 0)
    collection = build(one, fae_sharder(one, profile_of(one))).module.collection
    with pytest.raises(FAEError, match="came apart, and so without the order"):
        collection(split(kjt, SlotMap.from_profile(profile_of(one))))
    assert collection(kjt).keys() == {"f0", "f1"}


@pytest.mark.parametrize("sequences", [False, True])
def test_hot_rows_of_the_other_kind_of_collection_are_refused(sequences: bool) -> None:
    profile = profile_of(case(sequences=not sequences))
    with pytest.raises(FAEError, match=f"with is_sequence {sequences}, calibrated with"):
        build(case(sequences=sequences), fae_sharder(case(sequences=sequences), profile))


def test_calibration_knows_what_is_a_sequence() -> None:
    tables = [EmbeddingConfig(name="t0", num_embeddings=20, embedding_dim=8, feature_names=["f0"])]
    ids = torch.randint(0, 4, (2000,))
    kjt = KeyedJaggedTensor(["f0"], ids, lengths=torch.ones(2000, dtype=torch.int32))
    profile = calibrate([kjt], tables=tables, hot_bytes=200, progress=False)
    assert profile.table("t0").is_sequence


def test_features_that_read_two_tables_come_with_the_embeddings_of_both() -> None:
    one = case(
        tables=tuple(
            Table(name, 20, 8, PoolingType.SUM, features, "table_wise", (1, 2, 5))
            for name, features in (("a", ("f0", "f1")), ("b", ("f1",)), ("c", ("f2",)))
        )
    )
    values = torch.tensor([1, 3, 5, 7, 2, 0, 5, 1, 9])
    kjt = KeyedJaggedTensor(["f0", "f1", "f2"], values, lengths=torch.tensor([2, 1, 0, 3, 2, 1]))
    stock = _looked_up(one, stock_sharder(one), kjt)
    assert stock.keys() == {"f0", "f1@a", "f1@b", "f2"}
    _check_same(stock, _looked_up(one, FAEEmbeddingCollectionSharder(profile_of(one)), kjt))


@pytest.mark.parametrize("mode", ["overlay", "partitioned"])
def test_where_all_features_read_two_tables_no_row_is_kept_apart(mode: str) -> None:
    tables = (Table(name, 20, 8, PoolingType.SUM, ("f0",), "row_wise", (1, 2)) for name in "ab")
    one = case(tables=tuple(tables), mode=mode)
    kjt = KeyedJaggedTensor(["f0"], torch.tensor([1, 3, 2]), lengths=torch.tensor([2, 1]))
    stock = _looked_up(one, stock_sharder(one), kjt)
    _check_same(stock, _looked_up(one, fae_sharder(one, profile_of(one)), kjt))


@pytest.mark.parametrize("precision", [DataType.FP32, DataType.FP16])
@pytest.mark.parametrize("ids", [torch.int32, torch.int64])
@pytest.mark.parametrize("kind", ["plain", "pure"])
def test_all_types_are_those_of_the_stock_collection(
    precision: DataType, ids: torch.dtype, kind: str
) -> None:
    one = case(kinds=(kind,), with_ids=True)
    kjt = batches(one, 0)[0][1]
    kjt = KeyedJaggedTensor(kjt.keys(), kjt.values().to(ids), lengths=kjt.lengths())
    given = packed(kind, kjt, SlotMap.from_profile(profile_of(one)))
    stock = _looked_up(one, stock_sharder(one), kjt, precision)
    _check_same(stock, _looked_up(one, fae_sharder(one, profile_of(one)), given, precision))


def _check_same(stock: dict[str, JaggedTensor], found: dict[str, JaggedTensor]) -> None:
    assert stock.keys() == found.keys()
    for name, one in stock.items():
        for ask in (JaggedTensor.values, JaggedTensor.lengths, JaggedTensor.weights_or_none):
            expected, got = ask(one), ask(found[name])
            if expected is None:
                assert got is None
            else:
                assert got.dtype == expected.dtype
                assert torch.equal(got, expected)


def _looked_up(
    one: Case, sharder: object, kjt: KeyedJaggedTensor, precision: DataType = DataType.FP32
) -> dict[str, JaggedTensor]:
    torch.manual_seed(0)
    model = nn.Module()
    model.collection = EmbeddingCollection(
        tables=[
            EmbeddingConfig(
                name=t.name,
                num_embeddings=t.rows,
                embedding_dim=t.dim,
                feature_names=[*t.features],
                data_type=precision,
            )
            for t in one.tables
        ],
        need_indices=one.with_ids,
    )
    start = {name: value.clone() for name, value in model.state_dict().items()}
    apply_optimizer_in_backward(torch.optim.SGD, model.collection.parameters(), {"lr": 0.1})
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan_of(model, one), sharders=[sharder]
    )
    sharded.load_state_dict(start)
    found: dict[str, JaggedTensor] = sharded.module.collection(kjt)
    return {name: found[name] for name in found.keys()}  # noqa: SIM118 an awaitable


class Both(nn.Module):
    """Bags and sequences, which one batch feeds."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = EmbeddingBagCollection(
            tables=[
                EmbeddingBagConfig(
                    name="b", num_embeddings=30, embedding_dim=8, feature_names=["f0"]
                )
            ]
        )
        self.sequences = EmbeddingCollection(
            tables=[
                EmbeddingConfig(name="s", num_embeddings=9, embedding_dim=8, feature_names=["f1"])
            ]
        )

    def forward(self, kjt: KeyedJaggedTensor) -> Tensor:
        pooled, found = self.bags(kjt).values(), self.sequences(kjt)["f1"].values()
        places = torch.arange(1.0, len(found) + 1).cos().unsqueeze(1)
        return pooled.pow(2).sum() + (found * places).sum().pow(2) + found.pow(2).sum()


def _both(
    mode: str | None, profile: FAEProfile, sharders: list[Any] | None = None
) -> DistributedModelParallel:
    torch.manual_seed(0)
    model = Both()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.01})
    fae: list[Any] = [
        FAEEmbeddingBagCollectionSharder(profile, mode or "overlay"),  # type: ignore[arg-type]
        FAEEmbeddingCollectionSharder(profile, mode or "overlay"),  # type: ignore[arg-type]
    ]
    device = torch.device("cpu")
    if mode is None:
        plan = DistributedModelParallel(copy.deepcopy(model), device=device, sharders=fae).plan
        stock: list[Any] = [EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()]
        sharded = DistributedModelParallel(model, device=device, plan=plan, sharders=stock)
    else:
        sharded = DistributedModelParallel(model, device=device, sharders=sharders or fae)
    sharded.load_state_dict(start)
    return sharded


@pytest.mark.parametrize("hot", [(1, 3, 4), ()], ids=["some", "none"])
@pytest.mark.parametrize("mode", ["overlay", "paper", "partitioned"])
def test_one_profile_serves_bags_and_sequences_of_one_batch(
    mode: str, hot: tuple[int, ...]
) -> None:
    profile = _profile_of_both(hot)
    generator = torch.Generator().manual_seed(1)
    slots = SlotMap.from_profile(profile)
    feed, whole = [], []
    for kind in ("pure", "plain", "pure", "plain"):
        lengths = torch.randint(0, 4, (8,), generator=generator)
        if kind == "pure" and not hot:
            lengths[4:] = 0
        values = torch.cat(
            [
                torch.randint(0, 30, (int(lengths[:4].sum()),), generator=generator),
                torch.randint(0, 9, (int(lengths[4:].sum()),), generator=generator),
            ]
        )
        if kind == "pure":
            values[: lengths[:4].sum()] &= ~1
            values[lengths[:4].sum() :] = values[lengths[:4].sum() :] % 2 + 3
        whole.append(KeyedJaggedTensor(["f0", "f1"], values, lengths=lengths))
        feed.append(packed(kind, whole[-1], slots))
    assert [read_mark(kjt) is not None for kjt in feed] == [True, False, True, False]
    stock, fae = _both(None, profile), _both(mode, profile)
    for ours, theirs in zip(feed, whole, strict=True):
        losses = [model(kjt) for model, kjt in ((fae, ours), (stock, theirs))]
        assert torch.allclose(*losses, rtol=1e-5)
        for loss in losses:
            loss.backward()
    weights = stock.state_dict()
    for name, value in fae.state_dict().items():
        assert torch.allclose(local(value), local(weights[name]), atol=1e-6)


def _profile_of_both(hot: tuple[int, ...] = (1, 3, 4)) -> FAEProfile:
    return FAEProfile(
        (
            TableProfile("b", 30, 8, ("f0",), np.arange(0, 30, 2), 32),
            TableProfile("s", 9, 8, ("f1",), np.array(hot, dtype=np.int64), 32, is_sequence=True),
        ),
        1 << 20,
    )


def test_hot_lookups_that_a_stock_collection_would_miss_are_refused() -> None:
    profile = _profile_of_both()
    only_here = replace(profile.tables[0], hot_ids=np.array([7]))  # of no other test's models
    profile = replace(profile, tables=(only_here, profile.tables[1]))
    kjt = KeyedJaggedTensor(["f0", "f1"], torch.tensor([7, 3]), lengths=torch.tensor([1, 1]))
    pure = packed("pure", kjt, SlotMap.from_profile(profile))
    sharders = [FAEEmbeddingBagCollectionSharder(profile), EmbeddingCollectionSharder()]
    model = _both("overlay", profile, sharders)
    model(kjt)
    with pytest.raises(FAEError) as error:
        model(pure)
    assert "hot lookups of 'f1' apart, and no collection that keeps" in error.value.found
    assert "'s'" in error.value.found
    _both("overlay", profile)(pure)
    bags = FAEProfile(profile.tables[:1], 1 << 20)  # the lookups of sequences stay where they are
    model = _both("overlay", bags, [FAEEmbeddingBagCollectionSharder(bags), sharders[1]])
    model(packed("mixed", kjt, SlotMap.from_profile(bags)))


def sequences(hot_ratio: float) -> FAEProfile:
    """The tables of `packing`, as sequences."""
    of = packing.profile(hot_ratio)
    return replace(of, tables=tuple(replace(table, is_sequence=True) for table in of.tables))


def inputs_in_order(batch: Batch, of: FAEProfile) -> list[packing.Input]:
    """As `packing.inputs_of`, of bags that are as they were."""
    kjt = batch.sparse_features
    mark = read_mark(kjt)
    by_key = kjt.to_dict()
    hot_keys = {} if mark is None else dict(zip(mark.hot_features, kjt.keys()[4:], strict=True))
    hot_ids = {name: torch.from_numpy(t.hot_ids) for t in of.tables for name in t.features}
    found = []
    for i, number in enumerate(batch.labels.tolist()):
        bags, weights = [], []
        for key in packing.KEYS:
            hot_key = hot_keys.get(key)
            rows = by_key[hot_key or key].to_dense()[i].long()
            bags.append(tuple((hot_ids[key][rows] if hot_key else rows).tolist()))
            weights.append(tuple(by_key[hot_key or key].to_dense_weights()[i].tolist()))
        found.append(packing.Input(number, tuple(bags), tuple(weights)))
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_packed_sequences_keep_their_order(workers: int) -> None:
    of = sequences(0.9)
    loader = DataLoader(packing.Inputs(90), 4, collate_fn=packing.collate, num_workers=workers)
    got = list(pack(loader, of, window=6))
    kinds = [read_mark(batch.sparse_features) for batch in got]
    assert 0 < sum(mark is None for mark in kinds) < len(kinds)
    assert all(mark.pure for mark in kinds if mark is not None)
    found = sorted((one for b in got for one in inputs_in_order(b, of)), key=lambda one: one.number)
    assert found == [packing.make_input(i) for i in range(90)]


def test_a_window_of_sequences_can_be_divided_anew() -> None:
    of = sequences(0.9)
    packer = Packer(SlotMap.from_profile(of), KjtFinder(["f0", "f1", "f2"]), 4, False)
    inputs = [packing.make_input(i) for i in range(40)]
    window = packer.pack([packing.to_batch(inputs[i : i + 8]) for i in range(0, 40, 8)])
    assert window.hot_count > 0
    again = window.redivided(1, 7)
    found = [one for i in range(7) for one in inputs_in_order(again.batch(i, pure=False), of)]
    first = {one.number for one in inputs_in_order(window.batch(0, pure=False), of)}
    assert {one.number for one in found} | first == set(range(40))
    assert found == [inputs[one.number] for one in found]


def test_packed_sequences_train_what_the_stock_sharder_trains() -> None:
    one = case(kinds=("plain", "pure") * 8)
    profile = profile_of(one)
    loader = [kjt for _, kjt in batches(one, 0)]
    got = list(pack(loader, profile, window=16))
    assert any(read_mark(kjt) is not None for kjt in got)
    order = [whole(kjt, profile) for kjt in got]
    stock = train(one, build(one, stock_sharder(one)), order)
    fae = train(one, build(one, fae_sharder(one, profile)), got)
    assert max(difference(stock, fae).values()) < 4e-6
    assert packed("mixed", loader[0], SlotMap.from_profile(profile)) is loader[0]
