"""Whether a compiled file is all there, and of the sources that lie beside the package."""

from __future__ import annotations

import hashlib
import os
import struct
from functools import lru_cache
from pathlib import Path

from trainobs.core.log import logger
from trainobs.core.once import Once

_HEADER = struct.Struct("<40xQ10xHH2x")  # e_shoff, e_shentsize, e_shnum

_ROOT = Path(__file__).parents[2].parent  # of a package below `/` that is `/` again
"""The sources, if the package runs from them."""

_MARK, _DIGITS = b"trainobs sources ", 16


def is_whole(path: Path) -> bool:
    """Whether an ELF file is there to its end; one that was cut off may end whom it is loaded by.

    Source: System V ABI, chapter 4. Linkers put the table of sections last.
    """
    try:
        with path.open("rb") as file:
            sections, size, count = _HEADER.unpack(file.read(_HEADER.size))
            return bool(os.fstat(file.fileno()).st_size >= sections + size * count)
    except (OSError, struct.error):
        return False


def mark_of(folder: Path) -> bytes:
    """What `build.py` of a folder puts behind the end of an ELF file, where nobody else reads.

    It tells the C sources below that folder from any others.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.[ch]")):
        text = path.read_bytes()
        digest.update(f"{path.relative_to(folder)} {len(text)} ".encode() + text)
    return _MARK + digest.hexdigest()[:_DIGITS].encode()


def is_stale(path: Path, folder: str) -> bool:
    """Whether a compiled file was built from other sources than `folder` beside the package has.

    So it is after a `git pull` without `make bpf`. Where the package was installed there are no
    sources, and what was installed with it fits.
    """
    expected = _expected(folder)
    if not expected:
        return False
    try:
        with path.open("rb") as file:
            file.seek(-len(expected), os.SEEK_END)
            return file.read() != expected
    except OSError:
        return False  # it is missing or cut off, which `is_whole` tells


def flaw_of(path: Path, folder: str) -> str:
    """Why a compiled file cannot be used, as the end of a sentence on it; "" if it can."""
    if not is_whole(path):
        return "is cut off" if path.exists() else "does not exist"
    return (
        f"was built from other sources than {_ROOT / folder} holds"
        if is_stale(path, folder)
        else ""
    )


@lru_cache(maxsize=2)
def _expected(folder: str) -> bytes:
    sources = _ROOT / folder
    try:
        are_there = (_ROOT / "bpf" / "trainobs.h").exists() and sources.is_dir()
        return mark_of(sources) if are_there else b""
    except OSError:  # not for this user to read
        return b""


_once = Once()


def tell_stale_native() -> None:
    """Say, once in a process, that what is in C is left out because it is stale."""
    if _once.first():
        logger.warning(
            "what trainobs has in C was built from other sources than `native/` holds: Python does "
            "the same, slower; `make bpf` builds it again"
        )
