"""Processes without torch, which do something again and again, or not; they write down their turns.

Usage: python -m tests.attach.things KIND DIRECTORY SECONDS

Into DIRECTORY goes, at the end, `truth-0.json`: a list of ["turn", CLOCK_MONOTONIC in ns, 0], one
where each turn begins. They end before, once there is a file `stop` in DIRECTORY.
"""

from __future__ import annotations

import json
import os
import random
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # beside other tests, more of them are slower

import numpy as np  # noqa: E402

KIND, PLACE, SECONDS = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
EVENTS: list[tuple[str, int, int]] = []
END = time.monotonic() + SECONDS
_RANDOM = random.Random(1)


STOP = threading.Event()


def wait_for_stop() -> None:
    """In a thread of its own, so that it adds nothing to what the first one asks for."""
    while time.monotonic() < END and not (PLACE / "stop").exists():
        time.sleep(0.1)
    STOP.set()


def turns() -> Iterator[int]:
    number = 0
    while not STOP.is_set():
        EVENTS.append(("turn", time.monotonic_ns(), 0))
        yield number
        number += 1


def read(number: int) -> None:
    (PLACE / "data" / f"{number % 5}.bin").read_bytes()


def files() -> None:
    """One file a turn."""
    for number in turns():
        read(number)
        time.sleep(0.02)


def numpy_training() -> None:
    """Batches from a file of arrays, a step of gradient descent, a line of a log."""
    weights = np.zeros((256, 256))
    with open(PLACE / "log", "w", buffering=1) as log:
        for number in turns():
            batch = np.load(PLACE / "data" / f"{number % 5}.npy")
            for _ in range(20):
                weights -= 1e-5 * (batch.T @ (batch @ weights - batch))
            log.write(f"{number} {float(np.abs(weights).mean())}\n")


def jittered() -> None:
    """Turns of 7 to 21 ms."""
    for number in turns():
        read(number)
        time.sleep(0.014 * _RANDOM.uniform(0.7, 1.3))


def logged() -> None:
    """A line of a log each fiftieth turn, as well as a file in each."""
    with open(PLACE / "log", "w", buffering=1) as log:
        for number in turns():
            read(number)
            time.sleep(0.01)
            if number % 50 == 49:
                log.write("still there\n")


def sped_up() -> None:
    """Twice as fast from the first 8 s on."""
    begin = time.monotonic()
    for number in turns():
        read(number)
        time.sleep(0.02 if time.monotonic() - begin < 8 else 0.01)


def stopping() -> None:
    """Ends its loop after 8 s, and sleeps."""
    begin = time.monotonic()
    for number in turns():
        if time.monotonic() - begin > 8:
            break
        read(number)
        time.sleep(0.02)
    STOP.wait()


def batches_of_files() -> None:
    """32 files, then the step; nothing but the time tells of it."""
    for _ in turns():
        for number in range(32):
            read(number)
        until = time.monotonic() + 0.03
        while time.monotonic() < until:
            pass


def accumulated() -> None:
    """Four files for a step, with a line of a log."""
    with open(PLACE / "log", "w", buffering=1) as log:
        for _ in turns():
            for number in range(4):
                read(number)
                time.sleep(0.01)
            log.write("stepped\n")


def alternating() -> None:
    """Now a short one, now a long one."""
    for number in turns():
        read(number)
        time.sleep(0.03 if number % 2 else 0.01)


def noise() -> None:
    """Anything at any time."""
    for _ in turns():
        for _ in range(_RANDOM.randrange(4)):
            _RANDOM.choice((read, lambda number: os.getppid(), lambda number: os.stat(PLACE)))(
                _RANDOM.randrange(5)
            )
        time.sleep(_RANDOM.expovariate(50))


def random_sleeps() -> None:
    for _ in turns():
        time.sleep(_RANDOM.expovariate(50))


def interleaved() -> None:
    """Two timers of one thread, of 10 and 33 ms."""
    due = [time.monotonic(), time.monotonic()]
    for _ in turns():
        now = time.monotonic()
        first = 0 if due[0] <= due[1] else 1
        time.sleep(max(0.0, due[first] - now))
        due[first] += (0.01, 0.033)[first]
        if first:
            os.stat(PLACE)
        else:
            read(0)


def two_timers() -> None:
    """The same, of which both do the same."""
    due = [time.monotonic(), time.monotonic()]
    for _ in turns():
        first = 0 if due[0] <= due[1] else 1
        time.sleep(max(0.0, due[first] - time.monotonic()))
        due[first] += (0.01, 0.033)[first]


def idle() -> None:
    for _ in turns():
        time.sleep(3)


def computing() -> None:
    """Asks the kernel for nothing."""
    values = np.ones((64, 64))
    out = np.empty((64, 64))
    for _ in turns():
        for _ in range(1000):
            np.dot(values, values, out=out)


def server() -> None:
    """Answers as it is asked, at any time."""
    ours, theirs = socket.socketpair()
    selector = selectors.DefaultSelector()
    selector.register(ours, selectors.EVENT_READ)

    def ask() -> None:
        while time.monotonic() < END:
            time.sleep(_RANDOM.expovariate(40))
            theirs.send(b"?" * _RANDOM.randrange(1, 9))

    threading.Thread(target=ask, daemon=True).start()
    for _ in turns():
        if selector.select(1):
            ours.recv(64)


THINGS: dict[str, Callable[[], None]] = {
    thing.__name__: thing
    for thing in (
        *(files, numpy_training, jittered, logged, sped_up, stopping, batches_of_files),
        *(accumulated, alternating, noise, random_sleeps, interleaved, two_timers, idle),
        *(computing, server),
    )
}


def main() -> None:
    (PLACE / "data").mkdir(exist_ok=True)
    for number in range(5):
        (PLACE / "data" / f"{number}.bin").write_bytes(os.urandom(8192))
        np.save(PLACE / "data" / f"{number}.npy", np.random.default_rng(number).random((32, 256)))
    (PLACE / "pid-0").write_text(str(os.getpid()))
    threading.Thread(target=wait_for_stop, daemon=True).start()
    THINGS[KIND]()
    (PLACE / "truth-0.json").write_text(json.dumps(EVENTS))


if __name__ == "__main__":
    main()
