"""What the training thread does in a step, part by part, between real steps and by itself.

Between two marks a training step sweeps the caches, so that each function of Python, and what it
looks up, comes from afar again: a part costs several times what it does by itself. Parts take turns
by a few steps each, and the lower quintile of each part's steps is compared with that of the bare
ones: other work on the machine only adds. The time is the thread's on a CPU. There are no probes
here: a system call costs what it costs.
"""

from __future__ import annotations

import json
import logging
import statistics
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import torch
from light import BATCH, FEATURES, Tiny, model
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from trainobs import ObsCallback
from trainobs.core import abi
from trainobs.core.records import RunInfo
from trainobs.hooks import wrapping
from trainobs.hooks.loader_pass import LoaderPass
from trainobs.hooks.loop_pass import LoopPass
from trainobs.hooks.marks import Marks
from trainobs.hooks.watch import LoaderWatch
from trainobs.steps.clock import StepClock
from trainobs.steps.fast_path import CallbackContext
from trainobs.steps.ledger import Ledger

TURNS = 300
IN_A_TURN = 12
COLD = 3
"""The first steps of a turn, in which the part of the turn comes from further away than it would if
it were in every step."""


class Ready(_BaseDataLoaderIter):
    """An iterator of torch whose batch is there."""

    def __init__(self, batch: torch.Tensor) -> None:
        self._batch = batch
        self._profile_name = "ready"
        self._sampler_iter = iter(())
        self._num_yielded = 0
        self._dataset_kind = _DatasetKind.Map
        self._workers_status = [True, True]

    def _next_data(self) -> torch.Tensor:
        return self._batch


class Parts:
    """The parts; each takes the work of a step, and does it where a loop would."""

    def __init__(self) -> None:
        self.clock = clock = StepClock(memoryview(bytearray(8)).cast("Q"))
        clock.closed = deque(maxlen=64)
        kernel: Any = SimpleNamespace(batches=np.zeros(abi.BATCHES, abi.BATCH))
        ledger = Ledger(kernel, timed=True)
        ledger.fetched = deque(maxlen=64).append
        self._fetch = _BaseDataLoaderIter.__next__
        self._watch = LoaderWatch(clock, ledger, RunInfo("timing"))
        self._step = CallbackContext(clock.begin_step, None, clock.end_step, self._watch.fault)
        self._phases = [
            CallbackContext(clock.enter, n, clock.leave, self._watch.fault) for n in (3, 4, 5)
        ]
        self._marks = Marks(abi.MAIN_WORKER, 1)
        self._loaders = {workers: self._loader(workers) for workers in (0, 2)}

    def _loader(self, workers: int) -> Any:
        iterator = Ready(torch.zeros(BATCH, FEATURES))
        at = LoaderPass(1, workers, exact=True)
        at.keep_for(iterator)
        at.marks = None if workers else self._marks
        at.go_with(self._watch, LoopPass(self.clock))
        return iterator

    def bare(self, work: Callable[[], None]) -> None:
        self._fetch(self._loaders[0])
        work()

    def clock_alone(self, work: Callable[[], None]) -> None:
        clock = self.clock
        clock.begin_fetch()
        self._fetch(self._loaders[0])
        clock.end_fetch()
        clock.begin_batch()
        work()
        clock.end_step()

    def two_marks(self, work: Callable[[], None]) -> None:
        """Calls that the kernel refuses, as around a batch without workers."""
        self._marks.begin(0, 1)
        self._fetch(self._loaders[0])
        work()
        self._marks.void()

    def plain(self, work: Callable[[], None], workers: int = 2, phases: bool = False) -> None:
        next(self._loaders[workers])
        with self._step:
            for phase in self._phases if phases else ():
                with phase:
                    pass
            work()

    def close(self) -> None:
        self._watch.close()


