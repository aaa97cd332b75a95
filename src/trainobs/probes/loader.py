"""The loader: brings programs of an object file into the kernel, by libbpf.

It knows nothing of steps, rows or classes; `shared` does.
"""

from __future__ import annotations

import ctypes as C
import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from trainobs.core.compiled import flaw_of
from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.core.files import close_all
from trainobs.core.now import now_s
from trainobs.probes.libbpf import (
    INTERRUPTED,
    INTERRUPTED_S,
    LET_GO,
    load_object,
    open_library,
    open_object,
    too_old,
)
from trainobs.probes.libbpf_log import captured_log
from trainobs.probes.obstacles import has_seccomp_filter, may_load, why_not_permitted
from trainobs.probes.programs import AGAIN, FIRST, ProgramVariant

_ENOTSUPP = 524  # include/linux/errno.h: not for user space, which has no words for it
_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_FAILED_PROGRAM = re.compile(r"prog '(\w+)': (.*)")
_VERIFIER_LOG = re.compile(r"prog '(\w+)': -- BEGIN PROG LOAD LOG --\n(.*)", re.DOTALL)
_TOLD_LINES = 3
# A kernel without CONFIG_BPF_JIT says so of each such program (seen on 6.8); the rest can be had.
_NOT_FROM_FUNCTIONS = "no memory to call it from a function, or a kernel without a JIT (ENOMEM)"
_TOO_MUCH = "more than the verifier can look through, as a loop of many turns is"
_VERIFIER_END = re.compile(r"(processed \d+ insns|-- END PROG LOAD LOG --|Verification failed:)")


