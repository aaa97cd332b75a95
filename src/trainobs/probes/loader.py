"""The seam at which another loader can stand, and the loader in use: libbpf.

A loader brings one object into the kernel and hands out descriptors. It knows nothing of steps,
rows or classes; `kernel_side` does.
"""

from __future__ import annotations

import ctypes as C
import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.probes.libbpf import captured_log, open_library


class Loader(Protocol):
    """Brings the object into the kernel and keeps it there until `close`."""

    refused: dict[str, str]
    """Programs that were asked for and that this kernel does not take, with its reason."""

    def load(self, programs: Mapping[str, str | None], constants: bytes) -> None:
        """Load programs of the object, with `constants` as its read-only data.

        A program that the kernel refuses gives its place, and its name, to its spare if it has one.
        """

    def attach(self, program: str) -> None:
        """Let a loaded program run."""

    def run_iterator(self, program: str) -> None:
        """Run an attached iterator program once, in the calling thread's own context."""

    def map_fd(self, name: str) -> int:
        """Descriptor of a map of the loaded object."""

    def program_fd(self, name: str) -> int:
        """Descriptor of a loaded program."""

    def close(self) -> None:
        """Take everything out of the kernel again; may be called twice."""

    def abandon(self) -> None:
        """In a forked child: close what was inherited, without touching the parent's."""


_FAILED_PROGRAM = re.compile(r"prog '(\w+)': (.*)")
_NO_TRACEPOINT = "failed to find kernel BTF type ID"
_NEED_CAPABILITIES = (
    "run as root, or give the process CAP_BPF and CAP_PERFMON: docs/privileges.md says how"
)


