"""The record of a Hugging Face training: which steps there are, and what is counted in which."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback

from tests import needs
from tests.integrations.models import FILE_BYTES, read_steps, step_numbers
from tests.integrations.trainers import (
    Sample,
    TokenFiles,
    Tokens,
    TokenStream,
    column,
    model,
    sample,
)
from tests.kernel.ground_truth import PAGE, cached_pages
from trainobs import ObsTrainerCallback
from trainobs.core.abi import Phase
from trainobs.runlog.reader import RunLog

EIGHT = list(range(1, 9))
SLEEP_S = 0.02


@pytest.fixture
def callback() -> ObsTrainerCallback:
    return ObsTrainerCallback()


def test_a_step_has_the_number_that_the_trainer_logs_it_with(hf, callback):
    trainer = hf.train(callback, logging_strategy="steps", logging_steps=1, num_train_epochs=2)
    theirs = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
    assert step_numbers(callback.run_dir) == theirs == list(range(1, 17))
    assert column(callback, "epoch")[1:] == [0] * 8 + [1] * 8
    assert RunLog.open(callback.run_dir).info["summary"]["outcome"] == "ok"


@pytest.mark.needs_bpf
def test_the_loader_of_accelerate_reads_one_batch_ahead(hf, callback):
    hf.train(callback, data=TokenFiles(hf.directory / "data", 16), num_train_epochs=2)
    files = [4, 2, 2, 2, 2, 2, 2, 0]
    assert column(callback, "io/data_read_count") == [0, *files, *files]
    assert column(callback, "io/data_read_bytes") == [0, *[n * FILE_BYTES for n in files + files]]


@pytest.mark.needs_bpf
def test_what_workers_read_is_counted_once(hf, callback):
    data = TokenFiles(hf.directory / "data", 16)
    hf.train(callback, data=data, num_train_epochs=2, dataloader_num_workers=2)
    assert step_numbers(callback.run_dir) == list(range(1, 17))
    assert sum(column(callback, "io/data_read_count")) == 2 * 16
    assert sum(column(callback, "io/data_read_bytes")) == 2 * 16 * FILE_BYTES


class ReadsMore(Trainer):
    """Reads as many files in a step as the step's number says."""

    root: Path

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        for index in range(self.state.global_step + 1):
            (self.root / f"{index}").open("rb", buffering=0).read(FILE_BYTES)
        return super().training_step(*args, **kwargs)


@pytest.mark.needs_bpf
def test_n_files_read_in_step_n_are_n_in_its_row(hf):
    ReadsMore.root = TokenFiles(hf.directory / "data", 16).root
    callback = ObsTrainerCallback(data_roots=ReadsMore.root)
    hf.train(callback, kind=ReadsMore)
    assert column(callback, "io/data_read_count") == [0, *EIGHT]


@pytest.mark.needs_bpf
def test_accumulated_batches_are_fetched_together_and_are_one_step(hf, callback):
    data = TokenFiles(hf.directory / "data", 16)
    hf.train(callback, data=data, gradient_accumulation_steps=3)
    assert step_numbers(callback.run_dir) == [1, 2, 3]
    assert column(callback, "io/data_read_count") == [0, 2 * 4, 2 * 3, 2 * 1]
    assert min(column(callback, "phase/backward_ns")[1:]) > 0


class Slow:
    """Takes its time in every phase, and notes which phase the clock is in."""

    def __init__(self, callback: ObsTrainerCallback) -> None:
        self.callback = callback
        self.seen: set[tuple[str, Phase]] = set()

    def __call__(self, place: str) -> None:
        assert self.callback._session is not None
        self.seen.add((place, Phase(self.callback._session.clock.phase)))
        time.sleep(SLEEP_S)


class SlowTokens(Tokens):
    def __init__(self, count: int, slow: Slow) -> None:
        super().__init__(count)
        self.slow = slow

    def __getitem__(self, index: int) -> Sample:
        self.slow("item")
        return sample(index)


class SlowGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor, slow: Slow) -> Tensor:
        ctx.slow = slow
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.slow("gradient")
        return gradient, None


