"""Files that a reader finds whole."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.core.errors import TrainobsError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A hidden name beside `path` to write to, which is renamed to `path` at the end.

    There is no fsync: a killed process loses nothing, and a machine that loses power may lose the
    last seconds of a log, which is not worth a stall of the storage that is being measured.

    Raises:
        OSError: the directory is missing or not writable, or the disk is full; `path` is as before.
    """
    # Two processes may write the same file: all ranks of a job save its profile, say.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:  # Ctrl-C, too
        with suppress(OSError):  # give the space back to a full disk
            temporary.unlink()
        raise


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to a file that a reader finds whole, or as it was; see `replacing`."""
    with replacing(path) as temporary, open(temporary, "wb", buffering=0) as file:
        write_all(file.fileno(), data)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte: on a disk that fills up, `write` first writes a part, then fails."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


@contextmanager
def npz_members(path: str | os.PathLike[str]) -> Iterator[Mapping[str, NDArray[Any]]]:
    """The arrays of an npz file, each of which has a checksum, while they are read and looked at.

    Raises:
        OSError: there is no such file, or the disk cannot read it.
        ValueError: it is no npz, or damaged, or the arrays are not what their reader looks for.
    """
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"PK":  # numpy takes others for arrays or pickles
                raise ValueError("it is no npz")
            file.seek(0)
            with np.load(file, allow_pickle=False) as members:
                yield members
    except (OSError, TrainobsError):
        raise
    except Exception as error:  # numpy and zipfile raise a dozen kinds for damaged bytes
        raise ValueError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
