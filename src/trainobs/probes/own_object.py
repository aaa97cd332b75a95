"""Programs of a user's in the kernel, each with a second one where it needs that.

Since Linux 7.0 the kernel leaves a program of a tracepoint out where a task lost its CPU in it. The
second one finds that out, and calls the first one: bpf/own_preemption.h.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import suppress

from trainobs.core.errors import ProbeError
from trainobs.probes.compiling import OBJECTS
from trainobs.probes.extra import ExtraObject
from trainobs.probes.programs import AGAIN, FIRST

_ENTERED = "_entered"
_SECOND = {"tp_btf": "own_again", "raw_tp": "own_raw_again", "raw_tracepoint": "own_raw_again"}
"""Kind of a section -> program of bpf/again.bpf.c; all of them are tracepoints."""


class OwnObject:
    """One object of a user's, loaded.

    Args:
        first: it; closed with this.
        maps: name -> descriptor of what our programs share with others.
    """

    def __init__(self, first: ExtraObject, maps: Mapping[str, int]) -> None:
        self._first = first
        self._maps = maps
        self._seconds: dict[str, ExtraObject] = {}

    def attach_seconds(self) -> None:
        """Attach the second ones, behind the first ones.

        Only for those at tracepoints that have the maps for it. Where that is refused, what the
        first one is left out of stays uncounted, and is told (`ProbeStatistics.missed_runs`).
        """
        for program, section in self._first.programs.items():
            kind, _, tracepoint = section.partition("/")
            if kind in _SECOND and self._first.has_map(program + FIRST):
                with suppress(ProbeError, OSError):
                    self._attach_second(program, _SECOND[kind], tracepoint)

    def program_fds(self) -> dict[str, int]:
        """Program -> its descriptor; second ones end with `AGAIN`."""
        fds = {f"{name}{AGAIN}": min(s.program_fds().values()) for name, s in self._seconds.items()}
        return self._first.program_fds() | fds

    def close(self) -> None:
        """Take all out of the kernel; may be called twice."""
        for one in (*self._seconds.values(), self._first):
            one.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's."""
        for one in (*self._seconds.values(), self._first):
            one.abandon()

    def _attach_second(self, program: str, name: str, tracepoint: str) -> None:
        self._first.let_be_called(program, program + FIRST)
        ends = {"first": FIRST, "entered": _ENTERED}
        own = {key: self._first.map_fd(program + end) for key, end in ends.items()}
        parts = [OBJECTS / f"again.{platform.machine()}.bpf.o"]
        maps, targets = {**self._maps, **own}, {name: tracepoint}
        second = ExtraObject(parts, maps, program + AGAIN, [name], targets=targets)
        try:
            second.attach_to_tracepoint(name)
        except BaseException:
            second.close()
            raise
        self._seconds[program] = second
