"""Embedding lookups of real trainings, from the entry point to the report, against brute force."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests import warm
from tests.integrations.models import Lightning, logged_steps, step_numbers
from tests.integrations.trainers import TOKENS, VOCABULARY
from trainobs import ObsCallback, ObsTrainerCallback, observe
from trainobs.access import AccessCounts
from trainobs.analysis.summary import summarize
from trainobs.core.errors import SettingError
from trainobs.embeddings.model_lookups import ModelLookups
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog

ROWS, DIM, BATCH, WIDTH = 40, 4, 4, 3
OFF = {"probes": "off", "embedding_every": 1}


class Ids(Dataset[Tensor]):
    """Inputs of `WIDTH` ids, skewed."""

    def __init__(self, count: int) -> None:
        ids = np.random.default_rng(3).zipf(1.4, (count, WIDTH)) % ROWS
        self.ids = torch.from_numpy(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> Tensor:
        return self.ids[index]


def loader(count: int = 32) -> DataLoader[Tensor]:
    return DataLoader(Ids(count), batch_size=BATCH)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bag = nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
        self.top = nn.Linear(DIM, 1)

    def forward(self, ids: Tensor) -> Tensor:
        return self.top(self.bag(ids))


def train(run_dir: Path, model: nn.Module, **options: Any) -> None:
    """Two epochs of a plain loop."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observe(run_dir=run_dir, model=model, **(OFF | options)) as obs:
        for _ in range(2):
            for ids in obs.loader(loader()):
                with obs.step():
                    optimizer.zero_grad()
                    model(ids).square().mean().backward()
                    optimizer.step()


def lookups_of(run_dir: Path) -> list[dict[str, Any]]:
    """Rows of the record of lookups in training steps, in their order."""
    file = run_dir / "rank=0" / "embeddings-00000.parquet"
    rows = pq.read_table(file, partitioning=None).to_pylist()
    return sorted((row for row in rows if row["step"] is not None), key=lambda row: row["step"])


def expected(count: int = 32) -> list[dict[str, Any]]:
    """What a step looks up, counted by hand."""
    rows = []
    for ids in loader(count):
        unique = len(np.unique(ids))
        rows.append(
            {
                "lookup_count": ids.numel(),
                "bag_count": len(ids),
                "bytes": ids.numel() * DIM * 4,
                "host_bytes": ids.numel() * DIM * 4,
                "unique_rows": unique,
                "gradient_rows": unique,
                "gradient_bytes": unique * DIM * 4,
                "outside_count": 0,
            }
        )
    return rows


