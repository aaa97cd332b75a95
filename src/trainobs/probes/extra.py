"""One more object beside probes that run: linked, loaded with their maps, and attached by itself.

What is in it lives and ends by itself: nothing of the probes that run depends on it.
"""

from __future__ import annotations

import ctypes as C
import errno
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.core.files import close_all
from trainobs.core.now import now_s
from trainobs.probes.compiling import OBJECTS
from trainobs.probes.libbpf import (
    INTERRUPTED,
    INTERRUPTED_S,
    LET_GO,
    RENEW,
    UprobeOptions,
    has_usdt,
    load_object,
    open_library,
    open_object,
)
from trainobs.probes.libbpf_log import captured_log
from trainobs.probes.loader import each_of, error_text, let_be_called, need_usable, refusal
from trainobs.probes.remedies import missing_mark, remedy
from trainobs.probes.usdt import SPECIFICATIONS, are_as_the_object_reads_them

_OURS = ("anon_inode:bpf-", "anon_inode:bpf_", "anon_inode:btf", "anon_inode:[perf_event]")
"""What descriptors of programs, maps, links, types and uprobes lead to."""

_MOST_PLACES = 256  # that are looked at; a program may make room for more

ANY_PROCESS = -1
"""For `pid`: whoever runs the code."""


class ExtraObject:
    """The programs of some object files, linked to one and loaded on construction.

    Args:
        parts: object files; the license of the first counts. One alone is loaded as it is.
        maps: name -> descriptor of a map that stands for the object's own of that name.
        name: what errors call it.
        only: programs to load; None: all.
        entries: name -> how many elements a map of the object's own is to have.
        targets: program -> tracepoint that it is for, where its section does not say.

    Attributes:
        programs: program -> its section, which says what it is attached to.

    Raises:
        ProbeError: NO_LIBBPF, NO_OBJECT; REFUSED: it cannot be linked, or the kernel does not take
            it, with the last words of the verifier.
    """

    def __init__(
        self,
        parts: Sequence[Path],
        maps: Mapping[str, int],
        name: str,
        only: Collection[str] | None = None,
        entries: Mapping[str, int] | None = None,
        targets: Mapping[str, str] | None = None,
    ) -> None:
        need_usable((part for part in parts if part.parent == OBJECTS), name)
        self.programs: dict[str, str] = {}
        self._name = name
        self._only = only
        self._entries = entries or {}
        self._targets = targets or {}
        self._library = open_library()
        self._object: int | None = None
        self._handles: dict[str, int] = {}
        self._maps: dict[str, int] = {}
        self._links: list[int] = []
        self._descriptors: set[int] = set()
        try:
            with tempfile.TemporaryDirectory(prefix="trainobs-") as place:
                self._load(self._linked(parts, Path(place)), maps)
        except BaseException:
            self.close()
            raise

    def attach(self, program: str) -> None:
        """Attach a program to what its section says.

        Raises:
            ProbeError: REFUSED.
        """
        self._attach(program, self.programs[program], self._library.bpf_program__attach)

    def attach_to_tracepoint(self, program: str) -> None:
        """Attach a program to the tracepoint that `targets` has for it.

        Raises:
            ProbeError: REFUSED.
        """
        target = self._targets[program]
        if self.programs[program].startswith("tp_btf"):
            return self.attach(program)
        attach = self._library.bpf_program__attach_raw_tracepoint
        return self._attach(program, target, lambda handle: attach(handle, target.encode()))

    def attach_uprobe(
        self,
        program: str,
        path: Path | str,
        offset: int = 0,
        *,
        symbol: str | None = None,
        pid: int = ANY_PROCESS,
        returns: bool = False,
    ) -> None:
        """Attach a program to code of a library or of an executable.

        Args:
            program: its name.
            path: the file, or the name of a library.
            offset: in the file; with `symbol` from its begin.
            symbol: a function; libbpf 0.8 and newer.
            pid: the process, as this one sees it. Its children lose the uprobe as they fork.
            returns: whether it runs at the end of the function.

        Raises:
            ProbeError: REFUSED.
        """
        if symbol is not None:
            self._need_names(program)
        options = UprobeOptions(sz=C.sizeof(UprobeOptions), retprobe=returns)
        options.func_name = None if symbol is None else symbol.encode()
        place = f"{'uretprobe' if returns else 'uprobe'}/{path}:{symbol or ''}"
        place += f"+{offset:#x}" if offset else ""
        encoded = os.fsencode(path)
        self._attach(
            program,
            place,
            lambda handle: self._library.bpf_program__attach_uprobe_opts(
                handle, pid, encoded, offset, C.byref(options)
            ),
        )

    def attach_usdt(
        self, program: str, path: Path | str, provider: str, name: str, *, pid: int = ANY_PROCESS
    ) -> None:
        """Attach a program to a mark that a library or an executable has in its code.

        Raises:
            ProbeError: NO_LIBBPF: it is too old; REFUSED.
        """
        self._need_names(program)
        words = (os.fsencode(path), provider.encode(), name.encode())
        self._attach(
            program,
            f"usdt/{path}:{provider}:{name}",
            lambda handle: self._library.bpf_program__attach_usdt(handle, pid, *words, None),
        )

    def map_fd(self, name: str) -> int:
        """Descriptor of a map of the object."""
        return int(self._library.bpf_map__fd(self._maps[name]))

    def has_map(self, name: str) -> bool:
        """Whether the object has such a map."""
        return name in self._maps

    def let_be_called(self, program: str, calls: str) -> None:
        """Let a program be called by those that have a map of the object's.

        Raises:
            OSError: the kernel does not take it.
        """
        let_be_called(self._library, self.map_fd(calls), self.program_fds()[program])

    def program_fds(self) -> dict[str, int]:
        """Program -> its descriptor."""
        fd = self._library.bpf_program__fd
        return {name: int(fd(handle)) for name, handle in self._handles.items()}

    def close(self) -> None:
        """Take it out of the kernel; what is mapped stays. May be called twice."""
        while self._links:
            self._library.bpf_link__destroy(self._links.pop())
        if self._object:
            self._library.bpf_object__close(self._object)
        self._forget()

    def abandon(self) -> None:
        """In a forked child: close what was inherited, and leave libbpf's own memory alone.

        Of a uprobe or USDT libbpf does not tell the descriptors, hence those that came with it.
        """
        close_all(self._descriptors)
        self._links.clear()
        self._forget()

    def _forget(self) -> None:
        self._object, self._handles, self._maps, self._descriptors = None, {}, {}, set()

    def _linked(self, parts: Sequence[Path], place: Path) -> Path:
        if len(parts) == 1:
            return parts[0]
        library, target = self._library, place / "linked.bpf.o"
        with captured_log(library) as log:
            linker = library.bpf_linker__new(os.fsencode(target), None)
            error = -C.get_errno() if not linker else 0
            for part in parts if linker else ():
                error = error or library.bpf_linker__add_file(linker, os.fsencode(part), None)
            error = error or library.bpf_linker__finalize(linker)
            library.bpf_linker__free(linker)
        if error:
            raise self._refused("link", error, log)
        return target

    def _load(self, path: Path, maps: Mapping[str, int]) -> None:
        end_s = now_s() + INTERRUPTED_S
        with self._keeping_descriptors():
            error, log = self._try_load(path, maps)
            while error == -errno.EAGAIN and now_s() < end_s:
                self.close()
                error, log = self._try_load(path, maps)
        if error == -errno.EAGAIN:
            failed = f"cannot load {self._name}"
            raise ProbeError(ProbeCause.REFUSED, failed, INTERRUPTED, LET_GO)
        if error:
            raise self._refused("load", error, log)

    def _try_load(self, path: Path, maps: Mapping[str, int]) -> tuple[int, list[str]]:
        library = self._library
        with captured_log(library) as log:
            self._object = open_object(library, os.fsencode(path))
            if not self._object:
                raise self._refused("open", C.get_errno(), log)
            next_program, next_map = library.bpf_object__next_program, library.bpf_object__next_map
            self._handles = each_of(self._object, next_program, library.bpf_program__name)
            self._maps = each_of(self._object, next_map, library.bpf_map__name)
            section = library.bpf_program__section_name
            self.programs = {n: section(handle).decode() for n, handle in self._handles.items()}
            self._leave_out()
            error = self._reuse(maps) or self._resize() or self._aim()
            return error or load_object(library, self._object), log

    def _leave_out(self) -> None:
        if self._only is None:
            return
        for name in self._handles.keys() - set(self._only):
            self._library.bpf_program__set_autoload(self._handles.pop(name), False)

    def _reuse(self, maps: Mapping[str, int]) -> int:
        for name in maps.keys() & self._maps.keys():
            if error := self._library.bpf_map__reuse_fd(self._maps[name], maps[name]):
                return int(error)
        return 0

    def _resize(self) -> int:
        for name, count in self._entries.items():
            if error := self._library.bpf_map__set_max_entries(self._maps[name], count):
                return int(error)
        return 0

    def _aim(self) -> int:
        for name, target in self._targets.items():
            if self.programs[name].startswith("tp_btf"):  # a raw one is aimed as it is attached
                set_target = self._library.bpf_program__set_attach_target
                if error := set_target(self._handles[name], 0, target.encode()):
                    return int(error)
        return 0

    def _need_names(self, program: str) -> None:
        if not has_usdt(self._library):
            version = self._library.libbpf_version_string().decode()
            raise ProbeError(
                ProbeCause.NO_LIBBPF,
                f"cannot attach `{program}` of {self._name}",
                f"libbpf {version} cannot attach by function name (0.8 can) or USDT (1.0 can)",
                RENEW,
            )

    def _attach(self, program: str, place: str, how: Callable[[int], int | None]) -> None:
        with captured_log(self._library) as log, self._keeping_descriptors():
            link = how(self._handles[program])
            error = C.get_errno()
            self._links += [link] if link else []  # before anything can go wrong
        if not link:
            raise self._refused(f"attach `{program}` to {place} of", error, log, place)
        if place.startswith("usdt") and not are_as_the_object_reads_them(self._specifications()):
            version = self._library.libbpf_version_string().decode()
            raise ProbeError(
                ProbeCause.REFUSED,
                f"cannot attach `{program}` to {place} of {self._name}",
                f"libbpf {version} writes down arguments of marks otherwise than the usdt.bpf.h "
                "that the object was compiled with, so the program would read others",
                "of an object: give the source, or compile it with usdt.bpf.h of libbpf "
                f"{version}; of a source: use a libbpf from 1.0 to 1.7",
            )

    def _specifications(self) -> npt.NDArray[np.uint8]:
        """Where libbpf says that arguments of marks are, of the first places of marks."""
        library, handle = self._library, self._maps[SPECIFICATIONS]
        entries = min(_MOST_PLACES, library.bpf_map__max_entries(handle))
        found = np.zeros((entries, library.bpf_map__value_size(handle)), np.uint8)
        for number, row in enumerate(found):
            key = C.byref(C.c_int(number))
            library.bpf_map_lookup_elem(self.map_fd(SPECIFICATIONS), key, row.ctypes.data)
        return found

    def _refused(self, what: str, error: int, log: list[str], place: str = "") -> ProbeError:
        number = abs(error)
        found = refusal(log) or missing_mark(place, number) or error_text(self._library, number)
        failed, do = f"cannot {what} {self._name}", remedy(place, found, number)
        return ProbeError(ProbeCause.REFUSED, failed, found, do)

    @contextmanager
    def _keeping_descriptors(self) -> Iterator[None]:
        before = _descriptors()
        try:
            yield
        finally:
            self._descriptors |= _descriptors() - before


def _descriptors() -> set[int]:
    """Descriptors of this process that lead to something of BPF or to a uprobe."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith(_OURS):
                found.add(int(name))
        except OSError:  # the one of the directory, or closed meanwhile
            continue
    return found