class LibbpfLoader:
    """Loads with the system's libbpf: CO-RE relocation, maps and links are its work."""

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise ProbeError(
                ProbeCause.NO_OBJECT,
                "cannot load the probes",
                f"{path} does not exist",
                "build the package again where clang or the ziglang wheel is installed: make bpf",
            )
        self.refused: dict[str, str] = {}
        self._path = path
        self._library = open_library()
        self._object: int | None = None
        self._programs: dict[str, int] = {}
        self._maps: dict[str, int] = {}
        self._links: dict[str, int] = {}

    def load(self, programs: Mapping[str, str | None], constants: bytes) -> None:
        """Load what the kernel takes; what it refuses, its spare too, goes to `refused`.

        libbpf loads all or nothing, so a refused program is switched off and the rest is tried
        again. A machine that takes everything pays for no trial.

        Raises:
            ProbeError: nothing can be loaded at all.
        """
        chosen = {name: name for name in programs}
        while True:
            error, log = self._try_load(set(chosen.values()), constants)
            if not error:
                break
            self._release()
            culprits = self._culprits(error, log, set(chosen.values()))
            for name in [name for name, choice in chosen.items() if choice in culprits]:
                spare, refused = programs[name], chosen.pop(name)
                if spare and refused != spare:
                    chosen[name] = spare
                else:
                    self.refused[name] = culprits[refused]
        self._programs = {name: self._programs[choice] for name, choice in chosen.items()}

    def attach(self, program: str) -> None:
        """Let a loaded program run.

        Raises:
            ProbeError: REFUSED, with the kernel's reason.
        """
        with captured_log(self._library):
            link = self._library.bpf_program__attach(self._programs[program])
            error = C.get_errno()
        if not link:
            reason = self._reason(error)
            raise ProbeError(
                ProbeCause.REFUSED, f"cannot attach {program}", reason, "run: trainobs doctor"
            )
        self._links[program] = link

    def run_iterator(self, program: str) -> None:
        """Run an attached iterator program once, in the calling thread's own context."""
        descriptor = self._library.bpf_iter_create(self._library.bpf_link__fd(self._links[program]))
        if descriptor < 0:
            raise OSError(-descriptor, f"cannot run {program}: {os.strerror(-descriptor)}")
        try:
            while os.read(descriptor, 4096):
                pass
        finally:
            os.close(descriptor)

    def map_fd(self, name: str) -> int:
        """Descriptor of a map of the loaded object."""
        return int(self._library.bpf_map__fd(self._maps[name]))

    def program_fd(self, name: str) -> int:
        """Descriptor of a loaded program."""
        return int(self._library.bpf_program__fd(self._programs[name]))

    def close(self) -> None:
        """Take everything out of the kernel again; may be called twice."""
        for link in self._links.values():
            self._library.bpf_link__destroy(link)
        self._links = {}
        self._release()

    def abandon(self) -> None:
        """In a forked child: close what was inherited.

        Links hold programs alive as long as any process has them open, so a forked worker would
        keep the probes attached after the run. libbpf's own memory is left alone.
        """
        library = self._library
        descriptors = [library.bpf_link__fd(link) for link in self._links.values()]
        descriptors += [library.bpf_program__fd(program) for program in self._programs.values()]
        descriptors += [library.bpf_map__fd(map_) for map_ in self._maps.values()]
        if self._object:
            descriptors.append(library.bpf_object__btf_fd(self._object))
        self._links, self._programs, self._maps, self._object = {}, {}, {}, None
        for descriptor in descriptors:
            if descriptor >= 0:
                os.close(descriptor)

    def _try_load(self, wanted: set[str], constants: bytes) -> tuple[int, list[str]]:
        with captured_log(self._library) as log:
            self._open(wanted, constants)
            error = -self._library.bpf_object__load(self._object)
        return error, log

    def _open(self, wanted: set[str], constants: bytes) -> None:
        library = self._library
        self._object = library.bpf_object__open_file(os.fsencode(self._path), None)
        if not self._object:
            raise ProbeError(
                ProbeCause.NO_OBJECT,
                f"cannot open {self._path}",
                self._reason(C.get_errno()),
                "the file is damaged or of another machine: build the package again",
            )
        self._programs = self._all(library.bpf_object__next_program, library.bpf_program__name)
        self._maps = self._all(library.bpf_object__next_map, library.bpf_map__name)
        for name, program in self._programs.items():
            library.bpf_program__set_autoload(program, name in wanted)
        size = C.c_size_t()
        read_only = next(m for name, m in self._maps.items() if name.endswith(".rodata"))
        address = library.bpf_map__initial_value(read_only, C.byref(size))
        C.memmove(address, constants, min(size.value, len(constants)))

    def _all(self, advance: C._NamedFuncPointer, name_of: C._NamedFuncPointer) -> dict[str, int]:
        found: dict[str, int] = {}
        item = advance(self._object, None)
        while item:
            found[name_of(item).decode()] = item
            item = advance(self._object, item)
        return found

    def _culprits(self, error: int, log: list[str], wanted: set[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for line in log:
            match = _FAILED_PROGRAM.search(line)
            if match and match[1] in wanted:
                found.setdefault(match[1], match[2])
        reason = next((line for line in log if "Error" in line or "failed" in line), "")
        # To look for a tracepoint among those of modules takes CAP_SYS_ADMIN, before libbpf 1.2.
        if any(_NO_TRACEPOINT in line for line in log) and found:
            return found
        # EACCES is also what the verifier says of a program that reaches where it may not.
        if error == errno.EPERM or (error == errno.EACCES and not found):
            raise ProbeError(
                ProbeCause.NO_PERMISSION,
                "cannot load the probes",
                f"{os.strerror(error)}: the process lacks CAP_BPF or CAP_PERFMON",
                _NEED_CAPABILITIES,
            )
        if not found:
            raise ProbeError(
                ProbeCause.REFUSED,
                "cannot load the probes",
                f"{self._reason(error)} ({reason or 'no further word from libbpf'})",
                "run `trainobs doctor`; without probes the run is observed through /proc",
            )
        return found

    def _reason(self, error: int) -> str:
        """Words for an error number; libbpf has some of its own, from 4000."""
        buffer = C.create_string_buffer(256)
        self._library.libbpf_strerror(C.c_int(error), buffer, C.c_size_t(len(buffer)))
        return buffer.value.decode(errors="replace")

    def _release(self) -> None:
        if self._object:
            self._library.bpf_object__close(self._object)
        self._object, self._programs, self._maps = None, {}, {}
