"""nn.Embedding and nn.EmbeddingBag: every number equals one counted by hand."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

from tests.embeddings.brute import Expected, Steps, bags_of, compare, random_lengths
from trainobs.core.embedding_table import LOOKUP_ROW
from trainobs.embeddings.model_lookups import ModelLookups

ROWS = {"flat": 40, "wide": 30, "bag": 25, "matrix": 20, "last": 15, "padded": 12, "weighted": 9}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.flat = nn.Embedding(ROWS["flat"], 3, padding_idx=1)
        self.wide = nn.Embedding(ROWS["wide"], 4, sparse=True, padding_idx=2)
        self.bag = nn.EmbeddingBag(ROWS["bag"], 5, mode="mean")
        self.matrix = nn.EmbeddingBag(ROWS["matrix"], 2, mode="max")
        self.last = nn.EmbeddingBag(ROWS["last"], 2, mode="sum", include_last_offset=True)
        self.padded = nn.EmbeddingBag(ROWS["padded"], 2, mode="sum", padding_idx=0, sparse=True)
        self.weighted = nn.EmbeddingBag(ROWS["weighted"], 2, mode="sum")

    def forward(self, batch):
        bag, bag_ends = batch["bag"]
        last, last_ends = batch["last"]
        padded, padded_ends = batch["padded"]
        weighted, weighted_ends = batch["weighted"]
        outputs = [
            self.flat(batch["flat"]),
            self.wide(batch["wide"]),
            self.bag(bag, torch.tensor([0, *bag_ends[:-1]])),
            self.matrix(batch["matrix"]),
            self.last(offsets=torch.tensor([0, *last_ends]), input=last),
            self.padded(padded, torch.tensor([0, *padded_ends[:-1]])),
            self.weighted(
                weighted,
                offsets=torch.tensor([0, *weighted_ends[:-1]]),
                per_sample_weights=torch.rand(len(weighted)),
            ),
        ]
        return sum(output.sum() for output in outputs)


def jagged(name, count, dtype=torch.int64):
    lengths = random_lengths(count)
    ids = torch.randint(0, ROWS[name], (int(lengths.sum()),)).to(dtype)
    return ids, lengths.cumsum(0).tolist()


def make_batch():
    last, last_ends = jagged("last", 6)
    return {
        "flat": torch.randint(0, ROWS["flat"], (7,)),
        "wide": torch.randint(0, ROWS["wide"], (5, 4), dtype=torch.int32),
        "bag": jagged("bag", 6),
        "matrix": torch.randint(0, ROWS["matrix"], (4, 3)),
        "last": (torch.cat([last, torch.tensor([3, 3])]), last_ends),  # ids that are in no bag
        "padded": jagged("padded", 6),
        "weighted": jagged("weighted", 6),
    }


def expect(expected, step, batch):
    def of(name):
        return expected.setdefault((step, name), Expected())

    of("flat").add(bags_of(batch["flat"], list(range(1, 8))))
    of("wide").add([row.tolist() for row in batch["wide"]])
    of("matrix").add([row.tolist() for row in batch["matrix"]])
    for name in ("bag", "last", "weighted"):
        of(name).add(bags_of(*batch[name]))
    of("padded").add(bags_of(*batch["padded"]), padding=0)


def test_every_number_equals_a_count_by_hand():
    model, steps = Model(), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    expected = {}
    for step in range(40):
        steps.begin()
        for _ in range(1 + step % 3):  # accumulates gradients
            batch = make_batch()
            model(batch).backward()
            expect(expected, step, batch)
    rows = lookups.rows(steps.closed())
    lookups.close()
    compare(lookups, rows, expected)
    for field in ("lookup_count", "bag_count", "bytes", "unique_rows", "outside_count"):
        wrong = rows.copy()
        wrong[field][17] += 1
        with pytest.raises(AssertionError):
            compare(lookups, wrong, expected)


def test_gradients_are_what_torch_says():
    model, steps = Model(), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1, world_size=4)
    for _ in range(10):
        steps.begin()
        model.zero_grad()
        model(make_batch()).backward()
        by_table = {
            lookups.tables[r["table"]].name: r for r in lookups.rows(steps.closed(steps.serial))
        }
        assert by_table.keys() == ROWS.keys()
        for name, row in by_table.items():
            grad = model.get_submodule(name).weight.grad
            if grad.is_sparse:
                grad = grad.coalesce()
                padding = model.get_submodule(name).padding_idx
                rows = [i for i in grad.indices()[0].tolist() if i != padding]
                assert row["gradient_rows"] == len(rows)
                moved = 3 * len(rows) * (row_bytes(model, name) + 8)
                assert row["sparse_allreduce_bytes"] == moved
            else:
                assert row["gradient_rows"] == len(grad)
                assert row["gradient_bytes"] == grad.numel() * grad.element_size()
            whole = ROWS[name] * row_bytes(model, name)
            assert row["dense_allreduce_bytes"] == 2 * 3 / 4 * whole
    lookups.close()


def row_bytes(model, name):
    return model.get_submodule(name).embedding_dim * 4


def test_a_step_that_is_not_sampled_has_what_shapes_tell_and_nothing_else():
    model, steps = Model(), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=3)
    expected = {}
    for step in range(7):
        steps.begin()
        batch = make_batch()
        model(batch).backward()
        expect(expected, step, batch)
    rows = lookups.rows(steps.closed())
    lookups.close()
    names = [table.name for table in lookups.tables]
    sampled = sorted({int(row["step"]) for row in rows if row["sampled"]})
    assert [step // 3 for step in sampled][:2] == [0, 1]
    for row in rows:
        one = expected[int(row["step"]), names[row["table"]]]
        assert (row["lookup_count"], row["bag_count"]) == (len(one.ids), one.bags)
        assert row["host_bytes"] == row["bytes"] > -1
        assert np.isnan(row["unique_rows"]) == (not row["sampled"])
        assert np.isnan(row["outside_count"]) == (not row["sampled"])
    assert lookups.counts.total("flat") == 3 * 7


def test_ids_that_change_after_the_call_are_counted_as_they_were():
    model = nn.Sequential(nn.Embedding(10, 2))
    steps = Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    ids = torch.tensor([1, 1, 2])
    model(ids)
    ids.fill_(9)
    lookups.rows(steps.closed())
    lookups.close()
    assert lookups.counts.counts("0").tolist() == [0, 2, 1, 0, 0, 0, 0, 0, 0, 0]


def test_an_evaluation_is_not_counted_but_a_frozen_part_of_the_training_is():
    model, steps = nn.Sequential(nn.Embedding(10, 2)), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    with torch.no_grad():
        model(torch.tensor([1]))  # in training mode: a frozen part
    model.eval()
    with torch.no_grad():
        model(torch.tensor([2, 2]))
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert rows["lookup_count"].tolist() == [1]
    assert rows["gradient_rows"].tolist() == rows["dense_allreduce_bytes"].tolist() == [0]


def test_a_table_that_is_frozen_has_no_gradient_until_it_is_thawed():
    model, steps = nn.Sequential(nn.Embedding(10, 2), nn.Linear(2, 1)), Steps()
    model[0].weight.requires_grad_(False)
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    gradient_rows = []
    for _ in range(2):
        steps.begin()
        model(torch.tensor([1, 1])).sum().backward()
        gradient_rows += lookups.rows(steps.closed(steps.serial))["gradient_rows"].tolist()
        model[0].weight.requires_grad_(True)
    lookups.close()
    assert gradient_rows == [0, 10]


def test_ids_outside_a_table_are_named_once_and_counted(caplog):
    model, steps = nn.Sequential(nn.Embedding(10, 2)), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    for _ in range(2):
        steps.begin()
        with pytest.raises(IndexError):
            model(torch.tensor([3, 12, 12, -1]))
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert rows["outside_count"].tolist() == [3, 3]
    assert rows["unique_rows"].tolist() == [1, 1]
    assert lookups.counts.outside("0") == 6
    assert [record.getMessage().splitlines()[1] for record in caplog.records] == [
        "  found: id 12 of table 0, which has 10 rows"
    ]


def test_the_id_that_ended_the_training_is_named_even_if_its_step_was_not_sampled(caplog):
    model, steps = nn.Sequential(nn.Embedding(10, 2)), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=100)
    steps.begin()
    model(torch.tensor([1]))
    steps.begin()
    try:
        model(torch.tensor([3, 77]))
    except IndexError:
        lookups.close()
    assert "id 77 of table 0, which has 10 rows" in caplog.text


def test_the_hottest_rows_are_those_of_the_steps_before():
    model, steps = nn.Sequential(nn.Embedding(100, 2)), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    for ids in ([7, 7, 7, *range(20, 40)], [7, 7, 50]):
        steps.begin()
        model(torch.tensor(ids))
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert np.isnan(rows["hottest_1pct_count"][0])
    assert rows["hottest_1pct_count"][1] == 2  # the hottest row of 100
    assert rows["hottest_10pct_count"][1] == 2  # 7 and nine of 20 to 39


def test_a_step_of_a_model_that_looks_nothing_up_has_no_rows():
    steps = Steps()
    lookups = ModelLookups(nn.Linear(2, 2), lambda: steps.serial)
    steps.begin()
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert lookups.tables == ()
    assert rows.dtype == LOOKUP_ROW
    assert len(rows) == 0


def test_inputs_are_sampled_whole():
    model, steps = nn.ModuleDict({"a": nn.Embedding(9, 1), "b": nn.EmbeddingBag(9, 1)}), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    model["a"](torch.tensor([1, 2, 3]))
    model["b"](torch.tensor([4, 5, 6]), torch.tensor([0, 2, 2]))
    lookups.begin_epoch(2)
    lookups.rows(steps.closed())
    lookups.close()
    sample = lookups.counts.inputs()[2]
    ends = np.cumsum(sample.sizes)
    got = {
        tuple(zip(sample.tables[e - n : e].tolist(), sample.ids[e - n : e].tolist(), strict=True))
        for e, n in zip(ends, sample.sizes, strict=True)
    }
    assert got == {((0, 1), (1, 4), (1, 5)), ((0, 2),), ((0, 3), (1, 6))}


def test_a_batch_of_histories_without_a_lookup_has_as_many_bags_and_inputs():
    model, steps = nn.ModuleDict({"a": nn.Embedding(9, 1), "b": nn.Embedding(9, 1)}), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    model["a"](torch.tensor([1, 2, 3]))
    model["b"](torch.zeros(3, 0, dtype=torch.int64))
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert rows["lookup_count"].tolist() == [3, 0]
    assert rows["bag_count"].tolist() == [3, 3]
    assert lookups.counts.inputs()[0].sizes.tolist() == [1, 1, 1]


@pytest.mark.parametrize("table", ["flat", "bag"])
def test_a_call_that_the_module_refuses_is_none_and_ends_nothing(table):
    model, steps = Model(), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        model.get_submodule(table)()
    model(make_batch())
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert len(rows) == len(lookups.tables)
    assert not np.isnan(rows["lookup_count"]).any()


def test_what_is_copied_from_the_model_has_no_part_in_it():
    model, steps = Model(), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    clone = copy.deepcopy(model)
    steps.begin()
    clone(make_batch())
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert len(rows) == 0


def test_a_table_that_is_replaced_is_unmeasured_from_then_on_and_told_once(caplog):
    model, steps = nn.ModuleDict({"a": nn.Embedding(10, 2), "b": nn.Embedding(5, 2)}), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    found = []
    for step in range(4):
        if step == 1:
            model["a"] = nn.Embedding(20, 2)
        steps.begin()
        for table in model.values():
            table(torch.tensor([1, 2, 3]))
        found += lookups.rows(steps.closed(steps.serial)).tolist()
    lookups.close()
    by_table = {name: [] for name in ("a", "b")}
    for row in np.array(found, LOOKUP_ROW):
        by_table[lookups.tables[row["table"]].name].append(float(row["lookup_count"]))
    assert by_table["b"] == [3.0] * 4
    np.testing.assert_equal(by_table["a"], [3.0, np.nan, np.nan, np.nan])
    (told,) = (record.getMessage() for record in caplog.records)
    assert told.startswith("trainobs counts lookups of 'a' no more")


def test_a_table_that_nobody_asks_for_a_while_has_not_left(caplog):
    model, steps = nn.ModuleDict({"a": nn.Embedding(10, 2), "b": nn.Embedding(5, 2)}), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    for name in ("a", "b", "a"):
        steps.begin()
        model[name](torch.tensor([1]))
        assert len(lookups.rows(steps.closed(steps.serial))) == 1
    lookups.close()
    assert caplog.records == []
