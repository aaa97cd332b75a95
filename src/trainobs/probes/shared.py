"""One set of probes, and the sessions that share it."""

from __future__ import annotations

import errno
import mmap
import os
import platform
import resource
import struct
import threading
from collections.abc import Collection, Container, Mapping
from contextlib import suppress
from pathlib import Path

from trainobs.core.abi import SLOTS, FileClass
from trainobs.core.coverage import BLOCK
from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.probes import prototypes
from trainobs.probes.block_requests import overdue
from trainobs.probes.compiling import OBJECTS
from trainobs.probes.file_counts import ENTRIES
from trainobs.probes.filtered import need_bpf_to_return
from trainobs.probes.functions import refuses_functions
from trainobs.probes.io_limits import has_read_limit
from trainobs.probes.kernel_names import KERNEL_BTF, KernelNames
from trainobs.probes.kernel_version import kernel_version, may_lose_cpu
from trainobs.probes.libbpf import open_library
from trainobs.probes.loader import LibbpfLoader
from trainobs.probes.map_entries import mapping
from trainobs.probes.obstacles import obstacles
from trainobs.probes.programs import (
    ITERATORS,
    LIMIT,
    PROBES,
    TREE,
    ProgramVariant,
    choose,
    left_alone,
    programs_of,
    variant_after,
)
from trainobs.probes.session_maps import SessionMaps, remove
from trainobs.probes.statistics import ProbeStatistics
from trainobs.probes.syscall_table import syscall_table
from trainobs.probes.time_namespace import clock_ahead_ns, kernel_now_ns

KFUNC = "bpf_rdonly_cast"
"""What all objects but one call, as READ in bpf/reading.h says. Linux 6.2"""

_SPARE_DESCRIPTORS = 24
"""Beside one for each program and one for its link: maps, and what libbpf has open as it loads."""

_SETTINGS = struct.Struct("IIII32xq")  # struct tobs_settings, without what tobs_adopt writes
_SET = struct.Struct("IIII")  # open, guarded, class_epoch, infer_data
_AHEAD = struct.Struct("q")  # clock_ahead_ns
_CONTROL = struct.Struct("IIIIIIIII")  # struct tobs_control
_HIDDEN, _LIMITED = 1, 2  # tobs_control::limits_hidden
_FOUND = struct.Struct("I")
_FOUND_OFFSET = 24