class Turns(L.Callback):
    """Times the steps of a Trainer, of which each has other callbacks and another profiler.

    Args:
        arms: name -> the callbacks of its steps.
        turns: of each arm.
    """

    def __init__(self, arms: dict[str, list[L.Callback]], turns: int) -> None:
        self.found: dict[str, list[int]] = {name: [] for name in arms}
        self._arms = arms
        self._names = list(arms)
        self._turns = turns
        self._begin_ns = self._step = 0

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._tee, self._watched = trainer.profiler, dict(wrapping._wrapped[0].told)
        self._give_turn(trainer, 0)

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any) -> None:
        now = time.thread_time_ns()
        if self._begin_ns and self._step % IN_A_TURN >= COLD:
            self.found[self._now].append(now - self._begin_ns)
        self._step += 1
        if self._step % IN_A_TURN == 0:
            self._give_turn(trainer, self._step // IN_A_TURN)
        self._begin_ns = time.thread_time_ns()

    def _give_turn(self, trainer: L.Trainer, turn: int) -> None:
        self._now = name = self._names[turn % len(self._names)]
        observed = name == "observed"
        trainer.callbacks = [*self._arms[name], self]
        trainer.profiler = self._tee if observed else self._tee.trainobs_inner
        wrapping._wrapped[0].told.clear()
        wrapping._wrapped[0].told.update(self._watched if observed else {})
        trainer.should_stop = turn >= self._turns * len(self._names)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        trainer.callbacks = [*self._arms["observed"], self]
        trainer.profiler = self._tee
        wrapping._wrapped[0].told.update(self._watched)


def under_lightning(*, quick: bool) -> dict[str, float]:
    """What a callback that does nothing adds to a step, and what ours adds to that, us."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    with tempfile.TemporaryDirectory() as folder:
        ours = ObsCallback(run_dir=Path(folder, "run"), quiet=True, probes="off")
        arms = {"bare": [], "idle": [L.Callback()], "observed": [ours]}
        turns = Turns(arms, TURNS // 10 if quick else TURNS)
        options = dict.fromkeys(
            ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
        )
        trainer = L.Trainer(accelerator="cpu", max_epochs=-1, callbacks=[ours, turns], **options)
        trainer.fit(Tiny(), DataLoader(torch.rand(1 << 18, FEATURES), BATCH))
    bare, idle, observed = (_usual_ns(times) / 1e3 for times in turns.found.values())
    return {
        "step_us": round(bare, 2),
        "idle_callback_us": round(idle - bare, 2),
        "observed_beyond_idle_us": round(observed - idle, 2),
    }


def measure(*, quick: bool) -> dict[str, Any]:
    """Of each part what it adds to a step, us: in a loop, and by itself."""
    torch.set_num_threads(1)
    parts = Parts()
    arms: dict[str, Callable[[Callable[[], None]], None]] = {
        "bare": parts.bare,
        "clock": parts.clock_alone,
        "marks of a batch": parts.two_marks,
        "plain, workers": parts.plain,
        "plain, no workers": lambda work: parts.plain(work, workers=0),
        "plain, workers, three phases": lambda work: parts.plain(work, phases=True),
    }
    try:
        turns = TURNS // 10 if quick else TURNS
        in_a_loop, alone = _added(arms, _work(), turns), _added(arms, nullcontext, turns)
    finally:
        parts.close()
    return {
        name: {"in_a_loop_us": in_a_loop[name], "alone_us": alone[name]} for name in list(arms)[1:]
    } | {"step_us": in_a_loop["bare"], "lightning": under_lightning(quick=quick)}


def _added(
    arms: dict[str, Callable[[Callable[[], None]], None]], work: Any, turns: int
) -> dict[str, float]:
    found: dict[str, list[int]] = {name: [] for name in arms}
    for _ in range(turns):
        for name, arm in arms.items():
            for step in range(IN_A_TURN):
                begin = time.thread_time_ns()
                arm(work)
                took = time.thread_time_ns() - begin
                if step >= COLD:
                    found[name].append(took)
    usual = {name: _usual_ns(times) for name, times in found.items()}
    added = {name: ns - usual["bare"] for name, ns in usual.items()} | {"bare": usual["bare"]}
    return {name: round(ns / 1e3, 2) for name, ns in added.items()}


def _usual_ns(times: list[int]) -> float:
    return statistics.quantiles(times, n=5)[0]


def _work() -> Callable[[], None]:
    trained, batch = model(), torch.rand(BATCH, FEATURES)
    optimizer = torch.optim.SGD(trained.parameters(), 1e-3)

    def work() -> None:
        optimizer.zero_grad()
        trained(batch).square().mean().backward()
        optimizer.step()

    return work


if __name__ == "__main__":
    print(json.dumps(measure(quick=False), indent=2))