class LibbpfLoader:
    """Loads with the system's libbpf: CO-RE relocation, maps and links are its work.

    Args:
        paths: objects with the same programs; a kernel that refuses one may take a later one.

    Attributes:
        refused: programs that were asked for and that this kernel does not take, with its reason.
        load_count: how often the kernel was asked, until it took what is left.

    Raises:
        ProbeError: NO_OBJECT, NO_LIBBPF.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        need_usable(paths, "the probes")
        self.refused: dict[str, str] = {}
        self.load_count = 0
        self._paths = list(paths)
        self._library = open_library()
        self._object: int | None = None
        self._attach_points: dict[str, tuple[tuple[str, str], ...]] = {}
        self._programs: dict[str, int] = {}
        self._maps: dict[str, int] = {}
        self._links: dict[str, list[int]] = {}

    def load(
        self,
        variants: Mapping[str, ProgramVariant],
        machine: bytes,
        instead: Callable[[str, ProgramVariant], ProgramVariant | None] = lambda *_: None,
        entries: Mapping[str, int] | None = None,
    ) -> None:
        """Load what the kernel takes; what it refuses, in every variant, goes to `refused`.

        libbpf loads all or nothing, so a refused program gives its place to the next one, or is
        left out, and the rest is tried again. A kernel that takes everything pays for no trial.

        Args:
            variants: program -> variant to have it by.
            machine: `struct tobs_machine`, which the programs read.
            instead: tells the next variant of a program of which one was refused.
            entries: map -> how many it is to have, where that is not what the object says.

        Raises:
            ProbeError: nothing can be loaded at all.
            OSError: the process has no descriptor or no memory for it.
        """
        left = dict(variants)
        paths = list(self._paths)
        end_s = now_s() + INTERRUPTED_S
        while True:
            wanted = {program for variant in left.values() for program in _programs(variant)}
            wanted |= {program + AGAIN for program in wanted}
            error, log = self._try_load(paths[0], wanted, machine, entries or {})
            if not error:
                break
            self._release()
            if error == errno.EAGAIN and now_s() < end_s:
                continue
            culprits = self._culprits(error, log, wanted, _of_functions(left))
            if len(paths) > 1:
                paths.pop(0)
                continue
            for name, variant in _with_any(left, culprits):
                del left[name]
                if other := instead(name, variant):
                    left[name] = other
                else:
                    self.refused[name] = next(
                        culprits[p] for p in _programs(variant) if p in culprits
                    )
        self._attach_points = {
            name: tuple(self._in_order(variant)) for name, variant in left.items()
        }

    def attach(self, name: str) -> None:
        """Let the programs of a part run; ends before beginnings.

        Raises:
            ProbeError: REFUSED, with the kernel's reason; then none of them runs.
            OSError: the process has no descriptor or no memory for it.
        """
        self._links[name] = []
        for program, point in self._attach_points[name]:
            with captured_log(self._library):
                link = self._library.bpf_program__attach(self._programs[program])
                error = C.get_errno()
            if not link:
                self.detach(name)
                if error in _RESOURCES:
                    raise OSError(error, f"cannot attach {program}: {os.strerror(error)}")
                raise ProbeError(
                    ProbeCause.REFUSED,
                    f"cannot attach {program} to {point}",
                    error_text(self._library, error),
                    "run: trainobs doctor",
                )
            self._links[name].append(link)

    def detach(self, name: str) -> None:
        """Take the programs of a part from where they are attached; nothing if they are not."""
        for link in self._links.pop(name, ()):
            self._library.bpf_link__destroy(link)

    def do_without(self, name: str) -> None:
        """A part of which nothing is attached is had without programs of its own."""
        self._attach_points[name] = ()

    def attach_points(self, name: str) -> tuple[tuple[str, str], ...]:
        """Programs that were loaded for a part, and where each of them is attached."""
        return self._attach_points[name]

    def run_iterator(self, name: str) -> None:
        """Run an attached iterator program once, in the calling thread's own context."""
        (link,) = self._links[name]
        descriptor = self._library.bpf_iter_create(self._library.bpf_link__fd(link))
        if descriptor < 0:
            raise OSError(-descriptor, f"cannot run {name}: {os.strerror(-descriptor)}")
        try:
            while os.read(descriptor, 4096):
                pass
        finally:
            os.close(descriptor)

    @property
    def is_loaded(self) -> bool:
        """Whether there is an object in the kernel."""
        return bool(self._maps)

    def map_fd(self, name: str) -> int:
        """Descriptor of a map of the loaded object."""
        return int(self._library.bpf_map__fd(self._maps[name]))

    def program_fd(self, name: str) -> int:
        """Descriptor of a loaded program."""
        return int(self._library.bpf_program__fd(self._programs[name]))

    def close(self) -> None:
        """Take everything out of the kernel again; may be called twice."""
        for name in list(self._links):
            self.detach(name)
        self._release()

    def abandon(self) -> None:
        """In a forked child: close what was inherited.

        Links hold programs alive as long as any process has them open, so a forked worker would
        keep the probes attached after the run. libbpf's own memory is left alone.
        """
        library = self._library
        links = [link for found in self._links.values() for link in found]
        descriptors = [library.bpf_link__fd(link) for link in links]
        descriptors += [library.bpf_program__fd(program) for program in self._programs.values()]
        descriptors += [library.bpf_map__fd(map_) for map_ in self._maps.values()]
        if self._object:
            descriptors.append(library.bpf_object__btf_fd(self._object))
        self._links, self._programs, self._maps, self._object = {}, {}, {}, None
        close_all(descriptor for descriptor in descriptors if descriptor >= 0)

    def _in_order(self, variant: ProgramVariant) -> Iterator[tuple[str, str]]:
        """Programs as they are attached, each before its second one, and their attach points."""
        for program, point in reversed(variant.attach_points):
            for each in (program, program + AGAIN):
                if each in self._programs:
                    yield each, point

    def _try_load(
        self, path: Path, wanted: set[str], machine: bytes, entries: Mapping[str, int]
    ) -> tuple[int, list[str]]:
        self.load_count += 1
        with captured_log(self._library) as log:
            self._open(path, wanted, machine)
            for name, count in entries.items():
                self._library.bpf_map__set_max_entries(self._maps[name], count)
            error = -load_object(self._library, self._object)
            for program in wanted if not error else ():
                if program + FIRST in self._maps:
                    calls, first = self.map_fd(program + FIRST), self.program_fd(program)
                    let_be_called(self._library, calls, first)
        return error, log

    def _open(self, path: Path, wanted: set[str], machine: bytes) -> None:
        library = self._library
        self._object = open_object(library, os.fsencode(path))
        if not self._object:
            raise ProbeError(
                ProbeCause.NO_OBJECT,
                f"cannot open {path}",
                error_text(library, C.get_errno()),
                "the file is damaged or of another machine: build the package again",
            )
        next_program, next_map = library.bpf_object__next_program, library.bpf_object__next_map
        self._programs = each_of(self._object, next_program, library.bpf_program__name)
        self._maps = each_of(self._object, next_map, library.bpf_map__name)
        for name, program in self._programs.items():
            library.bpf_program__set_autoload(program, name in wanted)
        size = C.c_size_t()
        read_only = next(m for name, m in self._maps.items() if name.endswith(".rodata"))
        address = library.bpf_map__initial_value(read_only, C.byref(size))
        C.memmove(address, machine, min(size.value, len(machine)))

    def _culprits(
        self, error: int, log: list[str], wanted: set[str], of_functions: set[str]
    ) -> dict[str, str]:
        """Programs that were refused -> the line of the log that tells most.

        Raises:
            ProbeError: it was no program that failed.
            OSError: the process has no descriptor or no memory for it.
        """
        found: dict[str, str] = {}
        for text in log:
            if match := _VERIFIER_LOG.search(text):
                found[match[1]] = _telling(match[2]) or found.get(match[1], "")
            elif match := _FAILED_PROGRAM.search(text):
                found.setdefault(match[1], match[2])
        culprits = {program: reason for program, reason in found.items() if program in wanted}
        if error == errno.ENOMEM and culprits and culprits.keys() <= of_functions:
            return dict.fromkeys(culprits, _NOT_FROM_FUNCTIONS)
        if error == errno.EAGAIN:
            raise ProbeError(ProbeCause.REFUSED, "cannot load the probes", INTERRUPTED, LET_GO)
        if error in _RESOURCES:
            raise OSError(error, f"cannot load the probes: {os.strerror(error)}")
        # The verifier says EACCES of a program that reaches where it may not, and some machines say
        # EPERM to every fentry: such an error names a program, and the process lacks nothing.
        if error in (errno.EPERM, errno.EACCES) and not (culprits and may_load()):
            raise why_not_permitted(error)
        if error == errno.ENOSYS and has_seccomp_filter():
            raise why_not_permitted(error)
        if not culprits:
            reason = next((line for line in log if "Error" in line or "failed" in line), "")
            raise too_old(self._library) or ProbeError(
                ProbeCause.REFUSED,
                "cannot load the probes",
                f"{error_text(self._library, error)} ({reason or 'no further word from libbpf'})",
                "run `trainobs doctor`; without probes the run is observed through /proc",
            )
        return culprits

    def _release(self) -> None:
        if self._object:
            self._library.bpf_object__close(self._object)
        self._object, self._programs, self._maps = None, {}, {}