class SharedProbes:
    """Loads and attaches the probes on construction; `stop` takes them out again.

    Sessions are told apart by their slot. May be used by several threads.

    Args:
        probes: names of probes.
        required: whether each of them must work.
        counts_files: whether each file is counted; then there may be one session only.

    Attributes:
        status: program name -> "on", or why it is off.

    Raises:
        ProbeError: the probes cannot run, or one of them that `required` names.
    """

    def __init__(
        self,
        probes: Collection[str] = tuple(PROBES),
        *,
        required: bool = False,
        counts_files: bool = False,
    ) -> None:
        self._counts_files = counts_files
        names = kernel_names()
        self._loader = LibbpfLoader(object_files(names, counts_files=counts_files))
        self._programs = programs_of(probes)
        self._lock = threading.Lock()
        self._slots = 0
        self._begun_ns = [0] * SLOTS
        self._limits_hidden = 0
        try:
            self._start(names, required)
        except OSError as error:  # too few descriptors, or too little memory to map
            self._loader.close()
            raise unable(error) from error
        except BaseException:
            self._loader.close()
            raise

    def _start(self, names: KernelNames, required: bool) -> None:
        variants, off = choose(self._programs, names)
        copies = 2 if may_lose_cpu() else 1
        _need_descriptors(copies * sum(len(variant.attach_points) for variant in variants.values()))
        self._need(off, required, ProbeCause.NO_TRACEPOINT)
        self._loader.load(
            variants,
            machine_facts(counts_files=self._counts_files),
            lambda name, refused: variant_after(self._programs[name], refused, names),
            ENTRIES if self._counts_files else None,
        )
        off |= self._loader.refused
        self._need(off, required)
        off |= left_alone(variants.keys() - off.keys(), off)
        self._settings = self._mapping("settings", SLOTS * _SETTINGS.size)
        self._control = self._mapping("control", _CONTROL.size)
        for name in reversed(self._programs):  # ends first: what begins meanwhile is seen to end
            if name not in off:
                self._attach(name, off)
        self._need(off, required)
        alone = left_alone(variants.keys() - off.keys(), off)
        for name in alone:
            self._loader.detach(name)
        off |= alone
        self.status = {name: off.get(name, "on") for name in self._programs}
        if self.status.get(LIMIT) == "on" and not self._loader.attach_points(LIMIT):
            self._limits_hidden = _HIDDEN
        self._statistics = ProbeStatistics(self.program_fds())

    def _attach(self, name: str, off: dict[str, str]) -> None:
        """Some kernels take a program and cannot attach it: arm64 has no fentry before v6.4."""
        try:
            self._loader.attach(name)
        except ProbeError as error:
            if ProgramVariant() in self._programs[name].variants:
                self._loader.do_without(name)
                return
            off[name] = f"{error.failed}: {error.found}"

    def _need(
        self, off: Mapping[str, str], required: bool, cause: ProbeCause = ProbeCause.REFUSED
    ) -> None:
        """See that nothing is off that must run."""
        needed = self._programs if required else {program.name: program for program in TREE}
        for name in (name for name in needed if name in off):
            raise ProbeError(
                cause,
                f"cannot load {name}, which gives {needed[name].gives}",
                "; ".join([f"{off[name]} (Linux {platform.release()})", *obstacles()]),
                'use probes="auto", which does without it, or see `trainobs doctor`'
                if required
                else "run `trainobs doctor`; without probes the run is observed through /proc",
            )

    def _mapping(self, name: str, size: int) -> mmap.mmap:
        return mapping(self._loader.map_fd(name), size, writable=True)

    def open(self, slot: int, *, guarded: bool = False) -> SessionMaps:
        """Begin a session in a free slot.

        Args:
            slot: the slot.
            guarded: follow only what the session's client might look into.

        Returns:
            Its maps, whose descriptors the caller closes.

        Raises:
            OSError: the kernel has no memory or no descriptor for them.
        """
        maps = SessionMaps()
        try:
            maps.install(slot, self._loader.map_fd)
        except BaseException:
            maps.close()
            with suppress(OSError):  # of those that did not get there
                remove(slot, self._loader.map_fd)
            raise
        with self._lock:
            self._slots = max(self._slots, slot + 1)
            self._begun_ns[slot] = kernel_now_ns()
            at = slot * _SETTINGS.size
            self._settings[at : at + _SETTINGS.size] = _SETTINGS.pack(1, guarded, 0, 0, 0)
            self._call(None, slot)
        return maps

    def close(self, slot: int) -> None:
        """End a session: follow nothing for it any more, and forget what it counted.

        The maps live on where they are still mapped.
        """
        with self._lock:
            _, guarded, *_ = self._settings_of(slot)
            self._set(slot, 0, guarded, 0, 0)  # what may not be looked into is let go of still
            # A task that was being born can slip through once, as its parent is let go of.
            while self._call("tobs_release", slot):
                pass
        remove(slot, self._loader.map_fd)

    def adopt(
        self, slot: int, tgid: int, tid: int, client: int = 0, ahead_ns: int | None = None
    ) -> bool:
        """Follow a process for a session, and what it has started; False if it is not there.

        Args:
            slot: of the session.
            tgid: the process, as this process sees it.
            tid: its training thread, as it sees itself.
            client: descriptor of the client's connection, where the session is guarded.
            ahead_ns: `clock_ahead_ns` of the process; None: this process may look.
        """
        if ahead_ns is None:
            ahead_ns = clock_ahead_ns(tgid)
        with self._lock:
            at = slot * _SETTINGS.size + _SETTINGS.size - _AHEAD.size
            _AHEAD.pack_into(self._settings, at, ahead_ns)
            if self._limits_hidden and has_read_limit(tgid):
                self._limits_hidden = _LIMITED
            return bool(self._call("tobs_adopt", slot, tgid=tgid, tid=tid, client=client))

    def leave(self, slot: int, tgid: int, tid: int) -> bool:
        """Stop following one thread of a process; False if it is not followed."""
        with self._lock:
            return bool(self._call("tobs_leave", slot, tgid=tgid, tid=tid))

    def add_root(self, slot: int, descriptor: int, file_class: FileClass) -> None:
        """Give a class to everything below the directory, or to the file, that is open here."""
        with self._lock:
            self._call("tobs_root", slot, root_fd=descriptor, root_class=file_class)
            # Not before: a class that is decided meanwhile may know nothing of the root.
            is_open, guarded, epoch, infer = self._settings_of(slot)
            self._set(slot, is_open, guarded, epoch + 1, infer)

    def infer_data(self, slot: int, on: bool) -> None:
        """Whether what workers read from regular files of no known class counts as data."""
        with self._lock:
            is_open, guarded, epoch, _ = self._settings_of(slot)
            self._set(slot, is_open, guarded, epoch, on)

    def program_fds(self) -> dict[str, int]:
        """Descriptors of the programs that run on events."""
        return {
            program: self._loader.program_fd(program)
            for name, points in self.attach_points().items()
            if name not in ITERATORS
            for program, _ in points
        }

    def missed_runs(self) -> int:
        """Runs of the programs that the kernel left out, for whatever session."""
        return self._statistics.missed_runs()

    def overdue_requests(self, slot: int) -> int:
        """Block requests of a session that should have ended; 0 where nobody tells (any more)."""
        if not self._loader.is_loaded or any(self.status.get(name) != "on" for name in BLOCK):
            return 0
        requests = self._loader.map_fd("requests")
        with suppress(OSError):
            return overdue(requests, slot, self._begun_ns[slot], kernel_now_ns())
        return 0

    def maps(self, names: Collection[str]) -> dict[str, int]:
        """Descriptors of some maps that all sessions share."""
        return {name: self._loader.map_fd(name) for name in names}

    def attach_points(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """Of each part that runs: its programs, and where each of them is attached."""
        return {
            name: self._loader.attach_points(name)
            for name, state in self.status.items()
            if state == "on"
        }

    def stop(self) -> None:
        """Take the probes out of the kernel. May be called twice; what is mapped stays."""
        self._statistics.stop()
        self._loader.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's probes."""
        self._loader.abandon()

    def _set(self, slot: int, is_open: int, guarded: int, epoch: int, infer: int) -> None:
        at = slot * _SETTINGS.size
        self._settings[at : at + _SET.size] = _SET.pack(is_open, guarded, epoch, infer)

    def _settings_of(self, slot: int) -> tuple[int, ...]:
        return _SET.unpack_from(self._settings, slot * _SETTINGS.size)

    def _call(
        self,
        program: str | None,
        slot: int,
        *,
        tgid: int = 0,
        tid: int = 0,
        root_fd: int = 0,
        root_class: int = 0,
        client: int = 0,
    ) -> int:
        """Run an iterator program with its arguments; what it has found."""
        self._control[: _CONTROL.size] = _CONTROL.pack(
            self._slots, slot, tgid, tid, root_fd, root_class, 0, client, self._limits_hidden
        )
        if program:
            self._loader.run_iterator(program)
        return int(_FOUND.unpack_from(self._control, _FOUND_OFFSET)[0])


def _need_descriptors(programs: int) -> None:
    """Say so beforehand: the kernel and libbpf have many words for a lack of descriptors."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = 2 * programs + _SPARE_DESCRIPTORS
    try:
        taken = len(os.listdir("/proc/self/fd"))
    except FileNotFoundError:  # no /proc
        return
    if soft != resource.RLIM_INFINITY and soft - taken < needed:
        raise OSError(errno.EMFILE, f"the probes need {needed} descriptors, and {soft} are allowed")


def unable(error: OSError) -> ProbeError:
    """The kernel side lacks what any program may lack."""
    return ProbeError(
        ProbeCause.REFUSED,
        "cannot load the probes",
        str(error),
        "see that the limits of the process (`ulimit -a`) leave it descriptors and memory",
    )


def kernel_names() -> KernelNames:
    """Names in the type information of the running kernel.

    Raises:
        ProbeError: NO_BTF; REFUSED where the process has no descriptor or memory to read it;
            NO_PERMISSION where to ask the kernel for more would end this process.
    """
    try:
        names = KernelNames(KERNEL_BTF)
    except (FileNotFoundError, PermissionError, ValueError) as error:
        do = "use a kernel built with CONFIG_DEBUG_INFO_BTF, as distributions do since 2021"
        if not KERNEL_BTF.parents[1].exists():
            do = "mount /sys where the training runs"
        raise ProbeError(ProbeCause.NO_BTF, "cannot relocate the probes", str(error), do) from error
    except OSError as error:
        raise unable(error) from error
    need_bpf_to_return()
    names.functions = not refuses_functions()
    if kernel_version() > prototypes.KNOWN:
        names.strange = prototypes.strange_points(open_library())
    return names


def object_files(
    names: Container[str], version: tuple[int, int] | None = None, *, counts_files: bool = False
) -> list[Path]:
    """Objects for this machine and a kernel, the best one first.

    Args:
        names: in the type information of the kernel.
        version: of it; by default of the running one.
        counts_files: whether they count files and peers.
    """
    kinds = [""] if KFUNC in names else []
    if KFUNC in names and may_lose_cpu(version):
        kinds.insert(0, ".preemptible")
    stem = f"trainobs.{platform.machine()}"
    end = ".files.bpf.o" if counts_files else ".bpf.o"
    return [OBJECTS / f"{stem}{kind}{end}" for kind in (*kinds, ".nokfunc")]


def machine_facts(*, counts_files: bool = False) -> bytes:
    """`struct tobs_machine`."""
    page_shift = mmap.PAGESIZE.bit_length() - 1
    return syscall_table(counts_files=counts_files) + struct.pack("I", page_shift)
