"""Lookups in a session: their faults, their epochs, and children that inherit their hooks."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from trainobs.embeddings.model_lookups import ModelLookups
from trainobs.runlog.reader import RunLog
from trainobs.session.lookups import LOOKUPS
from trainobs.session.runs import open_session
from trainobs.session.session import Session
from trainobs.session.settings import Settings

IDS = torch.tensor([1, 2, 2])

PATIENCE_S = 30.0


@pytest.fixture
def model() -> nn.Embedding:
    return nn.Embedding(10, 2)


@pytest.fixture
def session(tmp_path, model) -> Session:
    session, _ = open_session(Settings.parse("off"), tmp_path / "run", log_every_n_steps=5)
    session.watch_lookups(ModelLookups(model, lambda: session.clock.serial, every=1))
    return session


def train(session: Session, model: nn.Module, steps: range, epoch: int = 0) -> None:
    for step in steps:
        session.clock.begin_batch(step, epoch)
        model(IDS).sum().backward()
        session.clock.end_step()


def recorded(tmp_path: Path) -> list[int]:
    file = tmp_path / "run" / "rank=0" / "embeddings-00000.parquet"
    return pq.read_table(file, partitioning=None)["step"].to_pylist()


def state(tmp_path: Path) -> str:
    return RunLog.open(tmp_path / "run").info["capabilities"][LOOKUPS]


def breaks(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def broken(self: ModelLookups, *args: Any) -> Any:
        raise RuntimeError("it broke")

    monkeypatch.setattr(ModelLookups, name, broken)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage().splitlines()[0] for r in caplog.records if r.levelname == "WARNING"]


def test_each_step_is_there_and_nothing_is_left_on_the_model(session, model, tmp_path, caplog):
    train(session, model, range(20))
    session.stop()
    assert recorded(tmp_path) == list(range(20))
    assert state(tmp_path) == "on"
    assert not model._forward_pre_hooks
    assert warnings(caplog) == []


@pytest.mark.parametrize("name", ["ready", "rows", "begin_epoch"])
def test_a_fault_is_told_once_and_takes_the_hooks_off(
    session, model, tmp_path, caplog, monkeypatch, name
):
    breaks(monkeypatch, name)
    count, deadline = 0, time.monotonic() + PATIENCE_S
    while model._forward_pre_hooks and time.monotonic() < deadline:
        train(session, model, range(count, count + 50))
        count += 50
    hooks = len(model._forward_pre_hooks)
    session.stop()
    assert warnings(caplog) == ["embedding lookups are no longer counted; the training goes on"]
    assert state(tmp_path) == "given up: RuntimeError: it broke"
    assert hooks == 0, "they come off in the training thread, between two steps"
    steps = RunLog.open(tmp_path / "run").ranks[0].step()
    assert steps.tolist() == [-1, *range(count)]


def test_hooks_that_do_not_come_off_end_no_training(session, model, tmp_path, caplog, monkeypatch):
    train(session, model, range(3))
    breaks(monkeypatch, "close")
    session.stop()
    assert warnings(caplog) == ["embedding lookups are no longer counted; the training goes on"]
    assert RunLog.open(tmp_path / "run").info["summary"]["outcome"] == "ok"


def test_an_epoch_begins_before_its_steps_are_asked_for(session, model, monkeypatch):
    heard: list[object] = []

    def tell(what: Callable[..., Any], inner: Any) -> Any:
        return lambda self, given: (heard.append(what(given)), inner(self, given))[1]

    monkeypatch.setattr(
        ModelLookups, "begin_epoch", tell(lambda e: f"epoch {e}", ModelLookups.begin_epoch)
    )
    monkeypatch.setattr(
        ModelLookups, "rows", tell(lambda steps: {s.epoch for s in steps}, ModelLookups.rows)
    )
    for epoch in range(3):
        train(session, model, range(4 * epoch, 4 * epoch + 4), epoch)
    session.stop()
    assert [word for word in heard if isinstance(word, str)] == ["epoch 0", "epoch 1", "epoch 2"]
    current = None
    for word in heard:
        if isinstance(word, str):
            current = int(word.split()[1])
        else:
            assert word == {current}


def test_a_forked_child_has_no_hooks_and_the_parent_keeps_its_own(session, model, tmp_path):
    train(session, model, range(3))
    pid = os.fork()
    if pid == 0:
        clean = not model._forward_pre_hooks
        with torch.no_grad():
            model(IDS)
        os._exit(0 if clean else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(model._forward_pre_hooks) == 1
    train(session, model, range(3, 6))
    session.stop()
    assert recorded(tmp_path) == list(range(6))


def test_what_is_watched_after_the_end_is_let_go_of(session, model):
    session.stop()
    session.watch_lookups(ModelLookups(model, lambda: 0))
    assert not model._forward_pre_hooks
