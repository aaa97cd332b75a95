"""TorchRec's collections and FBGEMM's kernels, not sharded: equal to a count by hand."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
import tqdm
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    ComputeDevice,
    DenseTableBatchedEmbeddingBagsCodegen,
    SplitTableBatchedEmbeddingBagsCodegen,
)
from tensordict import TensorDict
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
    PoolingType,
)
from torchrec.modules.fused_embedding_modules import (
    FusedEmbeddingBagCollection,
    FusedEmbeddingCollection,
)

from tests.embeddings.brute import Expected, Steps, compare, jagged_bags, random_lengths
from trainobs.embeddings.model_lookups import ModelLookups

TABLES = {  # table -> rows, features
    "users": (50, ["user"]),
    "goods": (20, ["item", "seen"]),
    "things": (30, ["item"]),
}
KEYS = ["seen", "unused", "user", "item"]  # not in the order of the tables


def rows_of(key):
    return min((rows for rows, features in TABLES.values() if key in features), default=99)


def make_jagged(stride=5, weighted=False, varied=False):
    strides = [int(torch.randint(1, 6, ())) for _ in KEYS] if varied else [stride] * len(KEYS)
    lengths = [random_lengths(count) for count in strides]
    values = [
        torch.randint(0, rows_of(key), (int(length.sum()),))
        for key, length in zip(KEYS, lengths, strict=True)
    ]
    options = {}
    if varied:
        options["stride_per_key_per_rank"] = [[count] for count in strides]
        options["inverse_indices"] = (
            KEYS,
            torch.stack([torch.randint(0, count, (stride,)) for count in strides]),
        )
    return KeyedJaggedTensor(
        keys=KEYS,
        values=torch.cat(values),
        lengths=torch.cat(lengths),
        weights=torch.rand(sum(map(len, values))) if weighted else None,
        **options,
    )


def expect(expected, step, kjt):
    bags = jagged_bags(kjt)
    for name, (_, features) in TABLES.items():
        one = expected.setdefault((step, name), Expected())
        for feature in features:
            one.add(bags[feature])


def bag_collection(weighted=False):
    return EmbeddingBagCollection(
        tables=[
            EmbeddingBagConfig(
                name=name,
                embedding_dim=4,
                num_embeddings=rows,
                feature_names=features,
                pooling=PoolingType.SUM,
            )
            for name, (rows, features) in TABLES.items()
        ],
        is_weighted=weighted,
    )


def sequence_collection():
    return EmbeddingCollection(
        tables=[
            EmbeddingConfig(name=name, embedding_dim=4, num_embeddings=rows, feature_names=features)
            for name, (rows, features) in TABLES.items()
        ]
    )


@pytest.mark.parametrize("kind", ["bags", "weighted", "varied", "sequence"])
def test_collections(kind):
    weighted = kind == "weighted"
    module = sequence_collection() if kind == "sequence" else bag_collection(weighted)
    steps, expected = Steps(), {}
    lookups = ModelLookups(nn.Sequential(module), lambda: steps.serial, every=1)
    for step in range(25):
        steps.begin()
        kjt = make_jagged(weighted=weighted, varied=kind == "varied")
        if step % 3 == 0:
            kjt.offset_per_key()  # what the tensor knows of itself is taken from there
        module(kjt)
        expect(expected, step, kjt)
    rows = lookups.rows(steps.closed())
    lookups.close()
    compare(lookups, rows, expected)
    assert {table.features for table in lookups.tables} == {
        tuple(features) for _, features in TABLES.values()
    }


def fused(kind, configs, device):
    options = {"optimizer_type": torch.optim.SGD, "optimizer_kwargs": {"lr": 0.1}}
    return kind(tables=configs, device=torch.device(device), **options)


def test_fused_collections_that_are_not_sharded():
    module = fused(FusedEmbeddingBagCollection, bag_collection().embedding_bag_configs(), "cpu")
    steps, expected = Steps(), {}
    lookups = ModelLookups(nn.Sequential(module), lambda: steps.serial, every=1)
    for step in range(5):
        steps.begin()
        kjt = make_jagged()
        module(kjt)
        expect(expected, step, kjt)
    rows = lookups.rows(steps.closed())
    lookups.close()
    compare(lookups, rows, expected)
    assert (rows["gradient_rows"] == rows["unique_rows"]).all()


def test_tables_of_a_fused_collection_of_sequences_are_found():
    configs = sequence_collection().embedding_configs()
    module = fused(FusedEmbeddingCollection, configs, "meta")  # it takes no CPU
    lookups = ModelLookups(nn.Sequential(module), lambda: 0)
    lookups.close()
    assert [table.name for table in lookups.tables] == list(TABLES)


def test_a_name_that_two_collections_use_is_made_unique():
    model = nn.ModuleDict({"a": bag_collection(), "b": bag_collection()})
    lookups = ModelLookups(model, lambda: 0)
    lookups.close()
    assert [table.name for table in lookups.tables] == [*TABLES, *(f"b.{name}" for name in TABLES)]


def kernel(kind):
    specs = [(50, 4), (20, 8)]
    features = [0, 1, 1]
    if kind == "dense":
        return DenseTableBatchedEmbeddingBagsCodegen(specs, features, use_cpu=True)
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows, dim in specs],
        features,
        table_names=["big", "small"],
    )


@pytest.mark.parametrize("kind", ["dense", "fused"])
def test_bare_kernels(kind):
    module = kernel(kind)
    names = ["big", "small"] if kind == "fused" else ["0.0", "0.1"]
    steps, expected = Steps(), {}
    lookups = ModelLookups(nn.Sequential(module), lambda: steps.serial, every=1)
    for step in range(20):
        steps.begin()
        bags = int(torch.randint(1, 6, ()))
        lengths = [random_lengths(bags) for _ in range(3)]
        ids = [
            torch.randint(0, rows, (int(length.sum()),))
            for rows, length in zip((50, 20, 20), lengths, strict=True)
        ]
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat(lengths).cumsum(0)])
        module(torch.cat(ids), offsets)
        for table, length, of_feature in zip((0, 1, 1), lengths, ids, strict=True):
            one = expected.setdefault((step, names[table]), Expected())
            one.add([part.tolist() for part in of_feature.split(length.tolist())])
    rows = lookups.rows(steps.closed())
    lookups.close()
    compare(lookups, rows, expected)
    trained = rows["gradient_rows"]
    if kind == "fused":
        assert trained.tolist() == rows["unique_rows"].tolist()
    else:
        assert trained.tolist() == [[50, 20][table] for table in rows["table"]]


def test_inputs_of_a_collection_are_whole():
    module, steps = bag_collection(), Steps()
    lookups = ModelLookups(module, lambda: steps.serial, every=1)
    steps.begin()
    kjt = make_jagged(stride=8)
    module(kjt)
    lookups.rows(steps.closed())
    lookups.close()
    bags, names = jagged_bags(kjt), list(TABLES)
    wanted = sorted(
        sorted((t, i) for t, n in enumerate(names) for f in TABLES[n][1] for i in bags[f][at])
        for at in range(8)
    )
    sample = lookups.counts.inputs()[0]
    ends = sample.offsets
    pairs = list(zip(sample.tables.tolist(), sample.ids.tolist(), strict=True))
    assert sorted(sorted(pairs[a:b]) for a, b in zip(ends, ends[1:], strict=False)) == wanted


def test_what_a_collection_with_a_forward_of_its_own_looks_up_is_unknown():
    class Hashed(EmbeddingBagCollection):
        def forward(self, features):
            values = features.values() % 10
            return super().forward(
                KeyedJaggedTensor(features.keys(), values, lengths=features.lengths())
            )

    config = EmbeddingBagConfig(
        name="users", embedding_dim=4, num_embeddings=10, feature_names=["user"]
    )
    module, steps = Hashed(tables=[config]), Steps()
    lookups = ModelLookups(module, lambda: steps.serial, every=1)
    steps.begin()
    module(KeyedJaggedTensor(["user"], torch.tensor([11, 12]), lengths=torch.tensor([1, 1])))
    (row,) = lookups.rows(steps.closed())
    lookups.close()
    assert row["lookup_count"] != row["lookup_count"]
    assert lookups.counts.total("users") == 0


def test_lookups_of_a_dict_of_tensors_are_unknown(caplog):
    tables = [EmbeddingBagConfig(name="t", num_embeddings=9, embedding_dim=4, feature_names=["f"])]
    model, steps = EmbeddingBagCollection(tables=tables), Steps()
    bags = [torch.tensor([1, 2]), torch.tensor([3])]
    ids = torch.nested.nested_tensor(bags, layout=torch.jagged)
    jagged = KeyedJaggedTensor(["f"], torch.cat(bags), lengths=torch.tensor([2, 1]))
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    for asked in (TensorDict({"f": ids}, batch_size=[2]), jagged):
        steps.begin()
        model(asked).values().sum().backward()
    unknown, known = lookups.rows(steps.closed())
    lookups.close()
    assert unknown["lookup_count"] != unknown["lookup_count"]
    assert (known["lookup_count"], known["bag_count"]) == (3, 2)
    assert caplog.text.count("found: a TensorDict of ids") == 1


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
def test_lookups_of_a_dict_of_tensors_in_compiled_code_are_unknown_too(caplog, monkeypatch):
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # a compiler leaves its thread
    tables = [EmbeddingBagConfig(name="t", num_embeddings=9, embedding_dim=4, feature_names=["f"])]
    model, steps = EmbeddingBagCollection(tables=tables), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    for _ in range(3):
        steps.begin()
        ids = torch.nested.nested_tensor_from_jagged(torch.arange(3), torch.tensor([0, 2, 3]))
        compiled(TensorDict({"f": ids}, batch_size=[2])).values().sum().backward()
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert rows["step"].tolist() == [0, 1, 2]
    assert (rows["lookup_count"] != rows["lookup_count"]).all()
    assert caplog.text.count("found: a TensorDict of ids") == 1


class Breaking(KeyedJaggedTensor):
    def lengths(self):
        torch._dynamo.graph_break()
        return super().lengths()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning")  # a clock
@pytest.mark.parametrize("gives_up", [False, True])
def test_collections_that_are_compiled_in_parts_are_counted(monkeypatch, gives_up):
    """TorchRec's forward breaks the graph, so the hooks of each are compiled alone, and alike.

    gives_up: of what reads the ids, Dynamo compiles the first and runs the others as they are.
    """
    monkeypatch.setattr(tqdm.tqdm, "monitor_interval", 0)  # a compiler leaves its thread
    model, steps = nn.ModuleList(), Steps()
    for name in ("a", "b"):
        table = EmbeddingBagConfig(
            name=name, num_embeddings=9, embedding_dim=4, feature_names=[name]
        )
        model.append(EmbeddingBagCollection(tables=[table]))

    def forward(of_a, of_b):
        return model[0](of_a).values().sum() + model[1](of_b).values().sum()

    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    torch._dynamo.reset()
    compiled = torch.compile(forward, backend="eager")
    for count in (2, 3, 4):
        steps.begin()
        of_both = [
            (Breaking if gives_up else KeyedJaggedTensor)(
                [key], torch.arange(count), lengths=torch.ones(count, dtype=int)
            )
            for key in ("a", "b")
        ]
        with torch._dynamo.config.patch(recompile_limit=1 if gives_up else 8):
            compiled(*of_both).backward()
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert rows["lookup_count"].tolist() == [2, 2, 3, 3, 4, 4]
    assert rows["unique_rows"].tolist() == [2, 2, 3, 3, 4, 4]