class SlowTrainer(Trainer):
    slow: Slow

    def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        self.slow("loss" if model.training else "loss of evaluation")
        loss = super().compute_loss(model, *args, **kwargs)
        return SlowGradient.apply(loss, self.slow) if model.training else loss

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        slow = self.slow

        class SlowOptimizer(torch.optim.SGD):
            def step(self, closure: Any = None) -> Any:
                slow("optimizer")
                return super().step(closure)

        self.optimizer = SlowOptimizer(self.model.parameters(), lr=0.01)
        return self.optimizer

    def _save(self, *args: Any, **kwargs: Any) -> None:
        self.slow("save")
        super()._save(*args, **kwargs)


class SlowOutside(TrainerCallback):
    """Takes its time when the Trainer logs, and when it evaluates."""

    def __init__(self, slow: Slow) -> None:
        self.slow = slow

    def on_log(self, *args: Any, logs: dict[str, float], **kwargs: Any) -> None:
        self.slow("log of evaluation" if "eval_loss" in logs else "log")

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        self.slow("prediction")

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.slow("another callback")


def steps_with(callback: ObsTrainerCallback, phase: str) -> list[int]:
    """Numbers of the steps that spent time in a phase."""
    times = column(callback, f"phase/{phase}_ns")
    return [number for number, ns in enumerate(times) if number and ns]


def test_each_phase_has_the_time_that_was_spent_in_it(hf, callback):
    slow = SlowTrainer.slow = Slow(callback)
    hf.train(
        callback,
        SlowOutside(slow),
        data=SlowTokens(16, slow),
        kind=SlowTrainer,
        eval_strategy="steps",
        eval_steps=4,
        save_strategy="steps",
        save_steps=3,
        logging_strategy="steps",
        logging_steps=5,
    )
    assert slow.seen == {
        ("item", Phase.LOADER),
        ("loss", Phase.FORWARD),
        ("gradient", Phase.BACKWARD),
        ("optimizer", Phase.OPTIMIZER),
        ("another callback", Phase.OTHER),
        ("log", Phase.LOGGING),
        ("prediction", Phase.VALIDATION),
        ("loss of evaluation", Phase.VALIDATION),
        ("log of evaluation", Phase.VALIDATION),
        ("save", Phase.CHECKPOINT),
    }
    assert steps_with(callback, "validation") == [4, 8]
    assert steps_with(callback, "checkpoint") == [3, 6, 8]
    assert steps_with(callback, "logging") == [5, 8]  # the last is of the end
    for phase in ("forward", "backward", "optimizer", "other"):
        assert min(column(callback, f"phase/{phase}_ns")[1:]) >= SLEEP_S * 1e9
    for phase, number, times in [("validation", 4, 5), ("checkpoint", 3, 1), ("logging", 5, 1)]:
        assert column(callback, f"phase/{phase}_ns")[number] >= times * SLEEP_S * 1e9
    waits = [ns / 1e9 / SLEEP_S for ns in column(callback, "loader/wait_ns")[1:]]
    assert all(a >= b for a, b in zip(waits, [4, 2, 2, 2, 2, 2, 2], strict=False))
    assert set(column(callback, "phase/transfer_ns")) == {None}  # it is part of the fetch


def test_evaluation_before_the_first_step_belongs_to_the_set_up(hf, callback):
    hf.train(callback, SlowOutside(Slow(callback)), eval_on_start=True)
    assert step_numbers(callback.run_dir) == EIGHT
    assert column(callback, "phase/validation_ns")[0] >= 3e9 * SLEEP_S  # two batches and a log
    assert steps_with(callback, "validation") == []


@pytest.mark.needs_bpf
def test_what_a_checkpoint_writes_is_a_checkpoint(hf, callback):
    hf.train(callback, save_strategy="steps", save_steps=4)
    written = column(callback, "io/checkpoint_write_bytes")
    sizes = [path.stat().st_size for path in hf.output.glob("checkpoint-4/*")]
    assert [number for number, count in enumerate(written) if count] == [4, 8]
    assert written[4] >= max(sizes)
    assert sum(sizes) * 0.9 < written[4] < sum(sizes) * 1.5  # torch.save writes some parts twice


