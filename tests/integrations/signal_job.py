"""A loop in which a signal's handler raises at each line of trainobs in turn that it comes through.

Usage: python -m tests.integrations.signal_job RUN PROBES [--collects]

With --collects the loop collects its steps itself, as one that is too fast for the observer. Prints
JSON: of how many lines the exception reached the loop, and lines that kept it.
"""

from __future__ import annotations

import json
import linecache
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

import trainobs
from trainobs import observe
from trainobs.integrations.plain import Observation
from trainobs.session import session

HOME = str(Path(trainobs.__file__).parent)


class Alarm(Exception):
    """What the handler raises."""


class Lines:
    """Counts the lines of trainobs that are executed; at one of them a signal comes."""

    def __init__(self, at: int) -> None:
        self.place, self.is_in_del = "", False
        self._left = at
        self._entered: set[tuple[FrameType, int]] = set()

    def trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        """For `sys.settrace`."""
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        if event == "line" and not self._is_safe(frame):
            self._left -= 1
            if not self._left:
                self.place = f"{frame.f_code.co_filename[len(HOME) + 1 :]}:{frame.f_lineno}"
                self.is_in_del = in_del(frame)
                if not self.is_in_del:
                    signal.raise_signal(signal.SIGUSR1)
        return self.trace

    def _is_safe(self, frame: FrameType) -> bool:
        """Whether Python handles no signal there: at `try`, and at the end of a `with`.

        A lock would stay held there that is released wherever a signal can come.
        """
        code, place = frame.f_code, (frame, frame.f_lineno)
        text = linecache.getline(code.co_filename, frame.f_lineno).lstrip()
        is_again = place in self._entered
        self._entered.add(place)
        return text.startswith("try:") or (is_again and text.startswith("with "))


def in_del(frame: FrameType | None) -> bool:
    """Whether a frame is part of a `__del__`, out of which nothing can be raised."""
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def main() -> None:
    """Go through the loop, once for each line."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Alarm

    signal.signal(signal.SIGUSR1, ring)
    run, probes, *more = sys.argv[1:]
    if more:
        session._OVERFLOW = 1
    reached, kept = 0, []
    with observe(run_dir=run, probes=probes, quiet=True) as obs:
        loader = obs.loader(DataLoader([torch.zeros(2)] * 3, 1))
        at, place = 0, "the first"
        while place:
            at += 1
            place, has_reached = once(obs, loader, at)
            reached += has_reached
            kept += [place] if place and not has_reached else []
        for _ in range(10):
            once(obs, loader, at=0)
    print(json.dumps({"reached": reached, "kept": kept}))


def once(obs: Observation, loader: Any, at: int) -> tuple[str, bool]:
    """The line at which the signal came, or ""; whether the loop got what the handler raised.

    Of a line in a `__del__` it would get nothing, and no signal comes.
    """
    lines = Lines(at)
    sys.settrace(lines.trace)
    try:
        for _ in loader:
            with obs.step(), obs.phase("forward"):
                pass
    except Alarm:
        return lines.place, True
    finally:
        sys.settrace(None)
    return lines.place, lines.is_in_del


if __name__ == "__main__":
    main()
