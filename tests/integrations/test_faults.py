"""A fault of ours, in any mark or loader's hook, leaves a training the same losses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.hooks.faults import Place, places
from tests.integrations.models import Lightning, loader
from trainobs import ObsCallback, observe
from trainobs.hooks.loader_listener import LoaderListener
from trainobs.runlog.reader import RunLog
from trainobs.session.session import Session
from trainobs.steps.clock import StepClock
from trainobs.steps.fetch_steps import FetchSteps
from trainobs.steps.ledger import Ledger

OWNERS = (LoaderListener, StepClock, FetchSteps, Ledger)
PLACES = [
    *(place for place in places() if place.owner in OWNERS and place.name != "marks"),
    Place(Session, "_on_close"),
    Place(Session, "_let_go"),
]
"""Without what the observer's thread asks for, too, which would tell a second time."""


@pytest.mark.parametrize("marked", [True, False], ids=["marked", "fetches"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_loop_of_ones_own(place, marked, tmp_path, told, monkeypatch):
    def train(obs: Any, spoil: Any) -> list[float]:
        torch.manual_seed(0)
        model, losses = nn.Linear(4, 1), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        for _ in range(2):
            for batch, _ in zip(obs.loader(loader()), obs.loader(range(8)), strict=True):
                if len(losses) == 2:
                    spoil()
                with obs.phase("forward"):
                    loss = model(batch).square().mean()
                loss.backward()
                if marked:
                    with obs.step():
                        optimizer.step()
                else:
                    optimizer.step()
                losses.append(loss.item())
        return losses

    failed: list[str] = []
    with observe(run_dir=tmp_path / "plain", probes="off", quiet=True) as obs:
        plain = train(obs, lambda: None)
    with observe(run_dir=tmp_path / "run", probes="off", quiet=True) as obs:
        assert train(obs, lambda: place.spoil(monkeypatch, failed)) == plain
    monkeypatch.undo()
    assert_told_once(tmp_path / "run", failed, told())


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_lightning_fit(place, tmp_path, told, monkeypatch):
    lightning = Lightning("lightning.pytorch", tmp_path)
    failed: list[str] = []

    def train(callback: ObsCallback, spoil: Any) -> list[float]:
        losses: list[float] = []

        class Losses(lightning.pl.Callback):
            def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *_: Any) -> None:
                losses.append(outputs["loss"].item())
                if len(losses) == 2:
                    spoil()

        trainer = lightning.trainer([Losses(), callback], max_epochs=2)
        before = trainer.profiler
        trainer.fit(lightning.module(), loader(), loader(4))
        assert trainer.profiler is before
        return losses

    plain = train(ObsCallback(run_dir=tmp_path / "plain", probes="off", quiet=True), lambda: None)
    callback = ObsCallback(run_dir=tmp_path / "run", probes="off", quiet=True)
    assert train(callback, lambda: place.spoil(monkeypatch, failed)) == plain
    monkeypatch.undo()
    assert_told_once(tmp_path / "run", failed, told())


def assert_told_once(run_dir: Path, failed: list[str], told: list[str]) -> None:
    assert len(told) == bool(failed), told
    assert RunLog.open(run_dir).info["summary"]["outcome"]