def check_record(run_dir: Path, table: str, epochs: int = 2, first_step: int = 0) -> None:
    rows, truth = lookups_of(run_dir), expected() * epochs
    assert [row["step"] for row in rows] == list(range(first_step, first_step + len(truth)))
    assert [row["epoch"] for row in rows] == [n // 8 for n in range(len(truth))]
    assert {row["table"] for row in rows} == {table}
    for row, known in zip(rows, truth, strict=True):
        assert {name: row[name] for name in known} == known
    counts = AccessCounts.load(run_dir / "access-counts")
    every = np.bincount(Ids(32).ids.numpy().ravel(), minlength=ROWS) * epochs
    np.testing.assert_array_equal(counts.counts(table), every)


def test_a_plain_loop_is_counted_exactly_and_reported(tmp_path):
    model = Model()
    train(tmp_path / "run", model)
    check_record(tmp_path / "run", "bag")
    summary = summarize(RunLog.open(tmp_path / "run"))
    total = 2 * 32 * WIDTH
    assert summary["metrics"]["embedding/lookup_count{table=bag}"]["sum"] == total
    assert summary["embeddings"]["state"] == "on"
    assert summary["embeddings"]["sampled_steps"] == 16
    assert summary["embeddings"]["skew"]["tables"]["bag"]["lookup_count"] == total
    assert "\nEmbedding lookups in a step" in render(summary)
    assert json.loads(json.dumps(summary)) is not None
    assert not model.bag._forward_pre_hooks


@pytest.fixture
def light(tmp_path) -> Lightning:
    return Lightning("lightning.pytorch", tmp_path)


def bag_module(light: Lightning, **methods: Any) -> Any:
    """The model as a Lightning module, built in `configure_model` as large ones are."""

    class Module(light.pl.LightningModule):
        def configure_model(self) -> None:
            self.model = Model()

        def training_step(self, ids: Tensor, index: int) -> Tensor:
            return self.model(ids).square().mean()

        def validation_step(self, ids: Tensor, index: int) -> None:
            self.model(ids)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return type("Changed", (Module,), methods)()


def test_lightning_finds_what_configure_model_made_and_leaves_validation_out(light, tmp_path):
    callback = ObsCallback(run_dir=tmp_path / "run", **OFF)
    module = bag_module(light)
    trainer = light.trainer(callback, max_epochs=2, num_sanity_val_steps=2)
    trainer.fit(module, loader(), loader())
    check_record(tmp_path / "run", "model.bag")
    assert not module.model.bag._forward_pre_hooks


def test_hugging_face_models_have_tables_too(hf):
    callback = ObsTrainerCallback(**OFF)
    hf.train(callback, num_train_epochs=2)
    assert callback.run_dir is not None
    words = [r for r in lookups_of(callback.run_dir) if "word_embeddings" in r["table"]]
    assert [row["step"] for row in words] == list(range(1, 17))
    tokens = words[0]["lookup_count"]
    assert tokens % TOKENS == 0
    assert {row["lookup_count"] for row in words} == {tokens}
    (table,) = {row["table"] for row in words}
    (facts,) = (t for t in RunLog.open(callback.run_dir).info["tables"] if t["name"] == table)
    assert facts["row_count"] == VOCABULARY


def test_points_go_to_the_trainers_own_tensorboard_logger(light, tmp_path):
    from lightning.pytorch.loggers import TensorBoardLogger

    logger = TensorBoardLogger(tmp_path)
    callback = ObsCallback(tensorboard="all", **OFF)
    light.trainer(callback, logger=logger).fit(bag_module(light), loader())
    tag = "trainobs/embedding/lookup_count"
    for curve in (tag, f"{tag}/model.bag"):
        assert logged_steps(Path(logger.log_dir), curve) == list(range(8))
    events = EventAccumulator(logger.log_dir, size_guidance={"images": 0}).Reload()
    assert len(events.Images("trainobs/embedding/skew")) == 1


def test_a_second_fit_of_one_callback_is_a_run_of_its_own(light, tmp_path):
    callback = ObsCallback(run_dir=tmp_path / "run", **OFF)
    for number in ("run", "run-2"):
        light.trainer(callback, max_epochs=2).fit(bag_module(light), loader())
        check_record(tmp_path / number, "model.bag")


def test_hooks_come_off_after_an_exception(light, tmp_path):
    def training_step(self: Any, ids: Tensor, index: int) -> Tensor:
        if index == 5:
            raise RuntimeError("it broke")
        return self.model(ids).square().mean()

    callback = ObsCallback(run_dir=tmp_path / "run", **OFF)
    module = bag_module(light, training_step=training_step)
    with pytest.raises(RuntimeError, match="it broke"):
        light.trainer(callback).fit(module, loader())
    assert not module.model.bag._forward_pre_hooks
    assert [row["step"] for row in lookups_of(tmp_path / "run")] == [0, 1, 2, 3, 4]


def test_weights_are_the_same_to_the_last_bit(tmp_path):
    weights = []
    for every in (1, "auto", "off"):
        model = Model()
        train(tmp_path / "run", model, embedding_every=every)
        weights.append(model.state_dict())
    assert all(value.isfinite().all() for value in weights[0].values())
    for other in weights[1:]:
        assert other.keys() == weights[0].keys()
        assert all(torch.equal(other[name], weights[0][name]) for name in other)


@pytest.mark.parametrize("every", ["off", 0])
def test_switched_off_nothing_is_put_on_the_model_or_written(tmp_path, every):
    model = Model()
    hooked = []
    model.bag.register_forward_hook(lambda *_: hooked.append(len(model.bag._forward_pre_hooks)))
    train(tmp_path / "run", model, embedding_every=every)
    assert hooked == [0] * 16
    assert "embedding" not in render(summarize(RunLog.open(tmp_path / "run"))).lower()
    assert not list((tmp_path / "run").rglob("*embeddings*"))


def test_a_model_without_tables_leaves_no_trace(tmp_path, caplog):
    files = {}
    for name, model in (("none", None), ("linear", nn.Linear(WIDTH, 1))):
        with observe(run_dir=tmp_path / name, probes="off", model=model) as obs:
            for ids in obs.loader(loader()):
                with obs.step():
                    _ = (model or nn.Linear(WIDTH, 1))(ids.float())
        run = json.loads((tmp_path / name / "run.json").read_text())
        kept = sorted(p.name for p in (tmp_path / name).rglob("*") if "tfevents" not in p.name)
        files[name] = kept, run.keys(), run["capabilities"], run["summary"].keys()
    assert files["none"] == files["linear"]
    assert not [r for r in caplog.records if "embedding" in r.getMessage()]


def test_sampling_tells_shapes_of_every_step_and_rows_of_some(tmp_path):
    train(tmp_path / "run", Model(), embedding_every=5)
    rows = lookups_of(tmp_path / "run")
    assert [row["lookup_count"] for row in rows] == [BATCH * WIDTH] * 16
    sampled = [row["step"] for row in rows if row["sampled"]]
    assert len(sampled) in (3, 4)
    assert [step // 5 for step in sampled][:3] == [0, 1, 2]
    assert {row["unique_rows"] is None for row in rows if not row["sampled"]} == {True}
    metrics = summarize(RunLog.open(tmp_path / "run"))["metrics"]
    assert metrics["embedding/unique_rows{table=bag}"]["sum"] is None
    assert metrics["embedding/lookup_count{table=bag}"]["sum"] == 16 * BATCH * WIDTH


@pytest.mark.parametrize("make", [observe, ObsCallback, ObsTrainerCallback])
@pytest.mark.parametrize("every", [-1, 1.5, True, "never", None])
def test_a_bad_value_is_refused_at_once(make, every):
    with pytest.raises(SettingError) as caught:
        make(embedding_every=every)
    assert str(caught.value).splitlines() == [
        "bad value for `embedding_every`",
        f"  found: {every!r}",
        '  do:    give "auto", "off", or a whole number of steps from 1; 0 is "off"',
    ]


def test_what_is_no_model_is_refused_at_once():
    with pytest.raises(SettingError, match="a DataLoader"):
        observe(model=loader())


def test_a_fault_ends_the_counting_and_nothing_else(tmp_path, told, monkeypatch):
    def broken(self: ModelLookups, steps: Any) -> Any:
        raise RuntimeError("it broke")

    monkeypatch.setattr(ModelLookups, "rows", broken)
    model = Model()
    train(tmp_path / "run", model)
    assert told() == ["embedding lookups are no longer counted; the training goes on"]
    assert not model.bag._forward_pre_hooks
    assert step_numbers(tmp_path / "run") == list(range(16))
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert summary["embeddings"]["state"] == "given up: RuntimeError: it broke"
    assert "embeddings: given up: RuntimeError: it broke" in render(summary)
    assert not (tmp_path / "run" / "access-counts").exists()


def test_a_model_that_cannot_be_looked_through_is_told_and_trains(tmp_path, told):
    class Odd(Model):
        def named_children(self) -> Any:
            raise RuntimeError("no children")

    train(tmp_path / "run", Odd())
    assert told() == ["trainobs does not count embedding lookups; the training goes on"]
    assert step_numbers(tmp_path / "run") == list(range(16))


def test_torchrec_collections_are_counted_by_table(tmp_path):
    with warnings.catch_warnings():  # FBGEMM's, of what its build lacks
        warnings.simplefilter("ignore")
        torchrec = pytest.importorskip("torchrec")
    config = torchrec.EmbeddingBagConfig
    tables = [
        config(name="user", num_embeddings=50, embedding_dim=4, feature_names=["u", "friend"]),
        config(name="item", num_embeddings=20, embedding_dim=8, feature_names=["i"]),
    ]
    model = nn.Sequential(torchrec.EmbeddingBagCollection(tables=tables))
    random = np.random.default_rng(0)
    truth: dict[tuple[int, str], list[np.ndarray]] = {}
    with observe(run_dir=tmp_path / "run", model=model, **OFF) as obs:
        for step in range(6):
            lengths = random.integers(0, 4, (3, 5))
            parts = [
                random.integers(0, rows, n.sum())
                for rows, n in zip((50, 50, 20), lengths, strict=True)
            ]
            truth[step, "user"], truth[step, "item"] = parts[:2], parts[2:]
            ids = torchrec.KeyedJaggedTensor(
                ["u", "friend", "i"],
                torch.from_numpy(np.concatenate(parts)),
                lengths=torch.from_numpy(lengths.ravel()),
            )
            with obs.step():
                model(ids).values().sum().backward()
    rows = lookups_of(tmp_path / "run")
    assert len(rows) == 12
    for row in rows:
        ids = np.concatenate(truth[row["step"], row["table"]])
        assert row["lookup_count"] == len(ids)
        assert row["unique_rows"] == len(np.unique(ids))
        assert row["bag_count"] == (10 if row["table"] == "user" else 5)
    info = RunLog.open(tmp_path / "run").info
    assert [(t["name"], t["features"]) for t in info["tables"]] == [
        ("user", ["u", "friend"]),
        ("item", ["i"]),
    ]


LOOP = """
import sys, torch
from trainobs import observe
model = torch.nn.Embedding(10, 2)
with observe(run_dir=sys.argv[1], probes="off", model=model) as obs:
    with obs.step():
        model(torch.tensor([1, 2]))
print("torchrec" in sys.modules, "fbgemm_gpu" in sys.modules)
"""


def test_torchrec_is_not_imported_for_a_model_without_it(tmp_path):
    command = [sys.executable, "-c", LOOP, tmp_path / "run"]
    done = warm.run(command, check=True)
    assert done.stdout == "False False\n"
    assert lookups_of(tmp_path / "run")[0]["lookup_count"] == 2


def test_a_call_that_torch_refuses_costs_nothing_that_was_counted(tmp_path, told):
    table = nn.Embedding(100, 4)
    with observe(run_dir=tmp_path / "run", model=table, embedding_every=1, probes="off") as obs:
        for number in obs.loader(range(10)):
            ids = torch.arange(32)
            with obs.step():
                try:
                    table(ids.float() if number == 5 else ids)
                except RuntimeError:
                    assert number == 5
                with obs.phase("validation"):
                    table(ids)
    assert told() == []
    summary = summarize(RunLog.open(tmp_path / "run"))
    (name,) = [name for name in summary["metrics"] if name.startswith("embedding/lookup_count")]
    assert summary["metrics"][name]["sum"] == 9 * 32
    assert AccessCounts.load(tmp_path / "run").total("Embedding") == 9 * 32


def test_sizes_of_numpys_make_a_run_log_that_can_be_read(tmp_path):
    """As in dlrm_s_pytorch.py, whose tables get their sizes from an array."""
    rows, dim, workers = np.array([ROWS, DIM, 0])
    model = nn.Sequential(nn.EmbeddingBag(rows, dim), nn.Linear(dim, 1))
    with observe(run_dir=tmp_path / "run", model=model, **OFF) as obs:
        for ids in obs.loader(DataLoader(Ids(32), BATCH, num_workers=workers)):
            model(ids).sum().backward()
    summary = summarize(RunLog.open(tmp_path / "run"))
    assert "40" in render(summary)
    (table,) = RunLog.open(tmp_path / "run").info["tables"]
    assert (table["row_count"], table["row_bytes"]) == (ROWS, 4 * DIM)
