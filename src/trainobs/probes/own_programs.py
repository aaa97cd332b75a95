"""Programs of the user's beside ours: compiled, linked, loaded, attached; and what they count."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.core.abi import OWN_CELL, OWN_COUNTERS, RING, Role
from trainobs.core.errors import ProbeCause, ProbeError, what_to_do
from trainobs.core.log import logger
from trainobs.core.own_counter import OWN_ROLES, OwnCounter, of_role
from trainobs.probes.bcc_probe import BccProbe
from trainobs.probes.bcc_program import BccProgram
from trainobs.probes.compiling import OBJECTS, compile_source
from trainobs.probes.counter_declarations import OwnSum, checked_counters, declared_counters
from trainobs.probes.extra import ExtraObject
from trainobs.probes.kernel_version import may_lose_cpu
from trainobs.probes.map_entries import mapping
from trainobs.probes.own_object import OwnObject
from trainobs.probes.own_probe import KINDS, Probe
from trainobs.probes.trial import try_object

SHARED_MAPS = ("tasks", "session_clocks")
"""Maps of bpf/tasks.h that they are given: who is followed, and in which step."""

_FIELDS = OWN_CELL.names or ()
_SHAPE = (OWN_COUNTERS, len(Role), len(_FIELDS))
_WORDS = int(np.prod(_SHAPE))
_TABLE_BYTES = RING * _WORDS * 8

_TWICE = "TRAINOBS_PREEMPTIBLE"
"""Has programs of BPF_PROG keep the CPU and be followed by a second one: bpf/own_preemption.h."""

OwnProbe = Probe | BccProbe

Words = npt.NDArray[np.uint64]
Columns = dict[str, npt.NDArray[np.float64]]

FileOf = Callable[[str], str]
"""File or name of a library, as a program says it -> the file to attach to; raises ProbeError."""


class OwnTables(NamedTuple):
    """What some programs count for one session.

    Attributes:
        tables: rows of each that runs, shape (RING, n): they only grow.
        columns: what was counted in some steps, see `OwnPrograms.columns`.
    """

    tables: list[Words]
    columns: Callable[[Sequence[Words], int], Columns]


class OwnPrograms:
    """Those of some sessions, each in a slot of the same probes; a run has one of them.

    One that is refused is told of, and leaves the others and the training go.

    Args:
        slots: how many sessions there are; a `BccProbe` counts for the first alone.
        file_of: finds the files to attach to; None: libbpf does.

    Attributes:
        status: program, by the name of its file -> "on", or why it is off.
        counters: what they count, as far as it is known.
    """

    def __init__(self, slots: int = 1, file_of: FileOf | None = None) -> None:
        self.status: dict[str, str] = {}
        self.counters: list[OwnCounter] = []
        self._slots = slots
        self._file_of = file_of
        self._tables: list[Words] = []
        self._told: list[list[OwnSum]] = []
        self._unnamed: set[str] = set()
        self._objects: list[OwnObject | BccProgram] = []

    def of(self, slot: int) -> OwnTables | None:
        """What they count for a session; None if it is not known what that would be."""
        tables = [table[slot] for table in self._tables]
        return OwnTables(tables, self.columns) if self.counters else None

    def load(self, probes: Sequence[OwnProbe], maps: Mapping[str, int]) -> None:
        """Load them, beside the programs whose maps these are (`SHARED_MAPS`)."""
        for probe in probes:
            name = self._name_for(probe)
            self.status[name] = "on"
            try:
                self._load(probe, name, maps)
            except ProbeError as error:
                self._refuse(name, error.found, error.do, error.failed)
            except Exception as error:  # nothing of the user's ends the training
                found = f"{type(error).__name__}: {error}"
                self._refuse(name, found, what_to_do(error))

    def adopted(self) -> None:
        """The probes follow this process and its children from now on."""
        for one in self._objects:
            if isinstance(one, BccProgram):
                one.adopted()

    def refuse(self, probes: Sequence[OwnProbe], found: str, do: str) -> None:
        """Load none of them."""
        for probe in probes:
            self._refuse(self._name_for(probe), found, do)

    def columns(self, grown: Sequence[Words], count: int) -> Columns:
        """What was counted in some steps, by metric; NaN of a program that does not run.

        Args:
            grown: growth of each table in each step, each of shape (count, n).
            count: number of the steps.
        """
        names = [one.name for one in self.counters]
        names += [of_role(name, role) for name in names for role in OWN_ROLES]
        columns = {name: np.full(count, np.nan) for name in names}
        for told, table in zip(self._told, grown, strict=True):
            cells = table.reshape(count, *_SHAPE).astype(np.float64)
            self._tell_unnamed(told, cells)
            for number, field, counter in told:
                by_role = cells[:, number, :, _FIELDS.index(field)]
                columns[counter.name] = by_role[:, list(OWN_ROLES)].sum(axis=1)
                columns |= {of_role(counter.name, role): by_role[:, role] for role in OWN_ROLES}
        return columns

    def program_fds(self) -> dict[str, int]:
        """Descriptors of all programs, as far as they are in this process, by unique names."""
        return {
            f"{number}:{name}": fd
            for number, one in enumerate(self._objects)
            for name, fd in one.program_fds().items()
        }

    def close(self) -> None:
        """Take them out of the kernel; what they counted stays readable. May be called twice."""
        while self._objects:
            self._objects.pop().close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's."""
        while self._objects:
            self._objects.pop().abandon()

    def _name_for(self, probe: OwnProbe) -> str:
        name, number = probe.label, 2
        while name in self.status:
            name, number = f"{probe.label} ({number})", number + 1
        return name

    def _load(self, probe: OwnProbe, name: str, maps: Mapping[str, int]) -> None:
        if isinstance(probe, BccProbe):
            told = checked_counters(probe.told(), name)
            self._take(told, name)
            bcc = BccProgram(probe, maps, _TABLE_BYTES)
            self._keep(told, bcc, _table(bcc.map_fd("own_rows"), 1))
            return
        with tempfile.TemporaryDirectory(prefix="trainobs-") as place:
            paths = _objects_of(probe, Path(place))
            told = declared_counters(paths[0], name)
            if not probe.is_source:
                try_object([*paths, _support()], name)
            self._take(told, name)
            first = self._first_taken(paths, maps, name)
        found = OwnObject(first, maps)
        try:
            for program, section in first.programs.items():
                named = section if self._file_of else ""  # libbpf knows the section by itself
                attach(first, program, probe.attach.get(program, named), self._file_of or str)
            _refuse_others(probe, first, name)
            found.attach_seconds()
            self._keep(told, found, _table(first.map_fd("own_rows"), self._slots))
        except BaseException:
            found.close()
            raise

    def _first_taken(
        self, paths: Sequence[Path], maps: Mapping[str, int], name: str
    ) -> ExtraObject:
        """The first object of some that the kernel takes."""
        entries = {"own_rows": self._slots}
        *others, last = ([path, _support()] for path in paths)
        for parts in others:
            with suppress(ProbeError):
                return ExtraObject(parts, maps, name, entries=entries)
        return ExtraObject(last, maps, name, entries=entries)

    def _keep(self, told: list[OwnSum], found: OwnObject | BccProgram, table: Words) -> None:
        self._tables.append(table)
        self._objects.append(found)
        self._told.append(told)

    def _take(self, told: Sequence[OwnSum], name: str) -> None:
        taken = {counter.name: counter for counter in self.counters}
        for one in told:
            if other := taken.get(one.counter.name):
                raise ProbeError(
                    ProbeCause.REFUSED,
                    f"cannot use {name}",
                    f"{other.probe} has a counter {one.counter.title!r}, too",
                    "give each counter a name of its own",
                )
        self.counters += [one.counter for one in told]

    def _tell_unnamed(self, told: Sequence[OwnSum], cells: npt.NDArray[np.float64]) -> None:
        """Of each program once: what it adds to a sum without a name is in no column."""
        probe, named = told[0].counter.probe, {(one.number, one.field) for one in told}
        added = np.argwhere(cells.any(axis=(0, 2))).tolist()
        unnamed = [f"{_FIELDS[f]} of counter {n}" for n, f in added if (n, _FIELDS[f]) not in named]
        if unnamed and probe not in self._unnamed:
            self._unnamed.add(probe)
            logger.warning(
                "%s adds to counters that it does not name; this is in no column\n  found: %s\n"
                "  do:    name each: a count by TRAINOBS_COUNTER, a value by TRAINOBS_VALUE",
                probe,
                ", ".join(unnamed),
            )

    def _refuse(self, name: str, found: str, do: str, failed: str = "") -> None:
        failed = failed or f"cannot use {name}"
        self.status[name] = f"{failed}: {found}"
        logger.warning(
            "%s; it counts nothing, and the training goes on\n  found: %s\n  do:    %s",
            failed,
            found,
            do,
        )


