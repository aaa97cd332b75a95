"""Observing changes nothing of a Hugging Face training, and ends with it however it ends."""

from __future__ import annotations

import gc
import os
import random
import weakref
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import Trainer, TrainerCallback

from tests.integrations.models import step_numbers
from tests.integrations.trainers import HuggingFace, Sample, Tokens, column, model
from tests.session.jobs import Job, descriptors_of
from trainobs import ObsTrainerCallback
from trainobs.core.abi import Phase
from trainobs.core.once import Once
from trainobs.integrations import guard
from trainobs.integrations.trainer_taps import Tap
from trainobs.runlog.reader import RunLog

EIGHT = list(range(1, 9))


def outcome(run_dir: Path) -> Any:
    return RunLog.open(run_dir).info["summary"]["outcome"]


def taps(trainer: Trainer) -> list[str]:
    """Names of methods that are stood for."""
    handler = trainer.callback_handler
    owners = (trainer, trainer.accelerator, handler, *handler.callbacks)
    return [name for it in owners for name, value in vars(it).items() if type(value) is Tap]


class Noisy(Tokens):
    """Every generator of random numbers that a data set may use."""

    def __getitem__(self, index: int) -> Sample:
        noise = random.random() + float(np.random.rand()) + float(torch.rand(1))
        item = super().__getitem__(index)
        return {**item, "input_ids": (item["input_ids"] + int(noise * 5)) % 16}


def result(hf: HuggingFace, *callbacks: TrainerCallback, **options: Any) -> dict[str, Tensor]:
    options = {"num_train_epochs": 2, "learning_rate": 0.1, "eval_strategy": "epoch", **options}
    trainer = hf.train(*callbacks, data=Noisy(24), module=model(dropout=0.5), **options)
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        **trainer.model.state_dict(),
        "next random number": torch.rand(1),
        "losses": torch.tensor(logged),
    }


@pytest.mark.parametrize(
    "options",
    [
        {"logging_strategy": "steps", "logging_steps": 1},
        {"gradient_accumulation_steps": 2, "dataloader_num_workers": 2, "save_strategy": "epoch"},
    ],
)
def test_weights_and_losses_are_the_same_to_the_last_bit(hf, options):
    callback = ObsTrainerCallback()
    observed, plain = result(hf, callback, **options), result(hf, **options)
    assert {name for name in plain if not torch.equal(plain[name], observed[name])} == set()
    assert len(step_numbers(callback.run_dir)) in (12, 24)


def test_a_compiled_model_has_the_same_graphs(hf):
    import torch._dynamo
    from torch._dynamo.utils import counters

    found, callback = [], ObsTrainerCallback()
    for callbacks in ([], [callback]):
        torch._dynamo.reset()
        counters.clear()
        hf.train(*callbacks, torch_compile=True, torch_compile_backend="eager")
        found.append({name: Counter(counts) for name, counts in counters.items()})
    plain, observed = found
    assert plain["stats"]["unique_graphs"] > 0
    assert observed.get("graph_break", {}) == plain.get("graph_break", {})
    # The graphs are the same but for a call that notes the ids of each of BERT's three tables.
    plain["stats"]["calls_captured"] += 3 * plain["stats"]["unique_graphs"]
    assert observed["stats"] == plain["stats"]
    assert min(column(callback, "phase/forward_ns")[1:]) > 0


