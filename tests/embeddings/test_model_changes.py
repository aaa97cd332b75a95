"""A model that changes while it trains: what nobody sees any more is null, and told."""

from __future__ import annotations

import gc
import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.embeddings.brute import Steps
from trainobs import load_run, observe
from trainobs.embeddings import model_changes
from trainobs.embeddings.hooks import EmbeddingHook
from trainobs.embeddings.model_lookups import ModelLookups

IDS = torch.arange(4)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.ModuleDict({"a": nn.Embedding(10, 2), "b": nn.Embedding(10, 2)})

    def forward(self, names="ab", ids=IDS):
        return sum(self.inner[name](ids).sum() for name in names)


class Observed:
    """A model whose rows are asked for as a run asks for them: some steps at a time."""

    def __init__(self, model=None, every=1):
        self.model = model or Model()
        self.steps = Steps()
        self.lookups = ModelLookups(self.model, lambda: self.steps.serial, every=every)
        self._asked = 0
        self._rows = []

    def step(self, *args, **kwargs):
        self.steps.begin()
        self.model(*args, **kwargs)

    def ask(self):
        steps = self.steps.closed(self._asked + 1)
        self._asked = self.steps.serial
        self._rows.append(self.lookups.rows(steps))

    def column(self, table, name="lookup_count"):
        """Its values by step, with -1 where there is no row, which is a 0."""
        values = [-1.0] * self.steps.serial
        for row in np.concatenate(self._rows):
            if self.lookups.tables[row["table"]].name == table:
                values[row["step"]] = float(row[name])
        return ["null" if math.isnan(one) else int(one) for one in values]


