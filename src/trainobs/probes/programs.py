"""The probes: which programs belong together, where they are attached, and what each gives."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trainobs.core.errors import SettingError, shown
from trainobs.probes.kernel_names import KernelNames

AGAIN, FIRST = "_again", "_first"
"""What the names of a program's second one end with, where it has one, and of the map by which that
calls the first one: bpf/preemption.h."""


@dataclass(frozen=True)
class ProgramVariant:
    """One way to observe something; kernels differ in which they have.

    Attributes:
        attach_points: (program in the object, section that says what it is attached to), what
            begins before what ends.
        needs: what the kernel's BTF must have beside the targets of these; a key of `_NEEDS`.
    """

    attach_points: tuple[tuple[str, str], ...] = ()
    needs: str | None = None

    def lacks(self, names: KernelNames) -> list[str]:
        """What a kernel does not have for it, in words."""
        targets = [point.split("/") for _, point in self.attach_points]
        lacking = [
            _WORDS[kind].format(name) for kind, name in targets if not _has(names, kind, name)
        ]
        lacking += [
            f"{_WORDS[kind].format(name)} with arguments that trainobs knows"
            for kind, name in targets
            if f"{kind}/{name}" in names.strange
        ]
        if not names.functions and any(kind in _OF_FUNCTIONS for kind, _ in targets):
            lacking.append(_NO_FUNCTIONS)
        if self.needs and self.needs not in names:
            lacking.append(_NEEDS[self.needs])
        return lacking


@dataclass(frozen=True)
class Program:
    """One part of the kernel side, by the name that run logs give it.

    Attributes:
        name: the program that it mostly is.
        gives: what a user gets from it.
        variants: how it is had, the best one first; others stand in for it on other kernels.
    """

    name: str
    gives: str
    variants: tuple[ProgramVariant, ...]

    @property
    def attach_point(self) -> str:
        """Where it is attached, at best; "" if it is a part of another program."""
        points = self.variants[0].attach_points
        return points[0][1].removeprefix("tp_btf/") if points else ""

    def lacks(self, names: KernelNames) -> list[str]:
        """What a kernel does not have for the best variant, and whether it refuses others."""
        best, *others = (variant.lacks(names) for variant in self.variants)
        refused = any(_NO_FUNCTIONS in lacking for lacking in others) and _NO_FUNCTIONS not in best
        return [*best, _NO_FUNCTIONS] if refused else best


_WORDS = {"tp_btf": "tracepoint {}", "fentry": "function {}", "fexit": "function {}"}
_OF_FUNCTIONS = ("fentry", "fexit")
_NO_FUNCTIONS = "function that programs may be attached to (not permitted)"
_NEEDS = {
    "BPF_FUNC_check_mtu": "storage for tasks in tracing programs (Linux 5.12)",
    "BPF_FUNC_task_pt_regs": "helper bpf_task_pt_regs (Linux 5.15)",
    "io_cqe": "result in io_uring requests (Linux 5.19)",
}
"""Name in the kernel's BTF -> what came with it."""


def _has(names: KernelNames, kind: str, name: str) -> bool:
    if kind == "tp_btf":
        return names.has_tracepoint(name)
    return kind == "iter" or name in names


def _traced(
    name: str, tracepoint: str, gives: str, *others: ProgramVariant, needs: str | None = None
) -> Program:
    """A program at a tracepoint, and other ways to have what it gives."""
    return Program(name, gives, (ProgramVariant(((name, f"tp_btf/{tracepoint}"),), needs), *others))


def _variant(**points: str) -> ProgramVariant:
    return ProgramVariant(tuple(points.items()))


LIMIT = "tobs_blk_limit"

PROBES: dict[str, tuple[Program, ...]] = {
    "syscalls": (
        _traced("tobs_sys_enter", "sys_enter", "class of the file of each call"),
        _traced("tobs_sys_exit", "sys_exit", "bytes, calls and latency of file system calls"),
    ),
    "io_uring": (
        _traced(
            "tobs_uring",
            "io_uring_complete",
            "reads and writes completed by io_uring",
            needs="io_cqe",
        ),
    ),
    "page_cache": (
        _traced("tobs_cache_add", "mm_filemap_add_to_page_cache", "page-cache misses"),
        _traced(
            "tobs_ra_wait",
            "page_cache_sync_ra",
            "reads that waited for read-ahead",
            _variant(tobs_ra_wait_f="fentry/page_cache_sync_ra"),
        ),
        _traced(
            "tobs_fault",
            "mm_filemap_fault",
            "faults of mapped files",
            _variant(tobs_fault_f="fentry/filemap_fault"),
        ),
    ),
    "block": (
        Program(
            "tobs_blk_start",
            "whose block request it is",
            (
                _variant(
                    tobs_blk_start="tp_btf/block_io_start", tobs_blk_merge="tp_btf/block_rq_merge"
                ),
                _variant(
                    tobs_blk_getrq="tp_btf/block_getrq",
                    tobs_blk_merge_b="tp_btf/block_rq_merge",
                    tobs_blk_issue="tp_btf/block_rq_issue",
                ),
            ),
        ),
        _traced("tobs_blk_done", "block_rq_complete", "bytes and latency of block requests"),
        Program(
            LIMIT,
            "whose block request it is that a limit of a control group held back",
            (
                _variant(tobs_blk_limit="fentry/__blk_throtl_bio"),
                _variant(tobs_blk_limit_f="fentry/blk_throtl_bio"),
                ProgramVariant(),  # by who brought a page in: bpf/askers.h
            ),
        ),
    ),
    "sched": (
        _traced("tobs_switch", "sched_switch", "time off the CPU and in the run queue"),
        _traced("tobs_wakeup", "sched_wakeup", "when a task became ready to run"),
        _traced("tobs_wakeup_new", "sched_wakeup_new", "when a new task became ready to run"),
        _traced("tobs_waking", "sched_waking", "which sleep of the training thread was for gloo"),
        Program(
            "tobs_await",
            "what the training thread waits for: another thread, or the interpreter lock",
            (ProgramVariant(needs="BPF_FUNC_task_pt_regs"),),
        ),
    ),
    "net": (
        _traced(
            "tobs_send",
            "sock_send_length",
            "bytes sent on sockets",
            _variant(
                tobs_send_4="fexit/inet_sendmsg",
                tobs_send_6="fexit/inet6_sendmsg",
                tobs_send_page="fexit/inet_sendpage",
            ),
        ),
        _traced(
            "tobs_receive",
            "sock_recv_length",
            "bytes received on sockets",
            _variant(tobs_receive_4="fexit/inet_recvmsg", tobs_receive_6="fexit/inet6_recvmsg"),
        ),
    ),
    "memory": (
        _traced("tobs_reclaim", "mm_vmscan_direct_reclaim_begin", "who has to free memory"),
        _traced("tobs_reclaimed", "mm_vmscan_direct_reclaim_end", "time spent on freeing it"),
        _traced(
            "tobs_cg_reclaim",
            "mm_vmscan_memcg_reclaim_begin",
            "who has to free memory of a cgroup at its limit",
        ),
        _traced("tobs_cg_freed", "mm_vmscan_memcg_reclaim_end", "time spent on freeing that"),
    ),
}
"""Probes a user can choose, by name."""


