"""The run logs below TensorBoard's log directory: found within bounds, and not again at once."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote_from_bytes

LEVELS = 10
"""How far below a log directory a run log may be."""

RUNS = 1000
SEARCH_S = 1.0
"""What one search finds at most, and how long it takes; near ones come first."""

FRESH_S = 5.0
"""How long what a search found stands for what is there."""

_URI = re.compile(r"[a-zA-Z][0-9a-zA-Z.]*://")
_OF_A_RUN = re.compile(r"rank=[0-9]+|access-counts")
"""Directories that a run log consists of."""


class Run(NamedTuple):
    """A run log.

    Attributes:
        key: what a request calls it: ASCII, since a path may hold bytes that are no text.
        name: its path below the log directory, as text.
        path: its directory.
        modified_ns: wall time of the last change of a file of rank 0.
    """

    key: str
    name: str
    path: Path
    modified_ns: int


class Found(NamedTuple):
    """What a search found.

    Attributes:
        runs: those changed last come first.
        complete: False if there may be more.
    """

    runs: tuple[Run, ...]
    complete: bool


def directories(logdir: str | None, spec: str | None) -> dict[str, Path]:
    """Name -> directory, by TensorBoard's `--logdir` or `--logdir_spec`.

    The directory of `--logdir` has an empty name. What is on a remote file system (`gs://`) is left
    out.
    """
    if logdir:
        parts = [("", logdir)]
    else:
        parts = [_name_and_path(part) for part in (spec or "").split(",") if part]
    local = [(name, path) for name, path in parts if not _URI.match(path)]
    # Not normalized: after a link, `..` leads elsewhere than its name says.
    return {name: Path(os.path.expanduser(path)).absolute() for name, path in local}


def _name_and_path(part: str) -> tuple[str, str]:
    """As TensorBoard reads a part of `--logdir_spec`."""
    if ":" in part and not part.startswith("/") and not _URI.match(part):
        name, _, path = part.partition(":")
        return name, path
    return part, part


class RunLogs:
    """The run logs below some directories, and never one outside of them.

    Args:
        roots: name -> directory.
    """

    def __init__(self, roots: Mapping[str, Path]) -> None:
        self._roots = roots
        self._lock = threading.Lock()
        self._found = Found((), complete=True)
        self._fresh_until = 0.0

    def found(self) -> Found:
        """What is there, or was a few seconds ago."""
        with self._lock:  # one search answers all who ask at the same time
            if time.monotonic() >= self._fresh_until:
                self._found = _search(self._roots)
                self._fresh_until = time.monotonic() + FRESH_S
            return self._found

    def directory(self, key: str) -> Path | None:
        """The directory of a run log that was found; None if there is none, or no longer."""
        path = _path(self._found, key) or _path(self.found(), key)  # no search for a known one
        if path is None or _modified_ns(path) is None:
            return None
        # Looked at again, since a directory may have become a link.
        return path if any(_is_inside(path, root) for root in self._roots.values()) else None


def version_of(run_dir: Path) -> str:
    """A text that is another one after each change of a run log."""
    patterns = ("run.json", "rank=*/*", "access-counts/*")
    files = sorted(file for pattern in patterns for file in run_dir.glob(pattern))
    return "\n".join(f"{file.relative_to(run_dir)} {_state(file)}" for file in files)


def _state(file: Path) -> str:
    try:
        status = file.stat()
    except OSError:  # gone, while the run goes on
        return ""
    return f"{status.st_mtime_ns} {status.st_size}"


def _path(found: Found, key: str) -> Path | None:
    return next((run.path for run in found.runs if run.key == key), None)


def _search(roots: Mapping[str, Path]) -> Found:
    deadline = time.monotonic() + SEARCH_S
    runs: list[Run] = []
    seen: set[str] = set()
    queue = deque((name, root, root, 0) for name, root in roots.items())
    while queue and len(runs) < RUNS and time.monotonic() < deadline:
        name, root, directory, level = queue.popleft()
        real = os.path.realpath(directory)
        if real in seen or not _is_inside(directory, root):
            continue
        seen.add(real)
        modified_ns = _modified_ns(directory)
        if modified_ns is not None:
            runs.append(_run(name, directory.relative_to(root), directory, modified_ns))
        if level < LEVELS:
            inner = _directories_in(directory, deadline)
            queue.extend((name, root, path, level + 1) for path in inner)
    complete = not queue and time.monotonic() < deadline
    return Found(tuple(sorted(runs, key=lambda run: -run.modified_ns)), complete)


def _directories_in(directory: Path, deadline: float) -> Iterator[Path]:
    """Those that may hold run logs; as many as can be named until the deadline."""
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if time.monotonic() > deadline:
                    return
                hidden = entry.name.startswith(".")
                if not hidden and not _OF_A_RUN.fullmatch(entry.name) and _is_directory(entry):
                    yield directory / entry.name
    except OSError:  # not ours to read, or gone
        return


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _is_inside(path: Path, root: Path) -> bool:
    """Whether `path` is `root` or below it, where links lead to."""
    top = os.path.realpath(root)
    return os.path.commonpath([os.path.realpath(path), top]) == top


def _modified_ns(directory: Path) -> int | None:
    """Wall time of the last change of a run log, ns; None for a directory that is none."""
    try:
        info = os.lstat(directory / "run.json")
        files = os.lstat(directory / "rank=0")  # its writer renames each file into it
    except OSError:
        return None
    regular = stat.S_ISREG(info.st_mode) and stat.S_ISDIR(files.st_mode)
    return max(info.st_mtime_ns, files.st_mtime_ns) if regular else None


def _run(root_name: str, below: Path, directory: Path, modified_ns: int) -> Run:
    name = os.fsencode(Path(root_name, below))
    # Of the log directory itself the page tells its own name.
    shown = os.fsencode(directory.name or ".") if name == b"." else name
    text = shown.decode("utf-8", "backslashreplace")
    return Run(quote_from_bytes(name), text, directory, modified_ns)
