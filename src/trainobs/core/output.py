"""Writing what a command answers: to standard output, or into a file."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TextIO

from trainobs.core.errors import TrainobsError
from trainobs.core.files import open_regular, replace_file
from trainobs.core.text import size

_LOOKED_AT = 8192
"""Bytes of a file that tell whether it is a page; browsers put a comment with its address first."""

_BEFORE = re.compile(rb"\xef\xbb\xbf|\s+|<!--.*?-->|<\?xml.*?\?>", re.DOTALL)
"""What may come before a page begins: a mark of UTF-8, blanks, comments, or that it is XML."""


def write(text: str) -> bool:
    """Print a text; False if the reader has left, which is no fault.

    Raises:
        TrainobsError: standard output refuses it.
    """
    if sys.stdout is None:  # closed before Python began
        raise _unwritable("standard output is closed")
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding))
        sys.stdout.flush()
    except BrokenPipeError:
        _forget(sys.stdout)
        return False
    except OSError as error:
        _forget(sys.stdout)
        raise _unwritable(str(error)) from error
    return True


def tell(text: str) -> None:
    """Print to the standard error of a command: nothing if it is closed, full or read by nobody."""
    if sys.stderr is None:  # which `print` takes for standard output
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        _forget(sys.stderr)


def _forget(stream: TextIO) -> None:
    """Keep Python from flushing once more, and failing once more, at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _unwritable(found: str) -> TrainobsError:
    return TrainobsError(
        failed="The output cannot be written.",
        found=found,
        do="send it to a terminal, a pipe, or a file on a disk with space left",
    )


def write_page(page: str, file: Path) -> str:
    """Put a page into a file, and say so.

    Raises:
        TrainobsError: it cannot be written, or the file holds anything but a page.
    """
    text = page.encode()
    try:
        if file.exists() and not file.is_file():  # a pipe or a terminal takes bytes as they come
            file.write_bytes(text)
        else:
            _keep_all_but_pages(file)
            replace_file(file, text)
    except OSError as error:
        raise TrainobsError(
            failed="The page cannot be written.",
            found=str(error),
            do="give a file in a directory that you may write to, with space left",
        ) from error
    return f"{file}: {size(len(text))}, to be opened in any browser"


def _is_page(begin: bytes) -> bool:
    at = 0
    while found := _BEFORE.match(begin, at):
        at = found.end()
    return begin[at:].lower().startswith((b"<!doctype html", b"<html"))


def _keep_all_but_pages(file: Path) -> None:
    """Refuse to replace what is no page: a word too few, and it is a file of the run log."""
    try:
        with open_regular(file) as before:
            begin = before.read(_LOOKED_AT)
    except FileNotFoundError:
        return
    if begin and not _is_page(begin):
        raise TrainobsError(
            failed="The page cannot be written.",
            found=f"{file} holds something else than a page, which would be lost",
            do="give a file that is not there yet, or one that holds a page",
        )
