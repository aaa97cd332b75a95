"""Training loops that another process has observe themselves: see `test_inside.py`.

Usage: python -m tests.attach.inside_loops KIND DIRECTORY SECONDS

They write down the same as those of `loops.py`; and into `after.json` what there is of trainobs at
their end. Before Python 3.14 SIGUSR1 stands in for `sys.remote_exec`: it has the main thread run
the file that `script` in DIRECTORY links to, also between any two instructions.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import optimizer as of_torch
from torch.utils.data import DataLoader

from tests.attach.loop_parts import (
    FILE_BYTES,
    KIND,
    PLACE,
    Files,
    accumulated,
    backward,
    batches,
    going_on,
    model,
    note,
    train,
    write_down,
)


def run_script(*_: object) -> None:
    """What Python 3.14 does by itself.

    A link, not a file with a name in it: what reads a file in the middle of a fetch reads data.
    """
    text = (PLACE / "script").read_text()
    exec(compile(text, "<string>", "exec"), {})


def plain() -> None:
    net = model()
    train(net, torch.optim.SGD(net.parameters(), 0.1), length=7)


def two_workers() -> None:
    """Started anew for each 7 batches; the fetch that finds no batch any more begins no step."""
    net, loader = model(), DataLoader(Files(7), 1, num_workers=2)
    fetched: Iterator[torch.Tensor] = iter(())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, _ in enumerate(going_on()):
        if number % 7 == 0:
            assert next(fetched, None) is None
        note("ask")
        if number % 7 == 0:
            fetched = iter(loader)
        backward(net(next(fetched)).sum())
        optimizer.step()


def validated() -> None:
    """What is fetched without gradients begins no step, by whichever iterator."""
    net, fetched = model(), batches()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, _ in enumerate(going_on()):
        if number % 3 == 2:
            with torch.no_grad():
                next(fetched)
                assert len(list(DataLoader(Files(5), 1))) == 5
        note("ask")
        backward(net(next(fetched)).sum())
        optimizer.step()


def without_loader() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in going_on():
        optimizer.zero_grad()
        backward(net(torch.zeros(16)).sum())
        optimizer.step()


def hooked() -> None:
    """Most of the time it is in a hook of its own, where torch goes through all of them."""
    handle = of_torch.register_optimizer_step_pre_hook(lambda *_: time.sleep(0.02))
    try:
        plain()
    finally:
        handle.remove()


def faulty() -> None:
    """Something of ours fails in the middle of its run."""
    from trainobs.integrations.found_steps import StepFinder

    fetching = StepFinder.fetching

    def fails(self: Any) -> None:
        fetching(self)
        if self._fetches == 20:
            raise LookupError("made for a test")

    StepFinder.fetching = fails  # type: ignore[method-assign]
    plain()


class Preempted(Exception):
    """What the handler of a signal raises."""


def preempted() -> None:
    """A signal comes in the middle of what begins to observe; its handler raises."""
    from trainobs.integrations import inside

    def preempt(*_: object) -> None:
        raise Preempted

    def comes(request: object) -> None:
        signal.raise_signal(signal.SIGUSR2)

    signal.signal(signal.SIGUSR2, preempt)
    inside._refuse_what_cannot_be = comes
    try:
        plain()
    except Preempted:
        note("preempted")


def threads_of_ours() -> list[str]:
    """The last may have to end yet, for which it needs a CPU."""
    until = time.monotonic() + 20
    while found := [one.name for one in threading.enumerate() if "trainobs" in one.name]:
        if time.monotonic() > until:
            break
        time.sleep(0.05)
    return found


def write_down_what_is_left(main: dict[str, Any], known: set[str]) -> None:
    hooks = len(of_torch._global_optimizer_pre_hooks), len(of_torch._global_optimizer_post_hooks)
    left = {
        "iter": DataLoader.__iter__.__code__.co_filename,
        "hooks": hooks,
        "threads": threads_of_ours(),
        "handlers": len(logging.getLogger("trainobs").handlers),
        "names": sorted(set(main) - known),
    }
    (PLACE / "after.json").write_text(json.dumps(left))


LOOPS: dict[str, Callable[[], None]] = {
    loop.__name__: loop
    for loop in (
        plain,
        accumulated,
        two_workers,
        validated,
        without_loader,
        hooked,
        faulty,
        preempted,
    )
}


def main() -> None:
    torch.set_num_threads(1)
    (PLACE / "data").mkdir(exist_ok=True)
    for number in range(5):
        (PLACE / "data" / f"{number}.bin").write_bytes(os.urandom(FILE_BYTES))
    if sys.version_info < (3, 14):
        signal.signal(signal.SIGUSR1, run_script)
    of_torch.register_optimizer_step_pre_hook(lambda *_: note("opt"))
    names = set(globals())
    (PLACE / "pid-0").write_text(str(os.getpid()))
    LOOPS[KIND]()
    if sys.version_info < (3, 14):  # who withdraws what it asked for sends another as we end
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    write_down_what_is_left(globals(), names)
    write_down()


if __name__ == "__main__":
    main()
