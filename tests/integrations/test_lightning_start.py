"""Which runs are observed, and which are left alone."""

from __future__ import annotations

import copy
import gc
import importlib
import pickle
import weakref
from contextlib import nullcontext
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from tqdm import tqdm

from tests.integrations.models import Lightning, loader, step_numbers
from trainobs import ObsCallback
from trainobs.core.errors import SettingError
from trainobs.core.once import Once
from trainobs.integrations import guard
from trainobs.runlog.reader import RunLog

EIGHT = list(range(8))


def files(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


def test_a_callback_is_taken_alone_and_in_a_list(lightning):
    for wrap in (lambda it: it, lambda it: [it], lambda it: [lightning.pl.Callback(), it]):
        callback = ObsCallback()
        lightning.fit(wrap(callback))
        assert step_numbers(callback.run_dir) == EIGHT


def test_a_callback_of_ones_own_class_is_taken_too(lightning):
    class Mine(ObsCallback):
        def on_train_start(self, trainer: object, pl_module: object) -> None:
            super().on_train_start(trainer, pl_module)
            self.seen = True

    callback = Mine()
    lightning.fit(callback)
    assert callback.seen
    assert isinstance(callback, Mine)
    assert step_numbers(callback.run_dir) == EIGHT


def test_each_fit_has_a_run_of_its_own(lightning):
    callback = ObsCallback()
    trainer = lightning.fit(callback)
    first = callback.run_dir
    trainer.fit_loop.max_epochs = 2
    trainer.fit(lightning.module(), loader())
    assert first != callback.run_dir
    assert first.parent == callback.run_dir.parent == lightning.directory / "trainobs"
    assert step_numbers(first) == EIGHT
    assert step_numbers(callback.run_dir) == list(range(8, 16))


def test_copies_and_pickles_hold_the_settings_and_no_run(lightning):
    copies = []

    class Copying(lightning.pl.Callback):
        def on_train_batch_end(self, *arguments: object) -> None:
            copies[:] = [copy.copy(callback), copy.deepcopy(callback)]
            copies.append(pickle.loads(pickle.dumps(callback)))

    callback = ObsCallback(run_dir=lightning.directory / "mine", log_every_n_steps=3)
    lightning.fit([callback, Copying()])
    assert [type(made) for made in copies] == [type(callback)] * 3
    assert [made.run_dir for made in copies] == [None] * 3
    for number, made in enumerate(copies, 2):
        lightning.fit(made)
        assert made.run_dir == lightning.directory / f"mine-{number}"
        assert step_numbers(made.run_dir) == EIGHT


@pytest.mark.parametrize("fails", [False, True])
def test_after_the_fit_a_callback_leads_to_its_trainer_no_more(lightning, fails):
    class Logging(ObsCallback):
        def on_train_batch_end(self, *arguments: object) -> None:
            super().on_train_batch_end(*arguments)
            self.log("mine", 1.0)
            if fails:
                raise LookupError

    callback = Logging()
    with pytest.raises(LookupError) if fails else nullcontext():
        lightning.fit(callback)
    trainer = lightning.trainer(callback)
    trainer.validate(lightning.module(), loader(), verbose=False)
    observed = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert observed() is None
    assert not vars(callback).keys() & {"log", "log_dict"}


class Tagged(ObsCallback):
    """What a user may make of it."""

    def __init__(self, tag: str) -> None:
        super().__init__(probes="off")
        self.tag = tag


def test_copies_of_a_subclass_keep_what_it_adds(lightning):
    made = Tagged("mine")
    for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert type(again) is type(made)
        assert again.tag == "mine"


def test_a_fit_inside_a_fit_of_the_same_callback_ends_the_outer_run_and_leaves_no_tee(lightning):
    class Nested(lightning.pl.Callback):
        def on_train_batch_end(self, *arguments: object) -> None:
            if arguments[-1] == 3:
                inner.fit(lightning.module(), loader())

    callback = ObsCallback(run_dir=lightning.directory / "run")
    inner, outer = lightning.trainer(callback), lightning.trainer([callback, Nested()])
    profiler = outer.profiler
    outer.fit(lightning.module(), loader())
    assert outer.profiler is profiler
    outer.fit_loop.max_epochs = 2
    outer.callbacks.pop(1)
    outer.fit(lightning.module(), loader())
    runs = [lightning.directory / name for name in ("run", "run-2", "run-3")]
    assert [step_numbers(run) for run in runs] == [EIGHT[:4], EIGHT, list(range(8, 16))]
    outcomes = [RunLog.open(run).info["summary"]["outcome"] for run in runs]
    assert outcomes == ["not ended", "ok", "ok"]


def test_of_two_in_one_trainer_the_second_stays_idle_and_says_so(lightning, told):
    one, other = ObsCallback(), ObsCallback()
    lightning.fit([one, other])
    assert told() == ["a second ObsCallback in one Trainer stays idle"]
    assert step_numbers(one.run_dir) == EIGHT
    assert other.run_dir is None
    assert [path.name for path in lightning.directory.iterdir()] == ["trainobs"]


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has told nothing yet."""
    monkeypatch.setattr(guard, "_once", Once())


@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_not_recorded_is_told_once(lightning, untold, capfd, quiet):
    trainer, module = lightning.trainer(ObsCallback(quiet=quiet)), lightning.module()
    for _ in range(2):
        trainer.validate(module, loader(), verbose=False)
        trainer.test(module, loader(), verbose=False)
    lightning.fit(ObsCallback(quiet=quiet), fast_dev_run=True)
    told = [line for line in capfd.readouterr().err.splitlines() if line.startswith("trainobs:")]
    expected = [
        "trainobs: nothing is recorded of `validate`: only `fit` is observed",
        "trainobs: nothing is recorded of `test`: only `fit` is observed",
        "trainobs: nothing is recorded of `fast_dev_run`: Lightning writes no logs and no "
        "checkpoints in it either",
    ]
    assert told == ([] if quiet else expected)


def test_what_is_no_training_is_left_alone(lightning):
    callback = ObsCallback()
    trainer, module = lightning.trainer(callback), lightning.module()
    trainer.validate(module, loader(), verbose=False)
    trainer.test(module, loader(), verbose=False)
    trainer.predict(module, loader())
    assert callback.run_dir is None
    assert files(lightning.directory) == []


@pytest.mark.parametrize("batches", [True, 3])
def test_fast_dev_run_is_left_alone(lightning, batches):
    callback = ObsCallback()
    lightning.fit(callback, fast_dev_run=batches)
    assert callback.run_dir is None
    assert files(lightning.directory) == []


def test_the_trials_of_a_tuner_are_left_alone_and_the_fit_behind_them_is_not(
    lightning, untold, capfd, monkeypatch
):
    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # whose thread would stay
    callback, module = ObsCallback(), lightning.module()
    trainer, module.lr = lightning.trainer(callback), 0.1
    tuning = importlib.import_module(f"{lightning.pl.__name__}.tuner")
    tuning.Tuner(trainer).lr_find(module, loader(), num_training=3)
    assert callback.run_dir is None
    assert "nothing is recorded of the trials of a `Tuner`" in capfd.readouterr().err
    trainer.fit(module, loader())
    (only,) = (lightning.directory / "trainobs").iterdir()
    assert only == callback.run_dir
    assert step_numbers(callback.run_dir) == EIGHT


def test_barebones_is_observed_without_a_word(lightning):
    callback = ObsCallback()
    lightning.fit(callback, barebones=True)
    assert callback.run_dir.parent == lightning.directory / "trainobs"
    assert step_numbers(callback.run_dir) == EIGHT


@pytest.mark.parametrize("word", ["off", "OFF", "0", "false", "no"])
def test_the_environment_turns_it_off(lightning, monkeypatch, word):
    monkeypatch.setenv("TRAINOBS", word)
    callback = ObsCallback(probes=["block"])
    profiler = lightning.pl.profilers.SimpleProfiler()
    trainer = lightning.fit(callback, profiler=profiler)
    assert trainer.profiler is profiler
    assert callback.run_dir is None
    assert files(lightning.directory) == []


def test_a_word_in_the_environment_that_means_nothing_is_an_error(lightning, monkeypatch):
    monkeypatch.setenv("TRAINOBS", "maybe")
    with pytest.raises(
        SettingError, match=r"TRAINOBS\n  found: 'maybe'\n  do:    .*\"on\" or \"off\""
    ):
        lightning.fit(ObsCallback())


class Unprintable:
    """Has a `repr` that fails."""

    def __repr__(self) -> str:
        raise LookupError("evil")


class Lines:
    """Has a `repr` of several lines, as arrays have."""

    def __repr__(self) -> str:
        return "one\ntwo\u2028three"


class Nowhere:
    """A path that is none."""

    def __fspath__(self) -> bytes:
        return b"x"


@pytest.mark.parametrize(
    ("name", "value", "found", "choices"),
    [
        ("probes", "foo", "'foo'", '"auto", "off", or a list of \'syscalls\''),
        ("probes", ["nope", "block"], "unknown probe 'nope'", "'block'"),
        ("probes", [["block"]], "['block']", "'block'"),
        ("probes", ["auto", "block"], "\"auto\" beside 'block'", 'leave "auto" out'),
        ("probes", 3, "3", '"auto", "off"'),
        ("probes", None, "None", '"auto", "off"'),
        ("data_roots", "/no/such/place", "'/no/such/place' does not exist", "that exist"),
        ("data_roots", ["/usr", "/no/such/place"], "/no/such/place", "that exist"),
        ("data_roots", "", "an empty path", "a path"),
        ("data_roots", 3, "3", "paths that exist"),
        ("data_roots", [3], "3", "a path"),
        ("run_dir", "", "an empty path", "a path"),
        ("run_dir", "a\0b", r"'a\x00b'", "a path"),
        ("run_dir", 3, "3", "a path"),
        ("run_dir", b"runs", "b'runs'", "a path"),
        ("log_every_n_steps", 0, "0", "from 1"),
        ("io", "off", "'off'", "True or False"),
        ("quiet", np.array([1, 2]), "array([1, 2])", "True or False"),
        ("log_every_n_steps", True, "True", "from 1"),
        ("log_every_n_steps", 1.5, "1.5", "from 1"),
        ("log_every_n_steps", "10", "'10'", "from 1"),
        ("log_every_n_steps", float("nan"), "nan", "from 1"),
        ("log_every_n_steps", 2**63, "9223372036854775808", "from 1"),
        (
            "log_every_n_steps",
            Unprintable(),
            "an Unprintable without a repr: LookupError",
            "from 1",
        ),
        ("embedding_every", Lines(), "one two three", '"off"'),
        ("embedding_every", np.array([1, 2]), "array([1, 2])", '"off"'),
        ("embedding_every", 2**63, "9223372036854775808", '"off"'),
        ("tensorboard", "some", "'some'", '"default" or "all"'),
        ("tensorboard", ["all"], "['all']", '"default" or "all"'),
        ("tensorboard", None, "None", '"default" or "all"'),
        ("probes", [Unprintable()], "unknown probe an Unprintable", "'block'"),
        ("probes", [*range(9)], "unknown probe 0, 1, 2, 3, 4", "'block'"),
        ("probes", count(), "more than 100,000 of them", "'block'"),
        ("probes", "x" * 10_000_000, "x... (10,000,000 characters)", '"auto"'),
        ("data_roots", count(), "more than 100,000 of them", "paths that exist"),
        ("data_roots", "s3://bucket/data", "'s3://bucket/data', a URL", "this machine"),
        ("run_dir", "a\nb\0", r"'a\nb\x00'", "a path"),
        ("run_dir", Nowhere(), "Nowhere", "a path"),
        ("run_dir", Lines(), "one two three", "a path"),
        ("run_dir", "\ud800", "surrogates not allowed", "a path"),
        ("run_dir", "x" * 256, "too long", "shorter"),
        ("run_dir", "x/" * 3000, "(6,000 characters), which is too long", "shorter"),
        ("run_dir", "s3://bucket/run", "'s3://bucket/run', a URL", "this machine"),
        ("run_dir", Path("gs://bucket/run"), "'gs:/bucket/run', a URL", "this machine"),
        ("run_dir", "simplecache::s3://bucket", "a URL", "this machine"),
        ("run_dir", __file__, "test_lightning_start.py', a file", "a directory"),
    ],
    ids=lambda value: ascii(value[:20]) if isinstance(value, str) else None,
)
def test_a_bad_setting_is_an_error_with_its_name_value_and_choices(name, value, found, choices):
    with pytest.raises(SettingError) as caught:
        ObsCallback(**{name: value})
    failed, was, do = str(caught.value).splitlines()
    assert len(was) < 1100
    assert failed == f"bad value for `{name}`"
    assert was.startswith("  found: ")
    assert found in was
    assert choices in do


def test_parameters_are_given_by_name(lightning: Lightning):
    with pytest.raises(TypeError, match="positional"):
        ObsCallback("auto")
