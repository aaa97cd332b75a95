"""The kernel side of one run: probes attached, rows mapped, the process registered."""

from __future__ import annotations

import errno
import mmap
import os
import platform
import resource
import struct
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.core.kernel import BATCH, BATCHES, BUCKETS, CELL, CELLS_SHAPE, RING, FileClass
from trainobs.probes.loader import LibbpfLoader, Loader
from trainobs.probes.mounts import mount_points, mounts_below
from trainobs.probes.programs import ITERATORS, PROBES, TREE, programs_of
from trainobs.probes.syscall_table import syscall_table

OBJECT = Path(__file__).parent / "objects" / f"trainobs.{platform.machine()}.bpf.o"
KERNEL_BTF = Path("/sys/kernel/btf/vmlinux")

KEPT_ROOTS = 256
"""Roots whose descriptors stay open."""

Words = npt.NDArray[np.uint64]

_LOSSES = np.dtype([("tasks", "<u8"), ("requests", "<u8"), ("classes", "<u8")])


class KernelSide:
    """Loads and attaches the probes on construction; `stop` takes them out again.

    Attributes:
        clock: the step word, writable, as a memoryview of unsigned 64-bit words.
        rows: step rows as the kernel counts them, shape (RING, op, class, role); they only grow.
        latency: block-read latency of each step of the ring, shape (RING, BUCKETS).
        batches: ring of the batches that loaders made, shape (BATCHES,) of `BATCH`.
        histograms: latency since load, shape (op, class, role, BUCKETS).
        status: program name -> "on", or why it is off.

    Raises:
        ProbeError: the kernel side cannot run, or lacks a probe that `required` names.
    """

    def __init__(self, probes: Collection[str] = tuple(PROBES), *, required: bool = False) -> None:
        self._loader: Loader = LibbpfLoader(OBJECT)
        if not KERNEL_BTF.exists():
            raise ProbeError(
                ProbeCause.NO_BTF,
                "cannot relocate the probes",
                f"{KERNEL_BTF} does not exist",
                "use a kernel built with CONFIG_DEBUG_INFO_BTF, as distributions do since 2021",
            )
        self._programs = programs_of(probes)
        self._kept: list[int] = []
        try:
            self._start(required)
        except OSError as error:  # too few descriptors, or too little memory to map
            self._loader.close()
            raise _unable(error) from error
        except BaseException:
            self._loader.close()
            raise

    def _start(self, required: bool) -> None:
        spares = {name: program.spare for name, program in self._programs.items()}
        self._loader.load(spares, syscall_table())
        refused = self._loader.refused
        needed = self._programs if required else {program.name for program in TREE}
        for name in refused.keys() & set(needed):
            raise _refusal(name, refused[name], self._programs[name].tracepoint)
        self._map_all()
        for name in self._programs.keys() - refused.keys():
            self._loader.attach(name)
        self.status = {name: refused.get(name, "on") for name in self._programs}

    def _map_all(self) -> None:
        self.clock = memoryview(self._mapping("step_clock", 64, writable=True)).cast("Q")
        self._control = self._mapping("control", 16, writable=True)
        words = np.dtype("<u8")
        self.rows: npt.NDArray[np.void] = self._array("step_rows", CELL, (RING, *CELLS_SHAPE))
        self.latency: Words = self._array("step_latency", words, (RING, BUCKETS))
        self.batches: npt.NDArray[np.void] = self._array("batches", BATCH, (BATCHES,))
        self.histograms: Words = self._array("histograms", words, (*CELLS_SHAPE, BUCKETS))
        self._losses: npt.NDArray[np.void] = self._array("losses", _LOSSES, (1,))

    def _mapping(self, name: str, size: int, *, writable: bool = False) -> mmap.mmap:
        pages = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        return mmap.mmap(self._loader.map_fd(name), pages, mmap.MAP_SHARED, access)

    def _array(self, name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        count = int(np.prod(shape))
        mapping = self._mapping(name, count * dtype.itemsize)
        return np.frombuffer(mapping, dtype, count).reshape(shape)

    def adopt(self) -> None:
        """Follow the calling process: this thread as the training thread, and all it started."""
        self._loader.run_iterator("tobs_adopt")

    def leave(self) -> None:
        """Stop following the calling thread."""
        self._loader.run_iterator("tobs_leave")

    def add_root(self, path: Path, file_class: FileClass) -> None:
        """Give a class to everything below a directory, or to one file; the nearest root decides.

        Raises:
            OSError: the path cannot be opened, or the kernel side has no room for it.
        """
        self.add_roots([path], file_class)

    def add_roots(self, paths: Iterable[Path], file_class: FileClass) -> None:
        """Do what `add_root` does for many paths, at less cost; one that fails stops no other.

        Raises:
            OSError: the first fault met, which names its path.
        """
        points = mount_points()
        faults: list[OSError] = []
        for path in paths:
            try:
                self._add_tree(path, points, file_class)
            except OSError as error:
                faults.append(error)
        if faults:
            raise faults[0]

    def _add_tree(self, path: Path, points: Sequence[str], file_class: FileClass) -> None:
        """A mount point below a root is a root of its own, since the walk up ends at a mount."""
        self._add_root(path, file_class, keep=os.path.realpath(path) not in points)
        for place in mounts_below(path, points):
            self._add_root(place, file_class, keep=False)

    def _add_root(self, path: Path, file_class: FileClass, *, keep: bool) -> None:
        """Tell the kernel of a root, and keep it open.

        A root is known by its inode number, and overlayfs gives another one to a directory that it
        forgot when memory was short. It forgets none that is open, and no mount point; one of those
        is not kept, since it could not be unmounted.
        """
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._register_root(descriptor, path, file_class)
            if keep and len(self._kept) < _keepable():
                self._kept.append(descriptor)
                descriptor = -1
        finally:
            if descriptor >= 0:
                os.close(descriptor)

    def _register_root(self, descriptor: int, path: Path, file_class: FileClass) -> None:
        before = self.losses()["classes"]
        _, _, epoch, infer = struct.unpack("IIII", self._control[:16])
        self._control[:16] = struct.pack("IIII", descriptor, file_class, epoch + 1, infer)
        self._loader.run_iterator("tobs_root")
        if self.losses()["classes"] != before:
            raise OSError(errno.ENOSPC, "the kernel side has no room for more roots", str(path))

    def _release_roots(self) -> None:
        while self._kept:
            os.close(self._kept.pop())

    def infer_data(self, on: bool) -> None:
        """Whether what workers read from regular files of no known class counts as data."""
        self._control[12:16] = struct.pack("I", on)

    def losses(self) -> dict[str, int]:
        """What the kernel side could not count, since load."""
        return {name: int(self._losses[name][0]) for name in _LOSSES.names or ()}

    def program_fds(self) -> dict[str, int]:
        """Descriptors of the programs that run on events."""
        return {
            name: self._loader.program_fd(name)
            for name, state in self.status.items()
            if state == "on" and name not in ITERATORS
        }

    def stop(self) -> None:
        """Take the probes out of the kernel; the arrays stay readable. May be called twice."""
        self._release_roots()
        self._loader.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's probes."""
        self._release_roots()
        self._loader.abandon()


def _keepable() -> int:
    """Roots to keep open: the training needs descriptors as well, and may have few."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return KEPT_ROOTS if soft == resource.RLIM_INFINITY else min(KEPT_ROOTS, soft // 8)


def _unable(error: OSError) -> ProbeError:
    return ProbeError(
        ProbeCause.REFUSED,
        "cannot load the probes",
        str(error),
        "see that the limits of the process (`ulimit -a`) leave it descriptors and memory",
    )


def _refusal(name: str, reason: str, tracepoint: str) -> ProbeError:
    missing = tracepoint in missing_tracepoints([tracepoint])
    return ProbeError(
        ProbeCause.NO_TRACEPOINT if missing else ProbeCause.REFUSED,
        f"cannot load {name} (tracepoint {tracepoint})",
        f"this kernel ({platform.release()}) has no such tracepoint" if missing else reason,
        'use probes="auto", which does without it, or see `trainobs doctor`',
    )


def missing_tracepoints(names: Iterable[str]) -> set[str]:
    """Tracepoints, of those named, that the running kernel's BTF does not describe."""
    types = KERNEL_BTF.read_bytes()
    return {
        name
        for name in names
        if name != "iter/task" and b"\0btf_trace_%b\0" % name.encode() not in types
    }
