"""A fresh interpreter finds what this one finds, and nothing that somebody planted."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from trainobs.core.interpreter import fresh_python
from trainobs.probes.compiler import compiler_command

NAMES = ("json", "numpy", "trainobs", "ziglang")


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with modules that leave a file as they are imported; that file."""
    left = tmp_path / "left"
    text = f"open({str(left)!r}, 'w').close()\n"
    for name in NAMES:
        (tmp_path / name).mkdir()
        for file in ("__init__.py", "__main__.py", "probes.py"):
            (tmp_path / name / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    return left


def test_what_lies_in_the_working_directory_is_not_imported(planted: Path) -> None:
    code = "import json, numpy, trainobs.core; print(trainobs.__file__, *sys.argv[1:], sep='|')"
    done = subprocess.run(fresh_python(code, "a b", ""), capture_output=True, text=True, check=True)
    import trainobs

    assert done.stdout == f"{trainobs.__file__}|a b|\n"
    assert not planted.exists()


@pytest.mark.parametrize("words", [["-m", "trainobs"], ["-c", "import numpy"]])
def test_another_interpreter_would_import_it(planted: Path, words: list[str]) -> None:
    subprocess.run([sys.executable, *words], capture_output=True, check=False)
    assert planted.exists()


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="needs ziglang")
def test_the_compiler_of_a_wheel_is_the_one_that_is_installed(planted: Path) -> None:
    command = compiler_command("zig")
    assert command is not None
    done = subprocess.run([command[0], "version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip().count(".") >= 2
    assert not planted.exists()


@pytest.mark.parametrize("executable", ["", None, "/usr/bin/blender", "/opt/app/python-app"])
def test_another_program_that_runs_this_is_not_started(
    monkeypatch: pytest.MonkeyPatch, executable: str | None
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    with pytest.raises(OSError, match="which may be no Python"):
        fresh_python("pass")
