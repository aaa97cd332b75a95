"""Which modules are tables: those that share a weight, and subclasses."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.embeddings.brute import Steps
from trainobs.embeddings.model_lookups import ModelLookups


def test_tables_that_share_a_module_are_one_and_names_are_paths():
    shared = nn.Embedding(10, 2)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, nn.Embedding(5, 2))})
    lookups = ModelLookups(model, lambda: 0)
    lookups.close()
    assert [table.name for table in lookups.tables] == ["a", "b.1"]


def test_modules_that_share_a_weight_are_one_table():
    model, steps = nn.ModuleDict({"a": nn.Embedding(10, 2), "b": nn.EmbeddingBag(10, 2)}), Steps()
    model["c"] = nn.Embedding(10, 2, padding_idx=3)
    model["b"].weight = model["c"].weight = model["a"].weight
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    model["a"](torch.tensor([1, 2])).sum().backward()
    model["b"](torch.tensor([[2, 3], [4, 5]]))
    model["c"](torch.tensor([9, 9]))
    (row,) = lookups.rows(steps.closed())
    lookups.close()
    (table,) = lookups.tables
    assert (table.name, table.row_count) == ("a", 10)
    assert (row["lookup_count"], row["bag_count"], row["unique_rows"]) == (8, 6, 6)
    assert lookups.counts.counts("a").tolist() == [0, 1, 2, 1, 1, 1, 0, 0, 0, 2]
    assert row["forward_ns"] > 0


def test_a_weight_that_is_also_looked_up_unseen_has_no_numbers():
    model, steps = nn.ModuleDict({"a": nn.Embedding(10, 2), "b": Hashed(10, 2)}), Steps()
    model["b"].weight = model["a"].weight
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    model["a"](torch.tensor([1, 2]))
    (row,) = lookups.rows(steps.closed())
    lookups.close()
    assert np.isnan(row["lookup_count"])
    assert lookups.counts.total("a") == 0


class Hashed(nn.Embedding):
    def forward(self, ids):
        return super().forward(ids % self.num_embeddings)


class Positions(nn.Embedding):
    """As of transformers' BART: it gets the ids of words, and looks up their places."""

    def forward(self, words):
        return super().forward(torch.arange(words.shape[-1]))


def with_own_forward(bag):
    plain = bag.forward
    bag.forward = lambda ids: plain(ids // 2)
    return bag


def of_its_own(name):
    return {
        "hashed": lambda: Hashed(10, 2),
        "positions": lambda: Positions(10, 2),
        "instance": lambda: with_own_forward(nn.EmbeddingBag(10, 2)),
    }[name]()


@pytest.mark.parametrize("name", ["hashed", "positions", "instance"])
def test_what_a_forward_of_its_own_looks_up_is_unknown(name, caplog):
    model, steps = nn.ModuleDict({"own": of_its_own(name), "plain": nn.Embedding(20, 2)}), Steps()
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    for table in model.values():
        table(torch.tensor([[11, 12, 13]]))
    rows = lookups.rows(steps.closed())
    lookups.close()
    found = {lookups.tables[row["table"]].name: float(row["lookup_count"]) for row in rows}
    np.testing.assert_equal(found, {"own": np.nan, "plain": 3.0})
    assert lookups.counts.total("own") == 0
    assert caplog.records == []  # of no id can it be said that the table has not got it


def test_what_accelerate_moves_between_devices_is_counted():
    hooks = pytest.importorskip("accelerate.hooks")
    model, steps = nn.Embedding(10, 2), Steps()
    hooks.add_hook_to_module(model, hooks.AlignDevicesHook())
    assert "forward" in vars(model)
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    model(torch.tensor([[1, 2, 3]]))
    (row,) = lookups.rows(steps.closed())
    lookups.close()
    assert row["lookup_count"] == 3
    assert lookups.counts.total(lookups.tables[0].name) == 3


def test_a_subclass_without_a_forward_of_its_own_is_counted():
    class Named(nn.Embedding):
        pass

    model, steps = Named(10, 2), Steps()
    torch.nn.utils.parametrize.register_parametrization(model, "weight", nn.Identity())
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    model(torch.tensor([1, 2]))
    (row,) = lookups.rows(steps.closed())
    lookups.close()
    assert row["lookup_count"] == 2
