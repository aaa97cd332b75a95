"""Observing changes nothing of the training."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from tests.integrations.models import FEATURES, Lightning, Numbers, loader, step_numbers
from trainobs import ObsCallback


class Noisy(Numbers):
    """Every generator of random numbers that a data set may use."""

    def __getitem__(self, index: int) -> Tensor:
        noise = random.random() + float(np.random.default_rng(index).random())
        return super().__getitem__(index) + noise * torch.randn(FEATURES)


def weights(lightning: Lightning, callback: ObsCallback | None, **options: object) -> Any:
    class Dropping(type(lightning.module())):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Sequential(
                nn.Linear(FEATURES, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1)
            )

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.Adam(self.parameters(), lr=0.1)

    lightning.pl.seed_everything(11, workers=True, verbose=False)
    module, data = Dropping(), Noisy(24)
    workers = options.pop("num_workers", 0)
    batches = DataLoader(data, batch_size=4, shuffle=True, num_workers=workers)
    lightning.trainer(callback, max_epochs=2, **options).fit(module, batches, loader(4))
    return {**module.state_dict(), "next random number": torch.rand(1)}


@pytest.mark.parametrize(
    "options", [{}, {"accumulate_grad_batches": 2, "num_workers": 2, "num_sanity_val_steps": 1}]
)
def test_weights_are_the_same_to_the_last_bit(lightning, monkeypatch, options):
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # which Lightning sets
        monkeypatch.setenv(name, "0")
    callback = ObsCallback()
    observed = weights(lightning, callback, **options)
    plain = weights(lightning, None, **options)
    assert {name for name in plain if not torch.equal(plain[name], observed[name])} == set()
    assert len(step_numbers(callback.run_dir)) in (6, 12)


def test_a_compiled_module_has_the_same_graphs(lightning):
    import torch._dynamo
    from torch._dynamo.utils import counters

    class Compiled(type(lightning.module())):
        def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
            return self.layer(batch).square().mean()

    found = []
    callback = ObsCallback()
    for callbacks in ([], [callback]):
        torch._dynamo.reset()
        counters.clear()
        module = torch.compile(Compiled(), backend="eager")
        lightning.trainer(callbacks).fit(module, loader())
        found.append({name: Counter(counts) for name, counts in counters.items()})
    plain, observed = found
    assert plain["stats"]["unique_graphs"] > 0
    assert observed.get("graph_break", {}) == plain.get("graph_break", {})
    assert observed["stats"] == plain["stats"]
    assert step_numbers(callback.run_dir) == list(range(8))


def test_the_callback_leaves_nothing_in_a_checkpoint(lightning):
    path = lightning.directory / "last.ckpt"
    lightning.fit(ObsCallback()).save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)
    assert not [name for name in checkpoint["callbacks"] if "Obs" in name]


class Hostile(Dataset[Tensor]):
    """A data set whose attributes cannot be relied on."""

    def __init__(self) -> None:
        self.root = object()
        self.samples = [None, (), ("a\0b", 1), ("x" * 10_000, 2)]
        self.dataset = self

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Tensor:
        return torch.ones(FEATURES)

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        raise RuntimeError("nobody may ask for this")


def test_a_data_set_that_cannot_be_looked_into_is_trained_on_all_the_same(lightning):
    callback = ObsCallback()
    lightning.trainer(callback).fit(lightning.module(), DataLoader(Hostile(), batch_size=2))
    assert step_numbers(callback.run_dir) == [0, 1, 2]


@pytest.mark.parametrize("broken", ["add_data_roots", "begin_batch", "end_step"])
def test_a_fault_of_its_own_ends_the_observation_and_not_the_training(
    lightning, told, monkeypatch, broken
):
    callback = ObsCallback()
    steps = []

    class Sabotage(lightning.pl.Callback):
        """Takes away what the callback needs, as a fault of our own would."""

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            session = callback._session
            part = session if broken == "add_data_roots" else session.clock
            monkeypatch.setattr(part, broken, None)

        def on_train_batch_end(self, *arguments: object) -> None:
            steps.append(len(steps))

    trainer = lightning.trainer([callback, Sabotage()])
    before = trainer.profiler
    trainer.fit(lightning.module(), loader(), loader(4))
    assert steps == list(range(8))
    assert trainer.profiler is before
    assert told()[0] == "trainobs stops observing this run; the training goes on"
