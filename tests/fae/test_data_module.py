"""Lightning trains on packed batches, saves where it is, and goes on there."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from tests.fae.packing import Inputs, Stream, collate, digest, is_pure, profile
from trainobs.fae import PackedLoader, ShuffleScheduler, pack, pack_data_module
from trainobs.fae.kjt.split import is_split


class Module(L.LightningDataModule):
    """One loader for training, one for validation."""

    def __init__(self, count: int = 60) -> None:
        super().__init__()
        self.count = count

    def train_dataloader(self):
        return DataLoader(Inputs(self.count), 4, shuffle=True, collate_fn=collate)

    def val_dataloader(self):
        return DataLoader(Inputs(8), 4, collate_fn=collate)


class Recorder(L.LightningModule):
    """Records what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.digests: list[str] = []
        self.kinds: list[bool] = []
        self.validated: list[bool] = []

    def training_step(self, batch, _):
        self.digests.append(digest(batch))
        self.kinds.append(is_pure(batch))
        return self.weight * batch.labels.sum()

    def validation_step(self, batch, _):
        self.validated.append(is_split(batch.sparse_features))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def trainer(tmp_path):
    def make(**more) -> L.Trainer:
        return L.Trainer(
            default_root_dir=tmp_path, accelerator="cpu", logger=False, enable_progress_bar=False,
            enable_model_summary=False, **more,
        )  # fmt: skip

    return make


QUIET = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")


@QUIET
def test_lightning_trains_on_packed_batches_and_validates_on_others(trainer):
    model, of = Recorder(), profile(0.9)
    module = pack_data_module(Module(), of, window=5)
    trainer(max_epochs=2, enable_checkpointing=False).fit(model, datamodule=module)
    packed = pack(Module().train_dataloader(), of, window=5)
    assert model.digests == [digest(batch) for _ in range(2) for batch in packed]
    assert any(model.kinds)
    assert model.validated
    assert not any(model.validated)
    assert isinstance(module.packed, PackedLoader)


class Scheduled(Recorder):
    """Reports a test loss where one is due."""

    def on_train_batch_end(self, *_):
        scheduler = self.trainer.train_dataloader.scheduler
        if scheduler.is_due:
            scheduler.report(1.0 + self.global_step % 7)


@QUIET
@pytest.mark.parametrize(
    ("checkpoint", "when"),
    [
        ("step=10", {"every_n_train_steps": 5}),
        ("step=15", {"every_n_train_steps": 5}),  # with the last batch of an epoch
        ("step=20", {"every_n_train_steps": 5}),
        ("step=15", {"every_n_epochs": 1, "save_on_train_epoch_end": True}),
        ("step=15", {"every_n_epochs": 1, "save_on_train_epoch_end": False}),
    ],
)
@pytest.mark.parametrize("how", ["module", "module with a scheduler", "loader"])
def test_lightning_goes_on(trainer, tmp_path, checkpoint, when, how):
    of = profile(0.9)
    model = Scheduled if "scheduler" in how else Recorder

    def data():
        if how == "loader":
            packed = pack(Module().train_dataloader(), of, window=5)
            return {"train_dataloaders": packed, "val_dataloaders": Module().val_dataloader()}
        arguments = {"scheduler": ShuffleScheduler()} if "scheduler" in how else {}
        return {"datamodule": pack_data_module(Module(), of, window=5, **arguments)}

    whole, rest = model(), model()
    saved = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, **when)
    trainer(max_epochs=3, callbacks=[saved]).fit(whole, **data())
    assert len(whole.digests) == 45
    path = tmp_path / f"{checkpoint}.ckpt"
    trainer(max_epochs=3, enable_checkpointing=False).fit(rest, **data(), ckpt_path=path)
    assert rest.digests == whole.digests[int(checkpoint.removeprefix("step=")) :]