@pytest.mark.parametrize("asked_before", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_a_table_that_was_replaced_is_null_from_the_very_step_on(asked_before, ends, caplog):
    run = Observed()
    for _ in range(3):
        run.step()
    if asked_before:
        run.ask()
    run.model.inner["a"] = nn.Embedding(20, 2)
    for _ in range(2):
        run.step()
    if ends:  # the model may be gone when the last rows are asked for
        run.lookups.close()
        del run.model
        gc.collect()
    run.ask()
    assert run.column("inner.a") == [4, 4, 4, "null", "null"]
    assert run.column("inner.b") == [4] * 5
    assert caplog.text.count("counts lookups of 'inner.a' no more") == 1
    assert "does not count" not in caplog.text
    run.lookups.close()


def test_a_table_of_two_modules_is_null_where_one_of_them_was_replaced():
    model = Model()
    model.inner["b"].weight = model.inner["a"].weight
    run = Observed(model)
    run.step()
    run.model.inner["b"] = nn.Embedding(10, 2)
    run.step()
    run.ask()
    assert run.column("inner.a") == [8, "null"]
    run.lookups.close()


def test_a_parent_that_was_replaced_takes_its_tables_along():
    run = Observed()
    run.step()
    run.model.inner = Model().inner
    run.step()
    run.ask()
    assert run.column("inner.a") == run.column("inner.b") == [4, "null"]
    run.lookups.close()


def test_a_table_that_rests_or_moves_within_the_model_counts_on(caplog):
    run = Observed()
    run.step("a")
    run.step("b")
    run.ask()
    run.model.moved = run.model.inner
    del run.model._modules["inner"]
    run.model.forward = lambda: run.model.moved["a"](IDS)
    for _ in range(2):
        run.step()
        run.ask()
    assert run.column("inner.a") == [4, -1, 4, 4]
    assert run.column("inner.b") == [-1, 4, -1, -1]
    assert not caplog.text
    run.lookups.close()


def test_only_steps_of_which_nothing_is_sure_are_null_where_a_table_rested():
    run = Observed()
    run.step("ab")
    run.step("b")
    run.ask()  # it is there still
    run.step("b")
    run.model.inner["a"] = nn.Embedding(20, 2)
    run.step("b")
    run.ask()
    assert run.column("inner.a") == [4, -1, "null", "null"]
    run.lookups.close()


@pytest.mark.parametrize("every", [1, 1000])
def test_a_vocabulary_that_grows_in_place_has_no_bad_ids(every, caplog):
    run = Observed(every=every)
    run.step()
    run.ask()
    run.step()
    table = run.model.inner["a"]
    table.weight = nn.Parameter(torch.randn(100, 2))
    table.num_embeddings = 100
    run.step("a", ids=IDS + 50)
    run.ask()
    run.lookups.close()
    assert run.column("inner.a") == [4, 4 if every == 1 else "null", "null"]
    assert run.column("inner.a", "outside_count")[-1] == "null"
    assert run.lookups.counts.total("inner.a") == (8 if every == 1 else 0)
    assert caplog.text.count("its table has 100 rows, and had 10") == 1
    assert "outside" not in caplog.text


def test_weights_of_another_type_leave_bytes_unknown_and_lookups_known(caplog):
    run = Observed()
    run.step()
    run.ask()
    run.model.inner["a"].double()
    run.step()
    run.ask()
    run.lookups.close()
    assert run.column("inner.a") == [4, 4]
    for name in ("bytes", "host_bytes", "hbm_bytes", "gradient_bytes"):
        assert run.column("inner.a", name)[1] == "null"
    assert run.column("inner.a", "bytes")[0] == 32
    assert run.column("inner.b", "bytes") == [32, 32]
    assert caplog.text.count("counts bytes of 'inner.a' no more") == 1


def own_forward(module):
    module.forward = lambda ids: functional.embedding(ids // 2, module.weight)


def cleared_hooks(module):
    module._forward_pre_hooks.clear()


@pytest.mark.parametrize("change", [own_forward, cleared_hooks])
def test_what_hides_the_ids_of_a_module_makes_it_null(change, caplog):
    run = Observed()
    run.step()
    change(run.model.inner["a"])
    run.step()
    run.ask()
    run.lookups.close()
    assert run.column("inner.a") == [4, "null"]
    assert caplog.text.count("counts lookups of 'inner.a' no more") == 1


def test_tables_that_come_later_are_told_once(caplog, monkeypatch):
    monkeypatch.setattr(model_changes, "LOOK_S", 0)
    run = Observed()
    run.step()
    for number in range(7):
        run.model.inner[f"new{number}"] = nn.Embedding(10, 2)
    run.ask()
    run.step()
    run.ask()
    run.lookups.close()
    assert caplog.text.count("does not count lookups of 'inner.new0', 'inner.new1'") == 1
    assert caplog.text.count("and 2 more") == 1


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.tables = nn.ModuleDict()

    def forward(self):
        if not self.tables:
            self.tables["user"] = nn.Embedding(10, 2)
        return self.tables["user"](IDS).sum()


def train(model, run_dir, steps=6, at=None):
    with observe(run_dir=run_dir, model=model, embedding_every=1, quiet=True) as obs:
        for number in obs.loader(range(steps)):
            with obs.step():
                model().backward()
            if at is not None:
                at(number)


def test_tables_of_the_first_forward_are_told(tmp_path, caplog):
    train(Lazy(), tmp_path / "run")
    assert caplog.text.count("does not count lookups of 'tables.user'") == 1
    assert load_run(tmp_path / "run").embeddings is None


def test_a_fault_is_in_the_state_of_the_run_and_leaves_what_was_noted(
    tmp_path, caplog, monkeypatch
):
    model = Model()
    call = EmbeddingHook._call

    def failing(self, *args):
        if self.site.path == "inner.b" and self.last_seen == 3:
            raise ZeroDivisionError("of the test")
        return call(self, *args)

    monkeypatch.setattr(EmbeddingHook, "last_seen", 0, raising=False)
    monkeypatch.setattr(EmbeddingHook, "_call", failing)
    train(model, tmp_path / "run", at=lambda n: monkeypatch.setattr(EmbeddingHook, "last_seen", n))
    run = load_run(tmp_path / "run")
    told = json.loads((tmp_path / "run" / "run.json").read_text())["capabilities"]["embeddings"]
    assert told == "given up: ZeroDivisionError: of the test"
    assert caplog.text.count("embedding lookups are no longer counted") == 1
    rows = run.embeddings.to_pylist()
    counts = [row["lookup_count"] for row in rows if row["table"] == "inner.b"]
    assert counts == [4, 4, 4, 4, None, None]
    assert not model.inner["a"]._forward_pre_hooks