@needs.needs_torch("2.6", "what transformers demands to resume")
@pytest.mark.needs_bpf
@pytest.mark.parametrize("at", [4, 8])
def test_a_resumed_training_goes_on_counting(hf, at):
    data = TokenFiles(hf.directory / "data", 16)
    hf.train(data=data, max_steps=at, save_strategy="steps", save_steps=at)
    callback = ObsTrainerCallback()
    trainer = hf.trainer(callback, data=data, num_train_epochs=2)
    trainer.train(resume_from_checkpoint=str(hf.output / f"checkpoint-{at}"))
    assert step_numbers(callback.run_dir) == list(range(at + 1, 17))
    assert column(callback, "epoch")[1:] == [0] * (8 - at) + [1] * 8
    # Of the first epoch the Trainer makes a loader that skips what was trained on before.
    rest = [4, 2, 2, 0] if at == 4 else []
    assert column(callback, "io/data_read_count")[1:] == [*rest, 4, 2, 2, 2, 2, 2, 2, 0]
    assert min(column(callback, "loader/wait_ns")[1:]) > 0


@pytest.mark.parametrize("samples", [7, 8])
def test_a_stream_that_ends_before_the_training_begins_again(hf, callback, samples):
    hf.train(callback, data=TokenStream(samples), max_steps=9, eval_strategy="epoch")
    assert step_numbers(callback.run_dir) == list(range(1, 10))
    assert column(callback, "epoch")[1:] == [0] * 4 + [1] * 4 + [2]
    # The fetch that found it at its end began no step.
    assert steps_with(callback, "validation") == [4, 8, 9]


def test_a_training_that_stops_in_an_epoch_is_whole(hf, callback):
    hf.train(callback, max_steps=3)
    assert step_numbers(callback.run_dir) == [1, 2, 3]
    assert RunLog.open(callback.run_dir).info["summary"]["outcome"] == "ok"


def test_a_training_step_of_ones_own_leaves_its_phases_unknown(hf, callback):
    class Own(Trainer):
        def training_step(self, model: Any, inputs: Sample, *rest: object) -> Tensor:
            loss = model(**inputs).loss
            loss.backward()
            return loss.detach()

    hf.train(callback, kind=Own)
    steps = read_steps(callback.run_dir)
    for name in ("phase/forward_ns", "phase/backward_ns"):
        assert steps[name].null_count == len(steps) == 9
    assert min(column(callback, "phase/optimizer_ns")[1:]) > 0
    assert min(column(callback, "loader/wait_ns")[1:]) > 0


def test_a_loop_that_is_no_trainers_has_its_steps_all_the_same(hf, callback):
    trainer = hf.trainer(callback)
    state, control, arguments = trainer.state, trainer.control, trainer.args
    callback.on_train_begin(arguments, state, control)
    for state.global_step in range(3):
        callback.on_step_begin(arguments, state, control)
        callback.on_step_end(arguments, state, control)
    callback.on_train_end(arguments, state, control)
    assert step_numbers(callback.run_dir) == [1, 2, 3]
    assert set(column(callback, "loader/wait_ns")) == {None}
    assert set(column(callback, "phase/validation_ns")) == {None}


class Wide(nn.Module):
    """Takes columns that it has no use for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, wide: Tensor, **inputs: Tensor) -> Any:
        return self.inner(**inputs)


@pytest.mark.needs_bpf
def test_pages_of_a_mapped_data_set_are_data(hf, callback):
    place = hf.directory / "table"
    rows = {
        "input_ids": [sample(n)["input_ids"].tolist() for n in range(64)],
        "labels": [n % 2 for n in range(64)],
        "wide": [[float(n)] * 4096 for n in range(64)],
    }
    datasets.Dataset.from_dict(rows).save_to_disk(place)
    (file,) = place.glob("*.arrow")
    data = datasets.load_from_disk(place)  # maps the file before anybody observes
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    before = cached_pages(file)
    hf.train(callback, data=data, module=Wide(), remove_unused_columns=False)
    filled = (cached_pages(file) - before) * PAGE
    assert filled > 1_000_000
    assert sum(column(callback, "cache/fault_fill_bytes")) == filled
    assert sum(column(callback, "io/data_fault_count")) > 0
