"""The kernel side of this process, whose counts can be compared with what is true."""

from __future__ import annotations

import ctypes
import platform
import struct
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernel.ground_truth import drops, reclaimed_pages
from tests.kernel_state import bpf, programs_off_here
from trainobs.core.abi import RING, FileClass, Op, Phase, Role
from trainobs.core.catalogue import kernel_metrics
from trainobs.core.cells import StepCells
from trainobs.core.errors import ProbeError
from trainobs.core.metrics import evaluate
from trainobs.probes.backend import ProbeBackend
from trainobs.probes.local_backend import LocalBackend
from trainobs.probes.own_probe import Probe
from trainobs.probes.programs import PROBES
from trainobs.steps.clock import StepClock
from trainobs.steps.collector import Collector

# BPF_MAP_LOOKUP_ELEM, BPF_MAP_UPDATE_ELEM, BPF_MAP_GET_NEXT_KEY
MAP_LOOKUP, MAP_UPDATE, MAP_NEXT_KEY = 1, 2, 4

Result = TypeVar("Result")

_METRICS = {metric.name: metric for metric in kernel_metrics()}


def map_values(map_fd: int, key_bytes: int, value_bytes: int) -> Iterator[bytes]:
    """Values of a map while others change it; it may miss one, or show one twice."""
    key, value = ctypes.create_string_buffer(key_bytes), ctypes.create_string_buffer(value_bytes)
    previous = 0  # none: the first key
    while bpf(MAP_NEXT_KEY, _map_call(map_fd, previous, ctypes.addressof(key))) >= 0:
        previous = ctypes.addressof(key)
        if bpf(MAP_LOOKUP, _map_call(map_fd, previous, ctypes.addressof(value))) >= 0:
            yield value.raw


def map_update(map_fd: int, value: bytes) -> int:
    """Write the entry of key 0; negative where that is refused."""
    key, buffer = ctypes.create_string_buffer(4), ctypes.create_string_buffer(value, len(value))
    call = _map_call(map_fd, ctypes.addressof(key), ctypes.addressof(buffer))
    return bpf(MAP_UPDATE, call)


def _map_call(map_fd: int, key: int, value: int) -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(struct.pack("IIQQQ", map_fd, 0, key, value, 0))


class Counts:
    """What the kernel counted in one step; an op, class or role of None stands for all."""

    def __init__(self, cells: npt.NDArray[np.void]) -> None:
        self._cells = cells

    def count(self, op: Op, cls: FileClass | None = None, role: Role | None = None) -> int:
        return self._sum("count", op, cls, role)

    def bytes(self, op: Op, cls: FileClass | None = None, role: Role | None = None) -> int:
        return self._sum("bytes", op, cls, role)

    def ns(self, op: Op, cls: FileClass | None = None, role: Role | None = None) -> int:
        return self._sum("ns", op, cls, role)

    def wait_ns(self, op: Op, cls: FileClass | None = None, role: Role | None = None) -> int:
        return self._sum("wait_ns", op, cls, role)

    def metric(self, name: str) -> float:
        """A metric of the catalogue, for this step."""
        return float(evaluate(_METRICS[name], StepCells.from_rows(self._cells[None]))[0])

    def classes(self, op: Op) -> set[FileClass]:
        """Classes of which an op was counted."""
        return {cls for cls in FileClass if self.count(op, cls)}

    def roles(self, op: Op, cls: FileClass) -> set[Role]:
        """Roles of which an op on a class was counted."""
        return {role for role in Role if self.count(op, cls, role)}

    def __repr__(self) -> str:
        """Every cell that is not zero, for the message of a failed comparison."""
        lines = [
            f"{Op(op).name} {FileClass(cls).name} {Role(role).name} {self._cells[op, cls, role]}"
            for op, cls, role in np.argwhere(self._cells["count"])
        ]
        return "\n".join(lines)

    def _sum(self, field: str, op: Op, cls: FileClass | None, role: Role | None) -> int:
        classes = slice(None) if cls is None else slice(cls, cls + 1)
        roles = slice(None) if role is None else slice(role, role + 1)
        return int(self._cells[field][op, classes, roles].sum())


def refusal(probes: tuple[str, ...] = tuple(PROBES)) -> ProbeError:
    """Why the probes cannot be loaded."""
    with pytest.raises(ProbeError) as caught:
        LocalBackend(probes, required=True).stop()
    return caught.value