def test_every_method_is_put_back_and_nothing_keeps_the_trainer(hf):
    class Looking(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            during.append(sorted(taps(trainer())))

        def on_train_end(self, *args: object, **kwargs: object) -> None:
            assert taps(trainer()) == []

    during: list[list[str]] = []
    callback = ObsTrainerCallback()
    trained = hf.trainer(Looking(), callback, TrainerCallback())
    trainer = weakref.ref(trained)
    handler = trained.callback_handler
    others = [it for it in handler.callbacks if it is not callback]
    owners = (trained.accelerator, handler, *others)
    before = [set(vars(it)) for it in owners]
    trained.train()
    assert during[0] == [
        "_evaluate",
        "_finalize_training",
        "_run_epoch",
        "_save_checkpoint",
        "backward",
        "compute_loss",
        "evaluate",
        "get_batch_samples",
        "log",
        "on_epoch_begin",
        *["on_train_begin"] * (len(handler.callbacks) - 1 - handler.callbacks.index(callback)),
        "on_train_end",
        "predict",
        "save_model",
    ]
    assert [set(vars(it)) for it in owners] == before
    assert "on_train_begin" in during[0]
    del trained, owners, handler, others
    gc.collect()
    assert trainer() is None


class Failing(Tokens):
    def __getitem__(self, index: int) -> Sample:
        if index == 9:
            raise OSError("cannot read it")
        return super().__getitem__(index)


class FailsToCompute(Trainer):
    def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
        if self.state.global_step == 3:
            raise KeyboardInterrupt
        return super().compute_loss(*args, **kwargs)


class FailsToSave(Trainer):
    def _save(self, *args: Any, **kwargs: Any) -> None:
        raise OSError("no space")


class FailsToEvaluate(Trainer):
    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError


class FailsAtItsEnd(Trainer):
    def _load_best_model(self) -> None:
        raise LookupError


BEST = {
    "load_best_model_at_end": True,
    "eval_strategy": "steps",
    "eval_steps": 4,
    "save_strategy": "steps",
    "save_steps": 4,
}


class Late(TrainerCallback):
    """Comes after ours, and fails outside the methods that the loop consists of."""

    def __init__(self, event: str, epoch: int = 0) -> None:
        self.event, self.epoch = event, epoch

    def fail(self, event: str, state: Any) -> None:
        if event == self.event and round(state.epoch or 0) == self.epoch:
            raise ConnectionError("a tracker is gone")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.fail("on_train_begin", state)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.fail("on_epoch_begin", state)


class Raising(TrainerCallback):
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            raise ConnectionError("a tracker is gone")


@pytest.mark.needs_bpf
@pytest.mark.parametrize(
    ("options", "error", "steps"),
    [
        ({"kind": FailsToCompute}, KeyboardInterrupt, 4),
        ({"kind": FailsToSave, "save_strategy": "steps", "save_steps": 4}, OSError, 4),
        ({"kind": FailsToEvaluate, "eval_strategy": "epoch"}, ZeroDivisionError, 8),
        ({"kind": FailsToEvaluate, "eval_on_start": True}, ZeroDivisionError, 0),
        ({"kind": FailsAtItsEnd, **BEST}, LookupError, 8),
        ({"callbacks": [Raising()]}, ConnectionError, 3),
        ({"callbacks": [Late("on_train_begin")]}, ConnectionError, 0),
        ({"callbacks": [Late("on_epoch_begin")]}, ConnectionError, 0),
        ({"callbacks": [Late("on_epoch_begin", 1)], "num_train_epochs": 2}, ConnectionError, 8),
    ],
)
def test_an_exception_arrives_as_it_is_and_ends_the_run(hf, options, error, steps):
    callback = ObsTrainerCallback()
    trainer = hf.trainer(callback, *options.pop("callbacks", ()), **options)
    with pytest.raises(error) as caught:
        trainer.train()
    assert caught.value.__context__ is None
    assert taps(trainer) == []
    assert descriptors_of(os.getpid()) == set()
    assert step_numbers(callback.run_dir) == EIGHT[:steps]
    assert outcome(callback.run_dir) == f"exception: {error.__name__}"


def test_a_loader_that_fails_ends_the_run_and_the_next_training_has_its_own(hf):
    callback = ObsTrainerCallback()
    trainer = hf.trainer(callback, data=Failing(16))
    with pytest.raises(OSError, match="cannot read it"):
        trainer.train()
    assert outcome(callback.run_dir) == "exception: OSError"
    failed = callback.run_dir
    trainer.train_dataset = Tokens(16)
    trainer.train()
    assert callback.run_dir != failed
    assert step_numbers(callback.run_dir) == EIGHT
    assert outcome(callback.run_dir) == "ok"


class Hasty(TrainerCallback):
    """Makes the loop itself fail, where no method of ours is on the way."""

    def __init__(self) -> None:
        self.fails = True

    def on_epoch_end(self, *args: object, **kwargs: object) -> object:
        nothing = dict.fromkeys(("should_log", "should_evaluate", "should_save"), False)
        return SimpleNamespace(**nothing) if self.fails else None


def test_a_run_whose_end_nobody_told_ends_with_the_next(hf):
    callback, hasty = ObsTrainerCallback(), Hasty()
    trainer = hf.trainer(callback, hasty)
    with pytest.raises(AttributeError, match="should_training_stop"):
        trainer.train()
    failed, hasty.fails = callback.run_dir, False
    trainer.train()
    assert outcome(failed) == "not ended"
    assert outcome(callback.run_dir) == "ok"
    assert step_numbers(callback.run_dir) == EIGHT
    assert taps(trainer) == []


NEVER_ENDED = """
import sys
from pathlib import Path
from tests.integrations.test_huggingface_unchanged import Hasty
from tests.integrations.trainers import HuggingFace
from trainobs import ObsTrainerCallback

HuggingFace(Path(sys.argv[1])).train(ObsTrainerCallback(run_dir=sys.argv[1] + "/run"), Hasty())
"""


def test_or_with_the_interpreter(tmp_path):
    status, _, errors = Job("-c", NEVER_ENDED, tmp_path).end()
    assert status == 1
    assert "has no attribute 'should_training_stop'" in errors
    assert outcome(tmp_path / "run") == "interpreter exit"


def test_a_training_that_starts_again_with_smaller_batches_is_two_runs(hf):
    class TooLarge(Trainer):
        def training_step(self, model: Any, inputs: Sample, *rest: Any, **more: Any) -> Tensor:
            if len(inputs["labels"]) > 2 and self.state.global_step == 1:
                raise RuntimeError("CUDA out of memory.")
            return super().training_step(model, inputs, *rest, **more)

    callback = ObsTrainerCallback(run_dir=hf.directory / "run")
    hf.train(
        callback, kind=TooLarge, auto_find_batch_size=True, per_device_train_batch_size=4, seed=1
    )
    first, last = hf.directory / "run", callback.run_dir
    assert (outcome(first), outcome(last)) == ("exception: RuntimeError", "ok")
    assert step_numbers(first) == [1, 2]
    assert len(step_numbers(last)) >= 6


@pytest.mark.parametrize(
    "broken", ["begin_fetch", "end_fetch", "begin_batch", "end_step", "enter", "leave"]
)
def test_a_fault_of_its_own_ends_the_observation_and_not_the_training(
    hf, told, monkeypatch, capfd, broken
):
    monkeypatch.setattr(guard, "_once", Once())

    class Sabotage(TrainerCallback):
        """Takes away what the callback needs, as a fault of our own would."""

        def on_train_begin(self, *args: object, **kwargs: object) -> None:
            monkeypatch.setattr(callback._session.clock, broken, None)

    callback = ObsTrainerCallback()
    trainer = hf.trainer(callback, Sabotage(), eval_strategy="epoch", save_strategy="epoch")
    trainer.train()
    assert trainer.state.global_step == 8
    assert taps(trainer) == []
    assert callback._session is None
    assert told()[0] == "trainobs stops observing this run; the training goes on"
    assert "nothing is recorded" not in capfd.readouterr().err  # of the `evaluate` inside


def test_a_fault_at_the_start_leaves_the_training_alone(hf, told, monkeypatch):
    monkeypatch.setattr("trainobs.integrations.huggingface.data_roots_of", None)
    callback = ObsTrainerCallback()
    trainer = hf.train(callback)
    assert trainer.state.global_step == 8
    assert told() == ["trainobs does not observe this run; the training goes on"]
    assert outcome(callback.run_dir) == "fault in a hook"


def test_a_phase_that_its_method_left_by_an_exception_is_left(hf):
    class Tolerant(Trainer):
        """Goes on after a loss that cannot be computed."""

        def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
            try:
                return super().training_step(*args, **kwargs)
            except ArithmeticError:
                return torch.tensor(0.0)

        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == 3:
                raise ArithmeticError
            return super().compute_loss(*args, **kwargs)

    class Where(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            seen.append(callback._session.clock.phase)

    seen: list[int] = []
    callback = ObsTrainerCallback()
    hf.train(callback, Where(), kind=Tolerant)
    assert seen == [Phase.OTHER] * 8
    assert step_numbers(callback.run_dir) == EIGHT
