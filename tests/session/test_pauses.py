"""Pauses of the garbage collector: in the step in which they happen, and gone with the run."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time

import numpy as np

from trainobs import observe
from trainobs.runlog.reader import RunLog
from trainobs.session.machine import CollectorPauses


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


class Alarm(Exception):
    """What a handler of a signal raises, as that of Ctrl-C does."""


def test_what_a_signal_raises_in_the_middle_of_a_collection_is_not_lost():
    def ring(number: int, frame: object) -> None:
        raise Alarm

    def send() -> None:
        time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)

    heap = [[number] for number in range(50_000)]  # a collection takes most of the time
    others = gc.callbacks[:]  # such as Hypothesis's: what is raised in Python code there is lost
    gc.callbacks.clear()
    gc.freeze()  # what other tests left would take a second each time
    before, pauses, heard = signal.signal(signal.SIGUSR1, ring), CollectorPauses(), 0
    try:
        for _ in range(3):
            sender = threading.Thread(target=send)
            sender.start()
            try:
                while sender.is_alive():
                    gc.collect()
                gc.collect()
            except Alarm:
                heard += 1
            sender.join()
    finally:
        pauses.close()
        gc.unfreeze()
        gc.callbacks.extend(others)
        signal.signal(signal.SIGUSR1, before)
    assert len(heap) == 50_000
    assert heard == 3