def need_usable(paths: Iterable[Path], name: str) -> None:
    """Refuse objects of this package that are not there, cut off or stale.

    Args:
        paths: the objects.
        name: what errors call what they are for.

    Raises:
        ProbeError: NO_OBJECT.
    """
    for path in paths:
        if flaw := flaw_of(path, "bpf"):
            raise ProbeError(
                ProbeCause.NO_OBJECT,
                f"cannot load {name}",
                f"{path} {flaw}",
                "build the package again, with clang or the ziglang wheel: make bpf",
            )


def each_of(
    whole: int, advance: C._NamedFuncPointer, name_of: C._NamedFuncPointer
) -> dict[str, int]:
    """Programs, or maps, of an open object: name -> handle."""
    found: dict[str, int] = {}
    item = advance(whole, None)
    while item:
        found[name_of(item).decode()] = item
        item = advance(whole, item)
    return found


def let_be_called(library: C.CDLL, calls: int, program: int) -> None:
    """Let a program be called by those that have the map `calls`; both are descriptors.

    Raises:
        OSError: the kernel does not take it.
    """
    key, value = C.c_uint32(0), C.c_uint32(program)
    if library.bpf_map_update_elem(calls, C.addressof(key), C.addressof(value), 0):
        error = C.get_errno()
        raise OSError(error, f"a program cannot be called: {os.strerror(error)}")


def error_text(library: C.CDLL, error: int) -> str:
    """Words for an error number; libbpf has some of its own, from 4000."""
    if error == _ENOTSUPP:
        return "this kernel cannot do that on this machine (ENOTSUPP)"
    buffer = C.create_string_buffer(256)
    library.libbpf_strerror(error, buffer, len(buffer))
    return buffer.value.decode(errors="replace")


def refusal(log: Sequence[str]) -> str:
    """What libbpf, or the verifier, says about an object that was refused: its telling lines."""
    for text in log:
        if match := _VERIFIER_LOG.search(text):
            if not _VERIFIER_END.search(match[2]):
                return f"{match[1]}: {_TOO_MUCH}"
            return f"{match[1]}: {' | '.join(_last_lines(match[2], _TOLD_LINES))}"
    return next((text.removeprefix("libbpf: ") for text in log), "")


def _of_functions(variants: Mapping[str, ProgramVariant]) -> set[str]:
    """Programs of some variants that functions of the kernel call, not tracepoints."""
    points = chain.from_iterable(variant.attach_points for variant in variants.values())
    return {program for program, point in points if point.startswith(("fentry/", "fexit/"))}


def _programs(variant: ProgramVariant) -> list[str]:
    return [program for program, _ in variant.attach_points]


def _with_any(
    variants: Mapping[str, ProgramVariant], culprits: Collection[str]
) -> list[tuple[str, ProgramVariant]]:
    """Those of some variants that use one of some programs."""
    return [
        (name, variant)
        for name, variant in variants.items()
        if not set(culprits).isdisjoint(_programs(variant))
    ]


def _telling(log: str) -> str:
    """What the verifier did not accept: the last line before its statistics, or its explanation."""
    return "".join(_last_lines(log, 1))


def _last_lines(log: str, count: int) -> list[str]:
    lines = [line.strip() for line in log.splitlines()]
    end = next((i for i, line in enumerate(lines) if _VERIFIER_END.match(line)), len(lines))
    return [line for line in lines[:end] if line][-count:]