class ObservedKernel:
    """This process, observed by the kernel side, a clock and a collector, without a session."""

    def __init__(
        self,
        probes: Collection[str] = tuple(PROBES),
        *,
        required: bool = True,
        kernel: ProbeBackend | None = None,
        own: Sequence[Probe] = (),
    ) -> None:
        """`required`: what this kernel can run must run; `own`: programs beside ours."""
        may_lack = programs_off_here()
        self.kernel = kernel or LocalBackend(probes, required=required and not may_lack)
        off = {name: why for name, why in self.kernel.status.items() if why != "on"}
        if required and not off.keys() <= may_lack:
            self.kernel.stop()
            raise AssertionError(f"off, though Linux {platform.release()} can run them: {off}")
        if own:
            self.kernel.load_own(own)
        self.clock = StepClock(self.kernel.clock, on_close=self._on_close)
        counting = self.kernel.own_tables()
        self.collector = Collector(self.clock, self.kernel, own=counting)
        self.kernel.adopt()

    def data(self, *paths: Path) -> None:
        for path in paths:
            self.kernel.add_root(path, FileClass.DATA)

    def during(self, work: Callable[[], object], phase: Phase | None = None) -> Counts:
        """Do something in a step of its own; what the kernel counted meanwhile."""
        self.clock.begin_batch()
        if phase is not None:
            self.clock.enter(phase)
        work()
        if phase is not None:
            self.clock.leave()
        self.clock.end_step()
        self.clock.begin_batch()  # closes that step
        self.clock.end_step()
        return self.closed()[-1]

    def during_own(self, work: Callable[[], object]) -> dict[str, float]:
        """The same, of what programs of a user's count: metric -> value."""
        self.clock.begin_batch()
        work()
        self.clock.end_step()
        self.clock.begin_batch()
        self.clock.end_step()
        self.collector.collect(settle=False)
        steps = self.collector.table()
        assert steps is not None
        return {name: float(column[-1]) for name, column in steps.brought().items()}

    def undisturbed(self, attempt: Callable[[], Result], *paths: Path) -> Result:
        """Repeat what was disturbed.

        Somebody dropped the page cache, the kernel reclaimed pages of `paths`, or it kept the end
        of a block request from everybody: in a virtual machine whose own init process is hidden
        from tracing, an interrupt in that process is not traced, by ftrace neither.
        """
        for _ in range(8):
            before, begin_ns = (drops(), self.kernel.losses()), time.monotonic_ns()
            result = attempt()
            ended = not self.unfinished(begin_ns)  # one that does not end may be lost meanwhile
            same = before == (drops(), self.kernel.losses())
            if ended and same and not any(map(reclaimed_pages, paths)):
                return result
        raise AssertionError("disturbed each time")

    def unfinished(self, since_ns: int, patience_s: float = 0.5) -> bool:
        """Whether a block request since a moment does not end, as far as is told."""
        deadline = time.monotonic() + patience_s
        while any(began_ns >= since_ns for began_ns in self.requests_ns()):
            if time.monotonic() > deadline:
                return True
            time.sleep(0.01)
        return False

    @property
    def load_count(self) -> int:
        """How often the kernel was asked to take the programs."""
        assert isinstance(self.kernel, LocalBackend)
        return self.kernel._probes._loader.load_count

    def requests_ns(self) -> list[int]:
        """When the block requests began of which no end was told yet."""
        assert isinstance(self.kernel, LocalBackend), "who loads no probes sees no requests"
        requests = self.kernel._probes._loader.map_fd("requests")
        return [struct.unpack_from("Q", value)[0] for value in map_values(requests, 8, 24)]

    def closed(self) -> list[Counts]:
        """Counts of the steps that closed since the last call, the set-up too."""
        self.collector.collect(settle=False)
        table = self.collector.table()
        if table is None or table.cells is None:
            return []
        rows = table.cells.rows()
        asleep, ready = rows["wait_ns"][:, Op.OFFCPU], rows["ns"][:, Op.RUNQUEUE]
        assert (asleep + ready <= rows["ns"][:, Op.OFFCPU]).all(), "more than the time off the CPU"
        return [Counts(cells) for cells in rows]

    def stop(self) -> None:
        """Take the probes out, and let go of the maps, which hold descriptors."""
        self.clock.finish()
        self.kernel.stop()
        vars(self).clear()

    def _on_close(self) -> None:
        if len(self.clock.closed) >= RING * 3 // 4:  # as the session does
            self.collector.collect()
