"""Which trainings of a Hugging Face Trainer are observed, and where their record goes."""

from __future__ import annotations

import copy
import pickle
import time
from pathlib import Path
from typing import Any

import pytest
from torch.utils.tensorboard import SummaryWriter
from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from tests.integrations.models import logged_steps, read_steps, step_numbers
from tests.integrations.trainers import Tokens
from trainobs import ObsTrainerCallback
from trainobs.core.errors import SettingError
from trainobs.core.once import Once
from trainobs.integrations import guard
from trainobs.integrations.trainer_taps import Tap
from trainobs.tensorboard import sink

EIGHT = list(range(1, 9))


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def event_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("events.out.tfevents.*"))


def test_a_callback_is_taken_as_object_and_as_class_and_when_added_later(hf):
    for way in ("object", "class", "added"):
        callback = ObsTrainerCallback()
        trainer = hf.trainer(*{"object": [callback], "class": [ObsTrainerCallback]}.get(way, []))
        if way == "added":
            trainer.add_callback(callback)
        trainer.train()
        (used,) = (c for c in trainer.callback_handler.callbacks if type(c) is ObsTrainerCallback)
        assert step_numbers(used.run_dir) == EIGHT


def test_each_training_has_a_run_of_its_own(hf):
    callback = ObsTrainerCallback()
    trainer = hf.train(callback, report_to="tensorboard")
    first = callback.run_dir
    trainer.train()
    assert first != callback.run_dir
    assert step_numbers(first) == step_numbers(callback.run_dir) == EIGHT


def test_what_is_no_training_is_left_alone_and_told_once(hf, monkeypatch, capfd):
    monkeypatch.setattr(guard, "_once", Once())
    callback = ObsTrainerCallback()
    trainer = hf.trainer(callback)
    for _ in range(2):
        trainer.evaluate()
        trainer.predict(Tokens(4))
    trainer.save_model()
    assert callback.run_dir is None
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("trainobs:")]
    assert told == [
        "trainobs: nothing is recorded of `evaluate`: only `train` is observed",
        "trainobs: nothing is recorded of `predict`: only `train` is observed",
    ]
    assert not [name for name in files(hf.directory) if "trainobs" in name]
    trainer.train()
    rows = len(read_steps(callback.run_dir))
    trainer.evaluate()
    trainer.predict(Tokens(4))
    assert len(read_steps(callback.run_dir)) == rows == 9


class Copying(TrainerCallback):
    """Copies a thing in the middle of a training."""

    def __init__(self, thing: Any) -> None:
        self.thing = thing

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        self.copies = [copy.copy(self.thing), copy.deepcopy(self.thing)]
        self.copies.append(pickle.loads(pickle.dumps(self.thing)))


def test_copies_and_pickles_of_the_callback_hold_the_settings_and_no_run(hf):
    callback = ObsTrainerCallback(run_dir=hf.directory / "mine", log_every_n_steps=3)
    copying = Copying(callback)
    hf.train(callback, copying)
    for number, made in enumerate(copying.copies, 2):
        assert (type(made), made.run_dir) == (ObsTrainerCallback, None)
        hf.train(made)
        assert made.run_dir == hf.directory / f"mine-{number}"
        assert step_numbers(made.run_dir) == EIGHT


class Holder:
    """A stand-in for a Trainer that can be pickled whole."""

    def method(self) -> Holder:
        return self