def _iterator(name: str, gives: str, over: str = "task") -> Program:
    return Program(name, gives, (ProgramVariant(((name, f"iter/{over}"),)),))


TREE: tuple[Program, ...] = (
    _traced(
        "tobs_fork", "task_newtask", "workers and threads from birth", needs="BPF_FUNC_check_mtu"
    ),
    _traced("tobs_rename", "task_rename", "which children are loader workers"),
    _traced("tobs_exec", "sched_process_exec", "following no program that has more rights (sudo)"),
    _iterator("tobs_adopt", "registration of the training process"),
    _iterator("tobs_leave", "leaving the observer's own thread out"),
    _iterator("tobs_root", "which directories hold data and checkpoints", over="bpf_map"),
    _iterator("tobs_release", "the end of a session"),
)
"""Programs without which no probe works."""

TOGETHER: tuple[frozenset[str], ...] = (
    frozenset({"tobs_sys_enter", "tobs_sys_exit"}),
    frozenset({"tobs_blk_start", "tobs_blk_done"}),
    frozenset({"tobs_switch", "tobs_wakeup", "tobs_wakeup_new"}),
    frozenset({"tobs_reclaim", "tobs_reclaimed"}),
    frozenset({"tobs_cg_reclaim", "tobs_cg_freed"}),
)
"""Programs that say something wrong without each other: all of them run, or none."""

WHAT_TO_GIVE = (
    f'give "auto", "off", or a list of {", ".join(map(repr, PROBES))} and each `Probe` of your own'
)
"""What an error about `probes` says."""

ITERATORS = frozenset(program.name for program in TREE if program.attach_point.startswith("iter/"))
"""Programs that run when read, not when something happens."""

_OF_CALLS = frozenset({"io_uring", "page_cache"})
"""Probes whose metrics all need system calls as well."""

_TOLD = 5
"""Unknown names that an error shows."""


def check_names(names: Sequence[object]) -> frozenset[str]:
    """Validate probe names.

    Returns:
        These, and "syscalls" where another one says nothing without.

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
    chosen = frozenset(map(str, names))
    return chosen | {"syscalls"} if chosen & _OF_CALLS else chosen


def programs_of(probes: Iterable[str]) -> dict[str, Program]:
    """Programs of some probes and of the process tree, by program name."""
    chosen = [program for probe in probes for program in PROBES[probe]]
    return {program.name: program for program in (*TREE, *chosen)}


def choose(
    programs: Mapping[str, Program], names: KernelNames
) -> tuple[dict[str, ProgramVariant], dict[str, str]]:
    """The best variant that a kernel offers to each.

    Returns:
        Program -> variant; and of those that have none, program -> why.
    """
    found = {name: variant_after(program, None, names) for name, program in programs.items()}
    off = {
        name: f"this kernel has no {', no '.join(programs[name].lacks(names))}"
        for name, variant in found.items()
        if variant is None
    }
    off |= left_alone(found.keys() - off.keys(), off)
    return {name: variant for name, variant in found.items() if variant and name not in off}, off


def variant_after(
    program: Program, refused: ProgramVariant | None, names: KernelNames
) -> ProgramVariant | None:
    """The best variant that a kernel offers, of those behind one that it refused."""
    first = program.variants.index(refused) + 1 if refused else 0
    return next((variant for variant in program.variants[first:] if not variant.lacks(names)), None)


def left_alone(running: Collection[str], off: Mapping[str, str]) -> dict[str, str]:
    """Of some programs, those that must not run since a partner is off -> why."""
    alone: dict[str, str] = {}
    for partners in TOGETHER:
        for lost in sorted(partners & off.keys())[:1]:
            alone |= dict.fromkeys(
                partners & set(running), f"of no use without {lost}: {off[lost]}"
            )
    return alone
