"""A loop of one's own, with its phases marked."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from faults.data import busy, loader_of, sleep, validation_loader_of
from faults.machine import FIRST_EPOCH_OVER
from faults.training import Training
from faults.work import Checkpoints, Log, StepWork, is_due, network_of, thread_beside
from trainobs import observe


def train(training: Training, folder: Path, run_dir: Path) -> list[int]:
    """Train, observed.

    Returns:
        When training began and when each step ended, by the monotonic clock, in ns.
    """
    torch.set_num_threads(training.threads)
    loop = _Loop(training, folder)
    with (
        closing(loop),
        thread_beside(training.beside),
        observe(run_dir=run_dir) as obs,
    ):
        marks = _Nothing() if training.loop == "bare" else obs
        batches = obs.loader(loader_of(_of_rank(training), folder))
        times = [time.monotonic_ns()]
        for epoch in range(training.epochs):
            if training.remade and epoch:
                batches = obs.loader(loader_of(_of_rank(training), folder))
            for images, labels, *_ballast in batches:
                loop.step(marks, images, labels)
                times.append(time.monotonic_ns())
            (folder / FIRST_EPOCH_OVER).touch()
    return times


class _Nothing:
    """What a loop marks that does not."""

    def step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


class _Loop:
    def __init__(self, training: Training, folder: Path) -> None:
        self._training = training
        self._model = _distributed(training) if training.ranks > 1 else network_of(training)
        self._optimizer = torch.optim.SGD(self._model.parameters(), 1e-3)
        self._work = StepWork(training, folder)
        self._log = Log(training, folder)
        self._checkpoints = Checkpoints(training, folder) if training.checkpoint else None
        self._validation = (
            validation_loader_of(training, folder / "validation")
            if training.validate_every
            else None
        )
        self._number = 0

    def step(self, obs: Any, images: torch.Tensor, labels: torch.Tensor) -> None:
        number = self._number
        with obs.step():
            with obs.phase("transfer"):
                images = self._work.transfer(images)
            with obs.phase("forward"):
                self._work.forward(number)
                if _is_late(self._training, "forward"):
                    busy(self._training.late_ms)
                loss = cross_entropy(self._model(images), labels)
            with obs.phase("backward"):
                loss.backward()
            with obs.phase("optimizer"):
                self._optimizer.step()
                self._optimizer.zero_grad()
        self._work.after(number)
        self._log.write(number)
        self._save(obs)
        self._validate(obs)
        self._number += 1

    def _save(self, obs: Any) -> None:
        if self._checkpoints and is_due(self._training.checkpoint_every, self._number):
            unmarked = self._training.checkpoint == "unmarked"
            with nullcontext() if unmarked else obs.phase("checkpoint"):
                self._checkpoints.save()

    def _validate(self, obs: Any) -> None:
        if self._validation and is_due(self._training.validate_every, self._number):
            with obs.phase("validation"), torch.no_grad():
                for images, labels in self._validation:
                    cross_entropy(self._model(images), labels)

    def close(self) -> None:
        if self._checkpoints:
            self._checkpoints.close()
        if self._training.ranks > 1:
            torch.distributed.destroy_process_group()


def _is_late(training: Training, place: str) -> bool:
    """Whether this rank is the late one, and late in this place."""
    return training.late_ms > 0 and training.late_in == place and os.environ.get("RANK") == "1"


def _of_rank(training: Training) -> Training:
    if not _is_late(training, "loader"):
        return training
    return replace(training, item_sleep_ms=training.late_ms / training.batch)


def _distributed(training: Training) -> torch.nn.Module:
    torch.distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(network_of(training))
    if _is_late(training, "backward"):
        # The gradient of the last layer comes first, so all buckets are late.
        last = list(model.parameters())[-1]
        last.register_hook(lambda gradient: sleep(training.late_ms))
    return model