@pytest.mark.parametrize("way", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_of_a_tapped_object_has_its_own_method(way):
    holder = Holder()
    tap = Tap(holder, "method", lambda method: method())
    made = way(holder)
    assert made.method() is made
    assert holder.method() is holder
    tap.remove()
    assert vars(holder) == {}


def test_a_tap_that_somebody_wrapped_stays_and_only_forwards():
    holder, calls = Holder(), []
    tap = Tap(holder, "method", lambda method: calls.append("tap") or method())
    inner = holder.method
    holder.method = lambda: calls.append("theirs") or inner()
    tap.remove()
    assert holder.method() is holder
    assert calls == ["theirs"]


def test_a_method_that_somebody_set_before_is_put_back():
    holder = Holder()
    theirs = holder.method = lambda: None
    Tap(holder, "method", lambda method: method()).remove()
    assert holder.method is theirs


def test_of_two_in_one_trainer_the_second_stays_idle_and_says_so(hf, told):
    one, other = ObsTrainerCallback(), ObsTrainerCallback()
    hf.train(one, other)
    assert told() == ["a second ObsTrainerCallback in one Trainer stays idle"]
    assert step_numbers(one.run_dir) == EIGHT
    assert other.run_dir is None


@pytest.mark.parametrize("word", ["off", "FALSE"])
def test_the_environment_turns_it_off(hf, monkeypatch, word):
    monkeypatch.setenv("TRAINOBS", word)
    callback = ObsTrainerCallback(probes=["block"])
    trainer = hf.train(callback)
    assert callback.run_dir is None
    assert files(hf.directory) == ["out"]
    assert not [value for value in vars(trainer).values() if type(value) is Tap]


def test_a_bad_setting_is_an_error_with_its_name():
    with pytest.raises(SettingError, match="log_every_n_steps"):
        ObsTrainerCallback(log_every_n_steps=0)
    with pytest.raises(TypeError, match="positional"):
        ObsTrainerCallback("auto")


def test_events_go_into_the_file_of_the_trainers_own_callback(hf, monkeypatch, capfd):
    monkeypatch.setattr(sink, "STEPS_ALONE", 0)
    callback = ObsTrainerCallback()
    options = {"report_to": "tensorboard", "logging_strategy": "steps", "logging_steps": 3}
    hf.train(callback, **options)
    (events,) = event_files(hf.directory)
    assert callback.run_dir == events.parent / "trainobs"
    assert logged_steps(events.parent, "train/loss") == [3, 6]
    assert logged_steps(events.parent) == [3, 6]
    assert f"`tensorboard --logdir {events.parent}`" in capfd.readouterr().err


def test_a_writer_of_ones_own_is_taken_and_still_open_for_its_owner(hf):
    with SummaryWriter(hf.directory / "board") as writer:
        callback = ObsTrainerCallback(log_every_n_steps=4)
        hf.train(TensorBoardCallback(writer), callback)
    assert callback.run_dir == hf.directory / "board" / "trainobs"
    assert logged_steps(hf.directory / "board") == EIGHT


def test_a_tensorboard_callback_that_comes_later_keeps_its_file_to_itself(hf):
    callback = ObsTrainerCallback(log_every_n_steps=4)
    hf.train(callback, TensorBoardCallback(), logging_strategy="steps", logging_steps=3)
    ours, theirs = sorted(event_files(hf.directory), key=lambda it: "trainobs" not in it.parts)
    assert ours.parent == callback.run_dir / "tensorboard"
    assert logged_steps(ours.parent) == EIGHT
    assert logged_steps(theirs.parent, "train/loss") == [3, 6]


def test_without_one_it_has_an_event_file_of_its_own(hf):
    callback = ObsTrainerCallback()
    hf.train(callback, logging_strategy="steps", logging_steps=2)
    assert callback.run_dir.parent == hf.output / "trainobs"
    assert time.strptime(callback.run_dir.name, "%Y-%m-%d_%H-%M-%S")
    (events,) = event_files(hf.directory)
    assert events.parent == callback.run_dir / "tensorboard"
    assert logged_steps(events.parent) == EIGHT


@pytest.mark.parametrize("strategy", ["no", "epoch"])
def test_where_the_trainer_does_not_log_by_steps_a_window_has_50(hf, strategy, monkeypatch):
    monkeypatch.setattr(sink, "STEPS_ALONE", 0)
    callback = ObsTrainerCallback()
    hf.train(callback, logging_strategy=strategy, logging_steps=2, max_steps=110)
    assert logged_steps(callback.run_dir / "tensorboard") == [50, 100]


def test_a_run_log_is_not_written_into_what_is_pushed_to_the_hub(hf, monkeypatch, tmp_path):
    place = tmp_path / "here"
    place.mkdir()
    monkeypatch.chdir(place)
    callback = ObsTrainerCallback(probes="off")
    trainer = hf.trainer(callback)
    trainer.args.push_to_hub = True
    monkeypatch.setattr(trainer, "_finish_current_push", lambda: None)  # nobody to push to
    trainer.train()
    assert callback.run_dir.parent == place / "trainobs"
    assert step_numbers(callback.run_dir) == EIGHT


def test_a_metric_that_nothing_measures_is_null(hf):
    callback = ObsTrainerCallback(probes="off")
    hf.train(callback)
    steps = read_steps(callback.run_dir)
    assert steps["io/data_read_bytes"].null_count == len(steps) == 9
    assert steps["step/duration_ns"].null_count == 0
