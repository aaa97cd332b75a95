"""The probes: which programs belong together, where they hook in, and what each gives."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trainobs.core.errors import SettingError, shown


@dataclass(frozen=True)
class Program:
    """One BPF program: its name in the object, its tracepoint, what it gives.

    `spare` is the program that does the same, slower, on kernels that refuse this one.
    """

    name: str
    tracepoint: str
    gives: str
    spare: str | None = None


PROBES: dict[str, tuple[Program, ...]] = {
    "syscalls": (
        Program(
            "tobs_sys_enter",
            "sys_enter",
            "class of the file of each call",
            spare="tobs_sys_enter_old",
        ),
        Program(
            "tobs_sys_exit",
            "sys_exit",
            "bytes, calls and latency of file system calls",
            spare="tobs_sys_exit_old",
        ),
    ),
    "io_uring": (
        Program("tobs_uring", "io_uring_complete", "reads and writes completed by io_uring"),
    ),
    "page_cache": (
        Program("tobs_cache_add", "mm_filemap_add_to_page_cache", "page-cache misses"),
        Program("tobs_ra_wait", "page_cache_sync_ra", "reads that waited for read-ahead"),
        Program("tobs_fault", "mm_filemap_fault", "faults of mapped files"),
    ),
    "block": (
        Program("tobs_blk_start", "block_io_start", "whose block request it is"),
        Program("tobs_blk_merge", "block_rq_merge", "which requests became part of another"),
        Program("tobs_blk_done", "block_rq_complete", "bytes and latency of block requests"),
    ),
    "sched": (
        Program("tobs_switch", "sched_switch", "time off the CPU and in the run queue"),
        Program("tobs_wakeup", "sched_wakeup", "when a task became ready to run"),
        Program("tobs_wakeup_new", "sched_wakeup_new", "when a new task became ready to run"),
    ),
    "net": (
        Program("tobs_send", "sock_send_length", "bytes sent on sockets"),
        Program("tobs_receive", "sock_recv_length", "bytes received on sockets"),
    ),
    "memory": (
        Program("tobs_reclaim", "mm_vmscan_direct_reclaim_begin", "who has to free memory"),
        Program("tobs_reclaimed", "mm_vmscan_direct_reclaim_end", "time spent on freeing it"),
        Program("tobs_cg_reclaim", "mm_vmscan_memcg_reclaim_begin", "the same for a cgroup"),
        Program("tobs_cg_freed", "mm_vmscan_memcg_reclaim_end", "time spent on it"),
    ),
}
"""Probes a user can choose, by name."""

TREE: tuple[Program, ...] = (
    Program("tobs_fork", "task_newtask", "workers and threads from birth"),
    Program("tobs_rename", "task_rename", "which children are loader workers"),
    Program("tobs_exec", "sched_process_exec", "leaving out programs with rights of their own"),
    Program("tobs_adopt", "iter/task", "registration of the training process"),
    Program("tobs_leave", "iter/task", "leaving the observer's own thread out"),
    Program("tobs_root", "iter/task", "which directories hold data and checkpoints"),
    Program("tobs_release", "iter/task", "letting go of all that a session follows"),
)
"""Programs without which no probe works."""

WHAT_TO_GIVE = f'give "auto", "off", or a list of {", ".join(map(repr, PROBES))}'
"""What an error about `probes` says."""

ITERATORS = frozenset({"tobs_adopt", "tobs_leave", "tobs_root", "tobs_release"})
"""Programs that run when read, not when something happens."""


_TOLD = 5
"""Unknown names that an error shows."""


def check_names(names: Sequence[object]) -> frozenset[str]:
    """Validate probe names.

    Raises:
        SettingError: a name is not in `PROBES`.
    """
    unknown = [name for name in names if not isinstance(name, str) or name not in PROBES]
    if unknown:
        raise SettingError(
            "bad value for `probes`",
            f"unknown probe {', '.join(map(shown, unknown[:_TOLD]))}",
            WHAT_TO_GIVE,
        )
    return frozenset(map(str, names))


def programs_of(probes: Iterable[str]) -> dict[str, Program]:
    """Programs of some probes and of the process tree, by program name."""
    chosen = [program for probe in probes for program in PROBES[probe]]
    return {program.name: program for program in (*TREE, *chosen)}
