"""On every Trainer of a machine, by Lightning's entry points; and nothing of theirs changes."""

from __future__ import annotations

import copy
import os
import pickle
import re
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from tests import warm
from tests.architecture.rooms import SOURCE
from tests.integrations.models import Lightning, loader, step_numbers, told_by_trainobs
from trainobs import ObsCallback
from trainobs.core.once import Once
from trainobs.integrations import auto, user_warnings

EIGHT = list(range(8))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entry points of pyproject.toml, as pip would install them, and switched on."""
    project = (SOURCE.parent / "pyproject.toml").read_text()
    entries = re.findall(r'\[project\.entry-points\."(.+?)"\]\n(\w+) = "(.+?)"\n', project)
    lines = [f"[{group}]\n{name} = {function}" for group, name, function in entries]
    metadata = tmp_path / "site" / "trainobs-0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: trainobs\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(metadata.parent)
    monkeypatch.setenv("TRAINOBS_AUTO", "1")
    monkeypatch.setenv("TRAINOBS_DIR", str(tmp_path / "runs"))
    monkeypatch.setattr(user_warnings, "_once", Once())
    return tmp_path / "runs"


def observers(trainer: Any) -> list[ObsCallback]:
    return [callback for callback in trainer.callbacks if isinstance(callback, ObsCallback)]


def runs(place: Path) -> list[Path]:
    return sorted(path for path in place.iterdir() if (path / "run.json").exists())


def files(directory: Path, *but: str) -> set[str]:
    found = (str(path.relative_to(directory)) for path in directory.rglob("*"))
    return {name for name in found if not name.startswith(but)}


def test_a_trainer_is_observed_without_a_word_in_the_script(lightning, installed):
    lightning.fit()
    (run,) = runs(installed)
    assert step_numbers(run) == EIGHT


@pytest.mark.parametrize("value", [None, "", "0", "off", "no", "maybe"])
def test_unless_it_is_asked_for_nothing_is_added(lightning, installed, monkeypatch, value):
    if value is None:
        monkeypatch.delenv("TRAINOBS_AUTO")
    else:
        monkeypatch.setenv("TRAINOBS_AUTO", value)
    trainer = lightning.fit()
    assert observers(trainer) == []
    assert not installed.exists()


def test_checkpoint_callbacks_stay_last_and_what_the_user_gave_stays_in_order(lightning, installed):
    mine = [lightning.pl.Callback(), lightning.pl.callbacks.ModelCheckpoint(lightning.directory)]
    trainer = lightning.trainer(mine, enable_checkpointing=True, enable_progress_bar=True)
    (observer,) = observers(trainer)
    assert trainer.callbacks[0] is mine[0]
    assert trainer.callbacks[-1] is mine[1]
    assert trainer.callbacks[-2] is observer


@pytest.mark.parametrize("where", ["trainer", "module"])
def test_the_users_own_callback_wins(lightning, installed, where):
    callback, module = ObsCallback(), lightning.module()
    if where == "module":
        module.configure_callbacks = lambda: [callback]
    trainer = lightning.trainer([callback] if where == "trainer" else None)
    trainer.fit(module, loader())
    assert step_numbers(callback.run_dir) == EIGHT
    assert not installed.exists() or runs(installed) == []


def test_two_installations_observe_once(lightning, installed):
    lightning.fit(auto.callbacks())
    assert len(runs(installed)) == 1


@pytest.mark.parametrize("options", [{"logger": False}, {"logger": True}])
def test_the_files_of_the_training_and_its_checkpoints_are_the_same(
    lightning, installed, monkeypatch, options
):
    made = []
    for name, switch in (("observed", "1"), ("plain", "0")):
        monkeypatch.setenv("TRAINOBS_AUTO", switch)
        root = lightning.directory / name
        trainer = lightning.trainer(
            enable_checkpointing=True, default_root_dir=root, max_epochs=1, **options
        )
        trainer.fit(lightning.module(), loader(), loader())
        checkpoint = torch.load(trainer.checkpoint_callback.best_model_path, weights_only=False)
        keys = {key: sorted(v) for key, v in checkpoint.items() if isinstance(v, dict)}
        made.append((files(root, "lightning_logs/version_0/events"), keys))
        assert len(list(root.rglob("events.*"))) == options["logger"]
    assert made[0] == made[1]
    assert len(runs(installed)) == 1


@pytest.mark.parametrize("fault", ["a file", "below a file", "read-only", "a URL"])
def test_without_a_place_to_write_to_it_is_told_once(
    lightning, installed, monkeypatch, tmp_path, told, fault
):
    place = tmp_path / "place"
    place.mkdir() if fault == "read-only" else place.touch()
    monkeypatch.setenv("TRAINOBS_DIR", str(place / "deeper" if fault == "below a file" else place))
    if fault == "a URL":
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("TRAINOBS_DIR", "s3://bucket/runs")
    if fault == "read-only":  # root may write anywhere
        monkeypatch.setattr(os, "access", lambda path, mode: False)
    trainer = lightning.fit()
    trainer.fit(lightning.module(), loader())
    lightning.fit()
    assert told() == [
        "trainobs does not observe the Trainers of this process, as TRAINOBS_AUTO asks"
    ]
    assert not (tmp_path / "s3:").exists()


def test_a_lower_level_and_a_bad_setting_are_no_concern_of_the_script(
    lightning, installed, monkeypatch, told
):
    with mock.patch("trainobs.session.session.Opening.backend", return_value=(None, "not here")):
        lightning.fit()
    assert told() == []
    monkeypatch.setenv("TRAINOBS", "perhaps")
    lightning.fit()
    assert len(told()) == 1
    assert len(runs(installed)) == 1


def test_nothing_is_said_on_any_channel(lightning, installed, capfd):
    lightning.fit()
    capfd.readouterr()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", module="(lightning|pytorch_lightning|torch)")
        trainer = lightning.trainer()
        trainer.fit(lightning.module(), loader())
    said = told_by_trainobs("".join(capfd.readouterr()))
    assert [line for line in said if "from entry point" not in line] == []


HOOKS = [
    "setup",
    "on_fit_start",
    "on_sanity_check_start",
    "on_train_start",
    "on_train_epoch_start",
    "on_train_batch_start",
    "on_before_backward",
    "on_before_optimizer_step",
    "on_train_batch_end",
    "on_validation_start",
    "on_validation_batch_end",
    "on_train_epoch_end",
    "on_train_end",
    "on_fit_end",
    "teardown",
]


def failing(lightning: Lightning, *hooks: str) -> Any:
    class Failing(lightning.pl.Callback):
        pass

    def fail(self: Any, *arguments: object, **options: object) -> None:
        raise LookupError("the user's own")

    for hook in hooks:
        setattr(Failing, hook, fail)
    return Failing()


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("first", [True, False])
def test_an_exception_in_any_hook_arrives_and_ends_the_run(lightning, installed, hook, first):
    """Also if a callback fails again as it hears of the exception, before the observer does."""
    trainer = lightning.trainer(failing(lightning, hook, "on_exception"), num_sanity_val_steps=1)
    if not first:
        trainer.callbacks.reverse()
    before, threads = trainer.profiler, threading.active_count()
    with pytest.raises(LookupError, match="^the user's own$"):
        trainer.fit(lightning.module(), loader(), loader())
    assert trainer.profiler is before
    assert threading.active_count() == threads
    assert all(observer._session is None for observer in observers(trainer))


def test_clocks_that_a_test_has_replaced_are_asked_as_often_as_without(
    lightning, installed, monkeypatch
):
    """Tests of training scripts do so, by a list of as many readings as they expect."""
    asked = []
    for switch in ("0", "1"):
        monkeypatch.setenv("TRAINOBS_AUTO", switch)
        trainer = lightning.trainer(lightning.pl.callbacks.Timer())
        clocks = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter")}
        stands_in = {name: mock.Mock(wraps=clock) for name, clock in clocks.items()}
        with mock.patch.multiple(time, **stands_in):
            trainer.fit(lightning.module(), loader())
        asked.append({name: clock.call_count for name, clock in stands_in.items()})
    assert asked[0] == asked[1]
    assert asked[0]["monotonic"] > 0, "the Timer's"
    assert len(runs(installed)) == 1


def test_a_trainer_is_copied_and_pickled_while_it_fits(lightning, installed):
    made = []

    class Copying(lightning.pl.Callback):
        def on_train_batch_end(self, trainer: Any, *arguments: object) -> None:
            made[:] = [copy.deepcopy(trainer.profiler), copy.copy(trainer.profiler)]
            made.append(pickle.loads(pickle.dumps(observers(trainer))))

    trainer = lightning.fit([Copying()])
    assert [type(it) for it in made[:2]] == [type(trainer.profiler)] * 2
    assert [type(it) for it in made[2]] == [type(it) for it in observers(trainer)]


def test_a_trainer_of_mocks_is_left_alone(lightning, installed):
    (observer,) = observers(lightning.trainer())
    trainer, threads = mock.MagicMock(), threading.active_count()
    for hook in [*HOOKS, "on_exception", "on_load_checkpoint", "on_save_checkpoint"]:
        arguments = {"setup": ["validate"], "teardown": ["fit"]}.get(hook, [])
        signature = getattr(observer, hook).__code__.co_argcount if not arguments else 0
        more = [mock.MagicMock()] * max(0, signature - 3)
        getattr(observer, hook)(trainer, mock.MagicMock(), *arguments, *more)
    assert threading.active_count() == threads


def test_a_fit_inside_a_fit_and_one_after_the_other(lightning, installed):
    class Nesting(lightning.pl.Callback):
        def on_train_epoch_end(self, *arguments: object) -> None:
            lightning.fit()

    trainer = lightning.fit(Nesting())
    trainer.fit_loop.max_epochs = 2
    trainer.callbacks = observers(trainer)
    trainer.fit(lightning.module(), loader())
    found = [step_numbers(run) for run in runs(installed)]
    assert sorted(found) == sorted([EIGHT, EIGHT, list(range(8, 16))])


@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_fork"])
def test_processes_that_the_trainer_starts_have_one_run_together(installed, tmp_path, strategy):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, Path(__file__).with_name("spawn_job.py"), strategy, tmp_path]
    done = warm.run(command, env=environment)
    assert done.returncode == 0, done.stderr
    (run,) = runs(installed)
    assert [step_numbers(run, rank) for rank in (0, 1)] == [list(range(4))] * 2


def test_tuners_run_before_and_leave_no_steps_behind(lightning, installed, monkeypatch):
    monkeypatch.setattr("tqdm.tqdm.monitor_interval", 0)  # or its thread stays
    finder = lightning.pl.callbacks.LearningRateFinder(num_training_steps=3, update_attr=False)
    module = lightning.module()
    module.lr = 0.1
    trainer = lightning.trainer(finder, logger=False, enable_checkpointing=True)
    trainer.fit(module, loader())
    (run,) = runs(installed)
    assert trainer.global_step > 3  # 8, but for Lightning before 2.5.3, where batches are missing
    assert step_numbers(run) == list(range(trainer.global_step))
