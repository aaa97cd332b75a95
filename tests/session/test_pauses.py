"""Pauses of the garbage collector: in the step in which they happen, and gone with the run."""

from __future__ import annotations

import gc
import time

import numpy as np

from trainobs import observe
from trainobs.analysis.runlog import RunLog


def test_collections_count_in_their_step_and_the_callback_goes(tmp_path):
    before = list(gc.callbacks)
    garbage = [[] for _ in range(300_000)]
    for one in garbage:
        one.append(one)
    gc.collect()
    gc.disable()
    try:
        with observe(probes="off", run_dir=tmp_path / "run") as obs:
            begun = 0
            for number in range(4):
                with obs.step(number):
                    if number == 2:
                        garbage.clear()
                        begin = time.monotonic_ns()
                        gc.collect()
                        begun = time.monotonic_ns() - begin
    finally:
        gc.enable()
    assert gc.callbacks == before
    rank = RunLog.open(tmp_path / "run").ranks[0]
    counted = dict(zip(rank.step().tolist(), rank.metric("python/gc_count").tolist(), strict=True))
    paused = dict(zip(rank.step().tolist(), rank.metric("python/gc_ns").tolist(), strict=True))
    assert counted[2] == 1
    assert counted[0] == counted[1] == 0
    assert 0.5 * begun < paused[2] <= begun
    assert np.nansum(list(paused.values())) == paused[2]
