"""Leaving the process tree of whoever observes an ancestor of this process.

Lightning's launcher starts the other ranks as children of rank 0. Each rank observes itself, so
rank 0 must not count them as its children. The maps of another session cannot be reached from here;
its probes can: they see a task change its name. Each thread takes the name `NAME` for a moment, at
which probes that follow it let go of it, and of what it will start.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

NAME = b"tobs_detach"
"""As in `is_detach_name` of bpf/names.h."""


def detach(proc: Path = Path("/proc")) -> None:
    """Have every thread of this process let go of by probes of another session."""
    for thread in (proc / "self" / "task").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            comm = thread / "comm"
            before = comm.read_bytes().rstrip(b"\n")
            try:
                comm.write_bytes(NAME)
            finally:
                comm.write_bytes(before)
