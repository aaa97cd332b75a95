"""A job that is forked from a warm process does what it does in an interpreter of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

JOB = """
import atexit, os, sys, __main__
print(sys.argv, sys.path[0], __name__, __main__.__dict__ is globals(), globals().get("__file__"))
print(os.getcwd(), os.environ["OF_THE_JOB"], os.environ.get("OF_THE_TESTS"), os.getppid())
print(sorted(os.listdir("/proc/self/fd"))[:4], sys.stdin.read())
words = open("/proc/self/cmdline").read().rstrip("\\0").split("\\0")
print(words[-3:], file=sys.stderr)
atexit.register(print, "the end")
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.parametrize("kind", ["code", "module", "script"])
def test_it_is_as_in_an_interpreter_of_its_own(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_job.py").write_text(JOB)
    script = str(tmp_path / "a_job.py")
    words = {"code": ["-c", JOB], "module": ["-m", "a_job"], "script": [script]}[kind]
    monkeypatch.setenv("OF_THE_TESTS", "1")
    environment = {name: value for name, value in os.environ.items() if name != "OF_THE_TESTS"}
    told = []
    for start in (subprocess.Popen, warm.Popen):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        job = start(
            [sys.executable, *words, "7", "last"],
            cwd=tmp_path,
            env=environment | {"OF_THE_JOB": "ä"},
            text=True,
            **pipes,
        )
        told.append((job.communicate("what it reads"), job.returncode))
    assert told[1] == told[0]
    assert told[0][1] == 7
    assert f" {os.getpid()}\n" in told[0][0][0]


def test_an_exception_and_a_signal_end_it() -> None:
    done = warm.run([sys.executable, "-c", "raise LookupError('no such thing')"])
    assert done.returncode == 1
    assert done.stderr.endswith("LookupError: no such thing\n")
    with pytest.raises(subprocess.CalledProcessError):
        warm.run([sys.executable, "-c", "1 / 0"], check=True)
    job = warm.Popen([sys.executable, "-c", "import time; print(1, flush=True); time.sleep(600)"])
    job.send_signal(signal.SIGTERM)
    assert job.wait() == -signal.SIGTERM


def test_torch_is_there_and_nothing_of_trainobs() -> None:
    code = "import sys; print('torch' in sys.modules, 'trainobs' in sys.modules)"
    assert warm.run([sys.executable, "-c", code]).stdout == "True False\n"
