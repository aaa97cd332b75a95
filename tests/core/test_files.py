"""Files that are whole, or as they were."""

from __future__ import annotations

import json
import math
import os
import socket
from pathlib import Path

import numpy as np
import pytest

from trainobs.core.files import (
    NotRegularError,
    make_directory,
    open_regular,
    replace_file,
    replacing,
)
from trainobs.core.strict_json import dumps


@pytest.mark.parametrize("error", [OSError, MemoryError, KeyboardInterrupt])
def test_whatever_ends_the_writing_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file"
    path.write_text("as it was")

    def write() -> None:
        with replacing(path) as temporary:
            temporary.write(b"half of")
            raise error

    with pytest.raises(error):
        write()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file", "as it was")]


def test_a_link_that_somebody_planted_is_not_written_through(tmp_path):
    other = tmp_path / "other"
    other.write_text("of another user")
    for planted in (tmp_path / "file", tmp_path / f".file.{os.getpid()}.tmp"):
        planted.symlink_to(other)
    replace_file(tmp_path / "file", b"ours")
    assert other.read_text() == "of another user"
    assert not (tmp_path / "file").is_symlink()


def test_a_link_is_not_taken_for_a_directory(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("elsewhere")
    with pytest.raises(NotADirectoryError, match="A link where a directory was expected"):
        make_directory(tmp_path / "link")
    make_directory(tmp_path / "elsewhere" / "more")
    make_directory(tmp_path / "elsewhere" / "more")


def _a_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, _a_socket, lambda path: path.symlink_to("/dev/zero")]
)
def test_what_is_no_file_is_not_opened(tmp_path, monkeypatch, make):
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    make(Path("it"))
    with pytest.raises(NotRegularError, match="not a regular file"):
        open_regular("it")


def test_json_has_numbers_of_numpys_as_numbers():
    value = {"a": np.int64(3), "b": [np.float32(0.5), np.bool_(True)], "c": Path("x")}
    assert json.loads(dumps(value)) == {"a": 3, "b": [0.5, True], "c": "x"}
    assert json.loads(dumps({"a": np.float32(math.nan)})) == {"a": None}


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_json_has_null_for_what_is_no_number(number):
    value = {"a": [1.5, (number, "\ud800")], "b": number}
    assert json.loads(dumps(value), parse_constant=pytest.fail) == {
        "a": [1.5, [None, "\ud800"]],
        "b": None,
    }