def attach(found: ExtraObject, program: str, place: str, file_of: FileOf) -> None:
    """Attach a program to a place as `Probe` has it; else to what its section says."""
    kind, _, target = place.partition("/")
    if kind not in KINDS or ":" not in target:
        found.attach(program)
    elif kind == "usdt":
        path, provider, name = target.rsplit(":", 2)
        with _told_as(path, file := file_of(path)):
            found.attach_usdt(program, file, provider, name)
    else:
        path, _, inside = target.rpartition(":")
        symbol, _, offset = inside.partition("+")
        at, returns = int(offset or "0", 0), kind == "uretprobe"
        with _told_as(path, file := file_of(path)):
            found.attach_uprobe(program, file, at, symbol=symbol, returns=returns)


@contextmanager
def _told_as(written: str, file: str) -> Iterator[None]:
    """In errors a file has the name that the program has for it: the other is one of /proc."""
    try:
        yield
    except ProbeError as error:
        texts = (text.replace(file, written) for text in (error.failed, error.found, error.do))
        raise ProbeError(error.cause, *texts) from error


def _objects_of(probe: Probe, place: Path) -> list[Path]:
    """Its programs, as the kernel may take them: the best first."""
    if not probe.is_source:
        return [probe.file]
    paths = []
    if may_lose_cpu():
        with suppress(ProbeError):  # also a name of the user's that is in the way
            paths.append(compile_source(probe.file, place / "twice.bpf.o", defines=(_TWICE,)))
    return [*paths, compile_source(probe.file, place / "once.bpf.o")]


def _refuse_others(probe: Probe, found: ExtraObject, name: str) -> None:
    """Refuse an object without a program, which would count 0, and places for others."""
    do = "give the names of functions that have a SEC()"
    if unknown := probe.attach.keys() - found.programs.keys():
        what = f"`attach` names {min(unknown)}; its programs are {', '.join(found.programs)}"
    elif not found.programs:
        what, do = "no function in it has a SEC()", 'write SEC("...") before those that are to run'
    else:
        return
    raise ProbeError(ProbeCause.REFUSED, f"cannot use {name}", what, do)


def _table(descriptor: int, slots: int) -> Words:
    mapped = mapping(descriptor, slots * _TABLE_BYTES)
    words = np.frombuffer(mapped, np.uint64, slots * RING * _WORDS)
    return words.reshape(slots, RING, _WORDS)


def _support() -> Path:
    return OBJECTS / f"support.{platform.machine()}.bpf.o"
