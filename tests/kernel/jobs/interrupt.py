"""Stops a thread again and again by ptrace, as a profiler does that samples.

Usage: interrupt.py TID SECONDS PAUSE_S, which says so on its output once it has begun.
"""

from __future__ import annotations

import ctypes as C
import os
import sys
import time
from contextlib import suppress

SEIZE, INTERRUPT, CONT, DETACH = 0x4206, 0x4207, 7, 17  # include/uapi/linux/ptrace.h
WALL = 0x40000000  # __WALL: threads, too


def ask(request: int, tid: int) -> None:
    """One call of ptrace."""
    libc = C.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [C.c_long, C.c_long, C.c_void_p, C.c_void_p]
    if libc.ptrace(request, tid, None, None):
        raise OSError(C.get_errno(), "ptrace")


def stop(tid: int) -> None:
    """Stop the thread; returns when it is."""
    ask(INTERRUPT, tid)
    os.waitpid(tid, WALL)


def main(tid: int, seconds: float, pause_s: float) -> None:
    """Stop it for some time."""
    with suppress(OSError):  # before all other work, or it may go on between two programs
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    ask(SEIZE, tid)
    print("begun", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        stop(tid)
        ask(CONT, tid)
        time.sleep(pause_s)
    stop(tid)
    ask(DETACH, tid)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
