"""What all processes of a run used: the training, its loader workers, and the tool's own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

RUNNER = "TRAINOBS_PEERS_RUNNER"
"""Environment variable with the tgid of the process whose descendants are the run."""

PR_SET_CHILD_SUBREAPER = 36
PROC = Path("/proc")
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Make this process the parent of descendants that lose theirs, so that none gets lost."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


class Tree:
    """The processes below the runner, seen from the training process, which is one of them."""

    def __init__(self) -> None:
        self._runner = int(os.environ[RUNNER])

    def cpu_s(self) -> float:
        """User and system time of all of them so far, and of the ended ones they waited for."""
        stats = _stats()
        ticks = (sum(map(int, stats[tgid][11:15])) for tgid in _below(self._runner, stats))
        return sum(ticks) * TICK_S

    def peak_rss_of_others_bytes(self) -> int:
        """Peaks of the processes that are neither the training nor its loader workers, added up."""
        stats = _stats()
        training = {os.getpid(), *_below(os.getpid(), stats)}
        others = set(_below(self._runner, stats)) - training
        return sum(peak_rss_bytes(str(tgid)) for tgid in others)


def peak_rss_bytes(tgid: str) -> int:
    """`VmHWM` of a process; 0 if it has just ended."""
    try:
        status = (PROC / tgid / "status").read_text()
    except OSError:
        return 0
    fields = (line.split() for line in status.splitlines())
    return next((int(words[1]) * 1024 for words in fields if words[0] == "VmHWM:"), 0)


def _stats() -> dict[int, list[str]]:
    """By tgid, the fields of `/proc/TGID/stat` from the state on (proc_pid_stat(5), field 3)."""
    found = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue  # it has ended
            found[int(folder.name)] = text.rpartition(")")[2].split()
    return found


def _below(top: int, stats: dict[int, list[str]]) -> Iterator[int]:
    """All descendants of `top`, without `top`."""
    for tgid, fields in stats.items():
        if int(fields[1]) == top:
            yield tgid
            yield from _below(tgid, stats)


def end_descendants(patience_s: float = 5.0) -> None:
    """Wait for what is left below this process, and kill what does not end by itself."""
    end = time.monotonic() + patience_s
    while True:
        try:
            done, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if done:
            continue
        if time.monotonic() > end:
            for tgid in _below(os.getpid(), _stats()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(tgid, signal.SIGKILL)
        time.sleep(0.01)
