"""Pauses of the garbage collector: in the step in which they happen, and gone with the run."""

from __future__ import annotations

import gc
import time

import numpy as np

from trainobs import observe
from trainobs.runlog.reader import RunLog


def test_collections_count_in_their_step_and_the_callback_goes(tmp_path):
    before = list(gc.callbacks)
    inside: list[int] = []

    def after_start(phase: str, info: object) -> None:
        """Called after trainobs as a collection starts."""
        if phase == "start":
            inside.append(time.monotonic_ns())

    def at_stop(phase: str, info: object) -> None:
        """Called before trainobs as it stops."""
        if phase == "stop":
            inside.append(time.monotonic_ns())

    garbage = [[] for _ in range(300_000)]
    for one in garbage:
        one.append(one)
    gc.collect()
    gc.disable()
    try:
        with observe(probes="off", run_dir=tmp_path / "run") as obs:
            for number in range(4):
                with obs.step(number):
                    if number == 2:
                        garbage.clear()
                        gc.callbacks.insert(0, at_stop)
                        gc.callbacks.append(after_start)
                        begin = time.monotonic_ns()
                        gc.collect()
                        around = time.monotonic_ns() - begin
                        gc.callbacks.remove(at_stop)
                        gc.callbacks.remove(after_start)
    finally:
        gc.enable()
    assert gc.callbacks == before
    rank = RunLog.open(tmp_path / "run").ranks[0]
    counted = dict(zip(rank.step().tolist(), rank.metric("python/gc_count").tolist(), strict=True))
    paused = dict(zip(rank.step().tolist(), rank.metric("python/gc_ns").tolist(), strict=True))
    assert counted[2] == 1
    assert counted[0] == counted[1] == 0
    started, stopped = inside
    assert stopped - started <= paused[2] <= around
    assert np.nansum(list(paused.values())) == paused[2]
