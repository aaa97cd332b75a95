"""What one step costs in the training thread, in the observer's, and in the kernel."""

from __future__ import annotations

import logging
import math
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset

from trainobs import ObsCallback
from trainobs.core.abi import Op, Role
from trainobs.probes.kernel_side import KernelSide
from trainobs.runlog.writer import RunLogSink
from trainobs.session.session import Session
from trainobs.session.settings import Settings
from trainobs.steps.clock import StepClock
from trainobs.tensorboard.event_file import EventFile
from trainobs.tensorboard.sink import TensorBoardSink

STEP_S = 0.002
FEW = 64  # steps at once: fewer than the ring keeps, or the training thread would copy it


def measure(*, quick: bool) -> dict[str, Any]:
    """Costs of a mark, a switch of phase, a step and a followed system call."""
    return {
        **_in_session(quick),
        **_lightning(rounds=4 if quick else 16),
        **_system_call(20_000 if quick else 100_000),
    }


def _in_session(quick: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="trainobs-bench-") as folder:
        run = Path(folder, "run")
        sinks = [RunLogSink(run), TensorBoardSink(EventFile(run / "tensorboard"), 50)]
        session = Session(Settings(), sinks)
        clock, word = session.clock, session._kernel.clock
        result = {
            "mark_ns": _best_ns(lambda: word.__setitem__(0, 0)),
            "phase_switch_ns": _best_ns(lambda: (clock.enter(3), clock.leave())) / 2,
            "step_main_thread_us": _best_ns(lambda: _mark_step(clock), FEW) / 1e3,
        }
        before = _other_threads_cpu()
        count = _paced_steps(session, seconds=2 if quick else 10)
        result["step_observer_thread_us"] = (_other_threads_cpu() - before) / count / 1e3
        session.stop()
        size = sum(path.stat().st_size for path in run.rglob("rank=0/*"))
        result["run_log_bytes_per_step"] = size / count
    return {name: round(value, 2) for name, value in result.items()}


def _mark_step(clock: StepClock) -> None:
    clock.begin_fetch()
    clock.end_fetch()
    clock.begin_batch()
    clock.enter(3)
    clock.leave()
    clock.enter(4)
    clock.leave()
    clock.end_step()


def _paced_steps(session: Session, seconds: float) -> int:
    """Steps of `STEP_S` with a few reads; how many."""
    count = 0
    file = os.open(__file__, os.O_RDONLY)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        _mark_step(session.clock)
        for offset in range(10):
            os.pread(file, 100, offset)
        time.sleep(STEP_S)
        count += 1
    os.close(file)
    return count


def _other_threads_cpu() -> int:
    return time.process_time_ns() - time.thread_time_ns()


def _best_ns(action: Callable[[], object], repeats: int = 20_000) -> float:
    """CPU time of this thread in the best of several runs, that of an empty call taken off."""

    def run(thing: Callable[[], object]) -> float:
        begin = time.thread_time_ns()
        for _ in range(repeats):
            thing()
        return (time.thread_time_ns() - begin) / repeats

    return min(run(action) for _ in range(7)) - min(run(lambda: None) for _ in range(7))


class _Tiny(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.layer(batch[0]).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 1e-3)


def _lightning(rounds: int) -> dict[str, float]:
    """What the best of several medians of a step rises by, probes off: the hooks and the tee alone.

    Lightning itself calls some fifteen hooks a step on every callback, so a callback that does
    nothing is measured, too.
    """
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    loader = DataLoader(TensorDataset(torch.zeros(1000, 4)), 1)
    best: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="trainobs-bench-") as folder:
        arms = {
            "bare": list,
            "idle": lambda: [L.Callback()],
            "observed": lambda: [ObsCallback(probes="off", run_dir=folder + "/run")],
        }
        for _ in range(rounds):
            for name, callbacks in arms.items():
                best[name] = min(best.get(name, math.inf), _fit(loader, callbacks()))
    return {
        "lightning_idle_callback_us_per_step": round(best["idle"] - best["bare"], 1),
        "lightning_hooks_us_per_step": round(best["observed"] - best["bare"], 1),
    }


def _fit(loader: Any, callbacks: list[L.Callback]) -> float:
    from imagenet import StepTimes

    times = StepTimes()
    options = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    trainer = L.Trainer(accelerator="cpu", max_epochs=1, callbacks=[times, *callbacks], **options)
    trainer.fit(_Tiny(), loader)
    return statistics.median(times.steps()) / 1e3


def _system_call(repeats: int) -> dict[str, float]:
    """Extra time of a 64-byte pread, followed and not, ns."""
    file = os.open(__file__, os.O_RDONLY)

    def best() -> float:
        return _best_ns(lambda: os.pread(file, 64, 0), repeats)

    bare = best()
    kernel = KernelSide()
    untracked = best()
    kernel.adopt()
    tracked = best()
    counted = int(kernel.rows["count"][:, Op.READ, :, Role.MAIN].sum())
    kernel.stop()
    os.close(file)
    if counted < repeats:
        raise RuntimeError(f"the probes counted {counted} of {repeats} reads")
    return {
        "pread_bare_ns": round(bare),
        "pread_untracked_extra_ns": round(untracked - bare),
        "pread_tracked_extra_ns": round(tracked - bare),
    }
