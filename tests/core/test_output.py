"""Writing a page into a file that its user names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainobs.core.errors import TrainobsError
from trainobs.core.output import write_page

PAGE = "<!doctype html>\n<html></html>"


XML = '<?xml version="1.0" encoding="utf-8"?>'
SAVED = f"<!-- saved from url=(0022){'https://example.org/' * 40} -->"


@pytest.mark.parametrize(
    "before",
    [
        *(None, "", PAGE, "\n<HTML lang='en'>"),
        *("\ufeff" + PAGE, f"{SAVED}\n{PAGE}", f"{XML}\n{PAGE}", f"\ufeff{XML}{SAVED}\n<html>"),
    ],
)
def test_a_page_replaces_nothing_but_a_page(tmp_path, before):
    file = tmp_path / "page.html"
    if before is not None:
        file.write_text(before, encoding="utf-8")
    assert write_page(PAGE, file).startswith(f"{file}: ")
    assert file.read_text() == PAGE


@pytest.mark.parametrize(
    "before",
    [
        *(b'{"schema": 1}', b"PAR1", b"import torch  # <html>", b"\n"),
        *(b"<?xml version='1.0'?>\n<svg></svg>", b"<!-- <html>", b"<!-- --> # <html>"),
    ],
)
def test_a_file_of_a_run_log_or_of_a_program_stays(tmp_path, before):
    file = tmp_path / "run.json"
    file.write_bytes(before)
    with pytest.raises(TrainobsError, match=f"{file} holds something else than a page"):
        write_page(PAGE, file)
    assert file.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["run.json"]


def test_what_takes_bytes_as_they_come_is_written_to():
    read, written = os.pipe()
    try:
        write_page(PAGE, Path(f"/dev/fd/{written}"))
        assert os.read(read, 100).decode() == PAGE
    finally:
        os.close(read)
        os.close(written)


@pytest.mark.parametrize("where", ["closed", "full", "left"])
def test_an_error_that_nobody_can_be_told_has_its_status_all_the_same(tmp_path, where):
    def spoil():
        read, written = os.pipe()
        os.close(read)
        os.dup2(os.open("/dev/full", os.O_WRONLY) if where == "full" else written, 2)
        if where == "closed":
            os.close(2)

    words = [sys.executable, "-m", "trainobs", "report", str(tmp_path)]
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    ended = subprocess.run(words, stdout=subprocess.PIPE, preexec_fn=spoil, env=buffered)
    assert (ended.returncode, ended.stdout) == (2, b"")
