"""What libbpf says of objects and programs that it is given."""

from __future__ import annotations

import ctypes as C
import errno
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

_LOG_BYTES = (1 << 24) + 4096  # the largest buffer that libbpf gives the verifier, and some words
_WARNING = 0  # enum libbpf_print_level: LIBBPF_WARN

_UNNAMED = re.compile(r"libbpf: load bpf program failed: (.*)")
_NAMED = re.compile(r"libbpf: failed to load program '(\w+)'")
_BARE_LOG = re.compile(r"libbpf: \n(.*)", re.DOTALL)
_BY_NAME = re.compile(r"(?<= )-(E[A-Z0-9]+)\b")
_IS_0 = re.compile(r"'(.*)' is 0 in symtab for '(.*)': .*")
_NO_NEWS = "Retrying without BTF."  # of maps of maps, with which 0.5 tries so in vain


def _words_of(name: re.Match[str]) -> str:
    number = getattr(errno, name[1], None)
    return name[0] if number is None else os.strerror(number)


def _as_of_1_0(lines: list[str]) -> list[str]:
    """What is refused, in the words of libbpf 1.0.

    0.5 says last which program it is about; 1.3 and newer call a missing symbol 0 where a file has
    but one table of them; 1.6 and newer have the names of errors in the place of words.
    """
    said: list[str] = []
    pending: list[str] = []
    for told in lines:
        line = _BY_NAME.sub(_words_of, _IS_0.sub(r"failed to find symbol '\1' in '\2'", told))
        if match := _UNNAMED.match(line):
            pending = [f"BPF program load failed: {match[1]}"]
        elif pending and (match := _BARE_LOG.match(line)):
            pending.append(f"-- BEGIN PROG LOAD LOG --\n{match[1]}")
        elif pending and (match := _NAMED.match(line)):
            said += [f"libbpf: prog '{match[1]}': {words}" for words in pending]
            pending = []
        elif not line.endswith(_NO_NEWS):
            said.append(line)
    return said


class _ThreadLog:
    """What one thread is told."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._buffer: C.Array[C.c_char] | None = None

    def add(self, template: bytes, arguments: int) -> None:
        buffer = self._buffer = self._buffer or C.create_string_buffer(_LOG_BYTES)
        _libc().vsnprintf(buffer, len(buffer), template, arguments)
        self.lines.append(buffer.value.decode(errors="replace").rstrip())


_lock = threading.Lock()
_heard: dict[int, _ThreadLog] = {}
"""Threads that capture."""

_printers: list[int | None] = []
"""The printer to put back, while anybody captures."""


@cache
def _libc() -> C.CDLL:
    """Kept: the log of each program that is attached is captured."""
    libc = C.CDLL(None)
    libc.vsnprintf.argtypes = [C.c_char_p, C.c_size_t, C.c_char_p, C.c_void_p]
    return libc


@cache
def _printer() -> C._FuncPointer:
    """The one that libbpf gets, kept: another thread may be calling it when a capture ends."""
    os.register_at_fork(after_in_child=_lock._at_fork_reinit)  # type: ignore[attr-defined]

    def hear(level: int, template: bytes, arguments: int) -> int:
        # Below a warning it tells of each step that goes well, with the same words.
        if level == _WARNING and (heard := _heard.get(threading.get_ident())):
            heard.add(template, arguments)
        return 0

    return C.CFUNCTYPE(C.c_int, C.c_int, C.c_char_p, C.c_void_p)(hear)


@contextmanager
def captured_log(library: C.CDLL) -> Iterator[list[str]]:
    """Collect libbpf's warnings, which it would print; the printer before is put back.

    Those of the calling thread: libbpf has one printer, and several threads may be loading.
    """
    thread, heard = threading.get_ident(), _ThreadLog()
    with _lock:
        _heard[thread] = heard
        if not _printers:
            _printers.append(library.libbpf_set_print(C.cast(_printer(), C.c_void_p)))
    try:
        yield heard.lines
    finally:
        with _lock:
            del _heard[thread]
            if not _heard:
                library.libbpf_set_print(_printers.pop())
        heard.lines[:] = _as_of_1_0(heard.lines)