@QUIET
def test_lightning_goes_on_with_other_hot_rows_behind_an_epoch(trainer, tmp_path):
    other, rest = profile(0.5), Recorder()
    saved = ModelCheckpoint(tmp_path, filename="end", every_n_epochs=1)
    before = pack_data_module(Module(), profile(0.9), window=5)
    trainer(max_epochs=1, callbacks=[saved]).fit(Recorder(), datamodule=before)
    behind = pack_data_module(Module(), other, window=4)
    path = tmp_path / "end.ckpt"
    trainer(max_epochs=2, enable_checkpointing=False).fit(rest, datamodule=behind, ckpt_path=path)
    packed = pack(Module().train_dataloader(), other, window=4)
    packed.set_epoch(1)
    assert rest.digests == [digest(batch) for batch in packed]


class Trained(Recorder):
    """Takes any batch."""

    def training_step(self, batch, _):
        return self.weight * batch.labels.sum()


class Counted(Module):
    """Has a state of its own."""

    seen = loaded = 0

    def on_before_batch_transfer(self, batch, _):
        self.seen += 1
        return batch

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.loaded = state["seen"]


@QUIET
@pytest.mark.parametrize(("before", "behind"), [("plain", "packed"), ("packed", "plain")])
def test_the_state_of_a_module_outlives_its_packing(trainer, tmp_path, before, behind):
    def data(how):
        return Counted() if how == "plain" else pack_data_module(Counted(), profile(0.9), window=5)

    saved, path = ModelCheckpoint(tmp_path, filename="end"), tmp_path / "end.ckpt"
    trainer(max_epochs=1, callbacks=[saved]).fit(Trained(), datamodule=data(before))
    module, rest = data(behind), trainer(max_epochs=2, enable_checkpointing=False)
    rest.fit(Trained(), datamodule=module, ckpt_path=path)
    assert module.loaded == torch.load(path, weights_only=False)["Counted"]["seen"] > 0


class Streamed(Module):
    """Training data without a length."""

    def train_dataloader(self):
        return DataLoader(Stream(self.count), 4, collate_fn=collate)


@QUIET
@pytest.mark.parametrize("how", ["module", "loader"])
@pytest.mark.parametrize("step", range(5, 31, 5))  # 15 and 30 with the last batch of an epoch
def test_lightning_goes_on_in_a_stream_of_which_it_fetches_a_batch_ahead(
    trainer, tmp_path, how, step
):
    of = profile(0.9)

    def data():
        if how == "module":
            return {"datamodule": pack_data_module(Streamed(), of, window=5)}
        packed = pack(Streamed().train_dataloader(), of, window=5)
        packed.ahead = 1
        return {"train_dataloaders": packed}

    whole, rest = Recorder(), Recorder()
    saved = ModelCheckpoint(tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=5)
    trainer(max_epochs=3, callbacks=[saved]).fit(whole, **data())
    assert len(whole.digests) == 45
    path = tmp_path / f"step={step}.ckpt"
    trainer(max_epochs=3, enable_checkpointing=False).fit(rest, **data(), ckpt_path=path)
    assert rest.digests == whole.digests[step:]


def test_ranks_of_lightning_share_the_data_or_are_told(tmp_path):
    command = [sys.executable, "-m", "tests.fae.lightning_ranks", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for how in ("loader", "module"):
        first, second = (rank[how] for rank in ranks)
        assert first["kinds"] == second["kinds"]
        assert any(first["kinds"])
    for rank in ranks:
        assert sorted(rank["loader"]["numbers"]) == sorted([*range(40), *range(40)])
        (told,) = rank["loader"]["told"]
        assert told.startswith("all ranks read the same inputs")
        assert rank["module"]["told"] == []
        assert len(rank["module"]["numbers"]) == 40
    numbers = [number for rank in ranks for number in rank["module"]["numbers"]]
    assert sorted(numbers) == sorted([*range(40), *range(40)])


def test_a_packed_module_is_its_class_and_leaves_the_original_alone():
    module = Module(40)
    packed = pack_data_module(module, profile(0.9), seed=3, window=5)
    assert isinstance(packed, Module)
    assert isinstance(packed, L.LightningDataModule)
    assert type(module) is Module
    assert isinstance(module.train_dataloader(), DataLoader)
    assert len(packed.train_dataloader()) == 10


def test_a_packed_module_pickles():
    packed = pickle.loads(pickle.dumps(pack_data_module(Module(40), profile(0.9), window=5)))
    assert isinstance(packed, Module)
    assert len(list(packed.train_dataloader())) == 10
