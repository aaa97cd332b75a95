"""What a step is under Lightning: its number, its extent, and what was read while it ran."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.integrations.models import (
    FILE_BYTES,
    FileData,
    Lightning,
    Stream,
    loader,
    read_steps,
    step_numbers,
    tiny_class,
)
from trainobs import ObsCallback
from trainobs.core.abi import Phase
from trainobs.core.catalogue import phase_metric

PHASES = [phase_metric(phase) for phase in Phase]


def column(callback: ObsCallback, name: str) -> list[Any]:
    return read_steps(callback.run_dir)[name].to_pylist()


@pytest.mark.parametrize(
    ("options", "steps", "epochs"),
    [
        ({"max_epochs": 2}, 16, [0] * 8 + [1] * 8),
        ({"max_epochs": 2, "accumulate_grad_batches": 2}, 8, [0] * 4 + [1] * 4),
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, 6, [0] * 3 + [1] * 3),
        ({"max_epochs": -1, "max_steps": 11}, 11, [0] * 8 + [1] * 3),
        ({"max_epochs": 2, "limit_train_batches": 3}, 6, [0] * 3 + [1] * 3),
        ({"max_epochs": 2, "limit_train_batches": 0.5}, 8, [0] * 4 + [1] * 4),
    ],
)
def test_a_step_is_an_optimizer_step(lightning, options, steps, epochs):
    callback = ObsCallback()
    lightning.fit(callback, **options)
    assert step_numbers(callback.run_dir) == list(range(steps))
    assert column(callback, "epoch")[1:] == epochs


def test_a_stream_without_a_length_has_the_same_steps(lightning):
    callback = ObsCallback()
    trainer = lightning.trainer(callback, max_epochs=2)
    trainer.fit(lightning.module(), DataLoader(Stream(7), batch_size=2))
    assert step_numbers(callback.run_dir) == list(range(8))
    assert column(callback, "epoch")[1:] == [0] * 4 + [1] * 4


def test_steps_leave_no_gap_and_their_phases_add_up(lightning):
    callback = ObsCallback()
    lightning.fit(callback, val=loader(4), max_epochs=2, val_check_interval=3)
    steps = read_steps(callback.run_dir)
    start, duration = steps["start_ns"].to_pylist(), steps["step/duration_ns"].to_pylist()
    assert [s + d for s, d in zip(start, duration, strict=True)][:-1] == start[1:]
    phases = [steps[name].to_pylist() for name in PHASES if name != "phase/logging_ns"]
    assert list(map(sum, zip(*phases, strict=True))) == duration


def test_each_part_of_training_is_a_phase_of_every_step(lightning):
    callback = ObsCallback()
    lightning.fit(callback)
    for phase in (Phase.LOADER, Phase.TRANSFER, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert all(ns > 0 for ns in column(callback, phase_metric(phase))[1:])
    for phase in (Phase.VALIDATION, Phase.CHECKPOINT):
        assert not any(column(callback, phase_metric(phase)))


def test_time_in_loggers_is_unknown_and_not_0(lightning):
    callback = ObsCallback()
    lightning.fit(callback)
    assert set(column(callback, "phase/logging_ns")) == {None}


def test_validation_in_mid_epoch_belongs_to_the_step_before_it(lightning):
    callback = ObsCallback()
    lightning.fit(callback, val=loader(4), max_epochs=2, val_check_interval=3)
    validated = [bool(ns) for ns in column(callback, "phase/validation_ns")]
    assert [index - 1 for index, is_so in enumerate(validated) if is_so] == [2, 5, 10, 13]
    assert step_numbers(callback.run_dir) == list(range(16))


def test_the_sanity_check_is_part_of_the_set_up(lightning):
    callback = ObsCallback()
    lightning.fit(callback, val=loader(4), num_sanity_val_steps=2, limit_val_batches=0.5)
    validated = [bool(ns) for ns in column(callback, "phase/validation_ns")]
    assert validated == [True, *[False] * 7, True]


def test_what_is_done_in_validation_is_validation(lightning):
    callback, seen = ObsCallback(), set()

    class Slow(tiny_class(lightning.pl)):
        def transfer_batch_to_device(self, batch: Any, *arguments: object) -> Any:
            validating = self.trainer.validating or self.trainer.sanity_checking
            seen.add((validating, Phase(callback._session.clock.phase)))
            time.sleep(0.02 if validating else 0)
            return super().transfer_batch_to_device(batch, *arguments)

    trainer = lightning.trainer(callback, num_sanity_val_steps=1)
    trainer.fit(Slow(), loader(), loader(4))
    validation = column(callback, "phase/validation_ns")
    assert validation[0] >= 20e6
    assert validation[-1] >= 40e6
    assert seen == {(True, Phase.VALIDATION), (False, Phase.TRANSFER)}


def test_a_checkpoint_is_a_phase_of_the_step_before_it(lightning):
    saving = lightning.pl.callbacks.ModelCheckpoint(
        lightning.directory / "kept", every_n_train_steps=3, save_top_k=-1
    )
    callback = ObsCallback()
    lightning.fit([saving, callback], enable_checkpointing=True)
    saved = [bool(ns) for ns in column(callback, "phase/checkpoint_ns")]
    assert [index - 1 for index, is_so in enumerate(saved) if is_so] == [2, 5]


def test_manual_optimization_ends_a_step_when_it_steps(lightning):
    class Manual(tiny_class(lightning.pl)):
        automatic_optimization = False

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            optimizer = self.optimizers()
            self.manual_backward(self.layer(batch).square().mean())
            if batch_idx % 2:
                optimizer.step()
                optimizer.zero_grad()

    callback = ObsCallback()
    lightning.trainer(callback).fit(Manual(), loader())
    assert step_numbers(callback.run_dir) == [1, 3, 5, 7]  # Lightning counts batches here
    assert all(ns > 0 for ns in column(callback, "phase/forward_ns")[1:])
    assert all(ns > 0 for ns in column(callback, "phase/backward_ns")[1:])


def test_two_optimizers_that_step_in_one_batch_are_one_step(lightning):
    class Adversarial(tiny_class(lightning.pl)):
        automatic_optimization = False

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            for optimizer in self.optimizers():
                self.manual_backward(self.layer(batch).square().mean())
                optimizer.step()
                optimizer.zero_grad()

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            return [torch.optim.SGD(self.parameters(), lr=0.01) for _ in range(2)]

    callback = ObsCallback()
    lightning.trainer(callback).fit(Adversarial(), loader())
    assert step_numbers(callback.run_dir) == list(range(8))


@pytest.mark.needs_bpf
@pytest.mark.parametrize("workers", [0, 2])
def test_every_byte_of_the_data_set_is_counted_once(lightning, workers):
    data, callback = FileData(lightning.directory / "data", 12), ObsCallback()
    trainer = lightning.trainer(callback, max_epochs=2)
    trainer.fit(lightning.module(), DataLoader(data, batch_size=2, num_workers=workers))
    assert step_numbers(callback.run_dir) == list(range(12))
    assert sum(column(callback, "io/data_read_bytes")) == 2 * 12 * FILE_BYTES
    assert sum(column(callback, "io/data_read_count")) == 2 * 12
    if not workers:  # which read while the step runs that needs it
        assert column(callback, "io/data_read_bytes") == [0, *[2 * FILE_BYTES] * 12]


@pytest.mark.needs_bpf
def test_data_under_the_callbacks_own_roots_is_data(lightning: Lightning):
    data = FileData(lightning.directory / "data", 12)
    other = FileData(lightning.directory / "other", 4)
    callback = ObsCallback(data_roots=other.root)
    lightning.trainer(callback).fit(lightning.module(), DataLoader(data + other))
    assert sum(column(callback, "io/data_read_count")) == 4
