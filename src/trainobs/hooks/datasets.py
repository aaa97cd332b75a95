"""Where a data set lies, as far as its attributes tell.

Works on what data sets commonly have (`root`, `samples`, `filename`, ...) and needs none of it:
what loader workers read is known from the kernel anyway, this adds what the training process reads
itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import SupportsInt

_INNER = (
    "dataset",
    "datasets",
    "base_dataloader",  # of Accelerate's loaders
    "_data",  # of a data set of Hugging Face: its table, which maps a file,
    "blocks",  # or consists of tables
    "_iterables",
    "sampler_dataset",
    "source_datapipe",
    "datapipe",
)
_PATHS = ("root", "data_dir", "root_dir", "directory", "folder", "path", "filename", "file_path")
_LISTS = ("samples", "imgs", "files", "paths", "filenames", "file_paths", "image_paths")
_LOOK_AT = 64
_MAX_DEPTH = 8


def data_roots_of(loader: object) -> list[Path]:
    """Directories and files that a loader, or several in a list or dict, takes its data from.

    Args:
        loader: a DataLoader, a Dataset, or a collection of them.

    Returns:
        Existing paths, none of which lies below another; empty where nothing is to be seen.
    """
    found = {path.resolve() for path in _paths_of(loader, _MAX_DEPTH) if os.path.exists(path)}
    # These hold everything, and so tell nothing. Not Path.home, which fails for a nameless user.
    found -= {Path("/"), Path(os.path.expanduser("~")).resolve()}
    return sorted(path for path in found if not found & set(path.parents))


def workers_of(loader: object) -> int | None:
    """Worker processes of a loader, or of all in a list or dict together; None: unknown.

    Args:
        loader: a DataLoader, or a collection of them, as Lightning has, or one of Accelerate.
    """
    fields = _fields(loader)
    inner = fields.get("_iterables", fields.get("base_dataloader", loader))
    if isinstance(inner, dict):
        inner = list(inner.values())
    if isinstance(inner, list | tuple):
        counts = [count for part in inner if (count := workers_of(part)) is not None]
        return sum(counts) if counts else None
    workers = _fields(inner).get("num_workers")
    return int(workers) if isinstance(workers, SupportsInt) else None


def _paths_of(thing: object, depth: int) -> Iterator[Path]:
    if thing is None or depth == 0:
        return
    if isinstance(thing, dict):
        thing = list(thing.values())
    if isinstance(thing, list | tuple):
        for inner in thing[:_LOOK_AT]:
            yield from _paths_of(inner, depth - 1)
        return
    fields = _fields(thing)
    for name in _INNER:
        yield from _paths_of(fields.get(name), depth - 1)
    for name in _PATHS:
        yield from _as_path(fields.get(name))
    for name in _LISTS:
        yield from _directories(fields.get(name))
    for value in fields.values():  # numpy.memmap keeps the file it maps
        yield from _as_path(getattr(value, "filename", None) if _is_array(value) else None)


def _fields(thing: object) -> dict[str, object]:
    """Instance attributes, without running properties, which may open files."""
    return getattr(thing, "__dict__", {})


def _is_array(value: object) -> bool:
    return type(value).__name__ == "memmap"


def _as_path(value: object) -> Iterator[Path]:
    if isinstance(value, str | os.PathLike) and not isinstance(value, bytes):
        text = os.fspath(value)
        if isinstance(text, str) and text and "\0" not in text and "://" not in text:
            yield Path(text).absolute()


def _directories(value: object) -> Iterator[Path]:
    """Directories of a few of many files, spread over the list.

    A file that is not there is a name below some root, and says nothing of the current directory.
    """
    if not isinstance(value, list | tuple):
        return
    for item in value[:: max(1, len(value) // _LOOK_AT)]:
        for path in _as_path(_first(item)):
            if os.path.exists(path):
                yield path.parent


def _first(item: object) -> object:
    """A sample is a path, or begins with one: (path, label)."""
    return item[0] if isinstance(item, tuple | list) and item else item
