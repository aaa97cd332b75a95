"""Files that a reader finds whole."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from trainobs.core.errors import TrainobsError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A hidden file beside `path` to write to, which is renamed to `path` at the end.

    Its name is random, and it is made here or not at all: nobody can plant a link to be written
    through. There is no fsync: a killed process loses nothing, and a machine that loses power may
    lose the last seconds of a log, not worth a stall of the storage that is being measured.

    Raises:
        OSError: the directory is missing or not writable, or the disk is full; `path`, which it
            names, is as before.
    """
    temporary = path.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, path)
    except BaseException as error:  # Ctrl-C, too
        with suppress(OSError):  # give the space back to a full disk
            temporary.unlink()
        if isinstance(error, OSError) and error.filename in (None, os.fspath(temporary)):
            error.filename = os.fspath(path)
            del error.filename2  # None would be told: "'a' -> None"
        raise


def replace_file(path: Path, data: bytes) -> None:
    """Write `data` to a file that a reader finds whole, or as it was; see `replacing`."""
    with replacing(path) as file:
        file.write(data)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte: on a disk that fills up, `write` first writes a part, then fails."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def close_all(descriptors: Iterable[int]) -> None:
    """Close what was kept for long: whoever becomes a daemon may have closed all there were."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory, and those above it, where there is none; a link to one is not taken for it.

    Raises:
        OSError: it cannot be made, or something else is there.
    """
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise NotADirectoryError(errno.ENOTDIR, "A link where a directory was expected", str(path))


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file for reading; a pipe is not waited for, a device not read without end.

    Raises:
        NotRegularError: it is none.
        OSError: there is no such file, or it cannot be read.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, flags)
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket
            raise NotRegularError(path) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise NotRegularError(path)
    return os.fdopen(fd, "rb")


class NotRegularError(OSError):
    """A pipe, a socket, a device or a directory in the place of a file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(errno.EINVAL, "not a regular file", os.fspath(path))


@contextmanager
def npz_members(path: str | os.PathLike[str]) -> Iterator[Mapping[str, NDArray[Any]]]:
    """The arrays of an npz file, each of which has a checksum, while they are read and looked at.

    Raises:
        OSError: there is no such file, or the disk cannot read it.
        ValueError: it is no npz, or damaged, or the arrays are not what their reader looks for.
    """
    try:
        with open_regular(path) as file:
            if file.read(2) != b"PK":  # numpy takes others for arrays or pickles
                raise ValueError("it is no npz")
            file.seek(0)
            with np.load(file, allow_pickle=False) as members:
                if any(member.compress_type for member in members.zip.infolist()):
                    raise ValueError("it is compressed")  # so it could be of any size
                yield members
    except (OSError, TrainobsError):
        raise
    except Exception as error:  # numpy and zipfile raise a dozen kinds for damaged bytes
        raise ValueError(f"{type(error).__name__}: {error}".splitlines()[0]) from error
