"""What one step costs in the training thread, in the observer's, and in the kernel."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainobs.core.abi import Op, Role
from trainobs.probes.local_backend import LocalBackend
from trainobs.runlog.writer import RunLogSink
from trainobs.session.observer import FLUSH_S
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
            "step_kept_blocks": _kept_blocks(clock),
        }
        spans = []
        _paced_steps(session, seconds=FLUSH_S)  # imports what the first flush does
        for _ in range(1 if quick else 5):
            before = _other_threads_cpu()
            steps = _paced_steps(session, seconds=FLUSH_S)
            spans.append((_other_threads_cpu() - before) / steps / 1e3)
        result["step_observer_thread_us"] = statistics.median(spans)
        result["step_observer_thread_least_us"] = min(spans)
        session.stop()
        size = sum(path.stat().st_size for path in run.rglob("rank=0/*"))
        result["run_log_bytes_per_step"] = size / session.clock.step
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


def _kept_blocks(clock: StepClock) -> float:
    """Blocks of memory that a closed step holds until it is collected."""
    few = FEW // 2
    before = sys.getallocatedblocks()
    for _ in range(few):
        _mark_step(clock)
    return (sys.getallocatedblocks() - before) / few


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


def _system_call(repeats: int) -> dict[str, float]:
    """Extra time of a 64-byte pread, followed and not, ns."""
    file = os.open(__file__, os.O_RDONLY)

    def best() -> float:
        return _best_ns(lambda: os.pread(file, 64, 0), repeats)

    bare = best()
    kernel = LocalBackend()
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
