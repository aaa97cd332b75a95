"""The leak check of conftest.py finds each thing that it looks for, and only those."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CULPRITS = """
import ctypes, os, struct, subprocess, threading, time
from tests import conftest, kernel_state

conftest.PATIENCE_S = 0.2
kept = []

def test_thread():
    threading.Thread(target=time.sleep, args=(60,), name="sleeper", daemon=True).start()

def test_process():
    kept.append(subprocess.Popen(["sleep", "60"]))

def test_environment():
    os.environ["TOBS_LEFT"] = "1"

def test_directory():
    os.chdir("/")

def test_descriptor():
    map_create, array = 0, struct.pack("IIII", 2, 4, 8, 1)
    assert kernel_state.bpf(map_create, ctypes.create_string_buffer(array)) >= 0

def test_mount(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], check=True)
    kept.append(tmp_path)

def test_innocent(monkeypatch, tmp_path):
    conftest.PATIENCE_S = 60
    monkeypatch.setenv("TOBS_GONE", "1")
    monkeypatch.chdir(tmp_path)
    threading.Thread(target=time.sleep, args=(0.05,)).start()

def test_cleaner():
    kept[0].kill()
    kept[0].wait()
    subprocess.run(["umount", kept[1]], check=True)
"""


NEEDY = """
import pytest
from tests import kernel_state

kernel_state.why_no_bpf = lambda: "no such luck"

@pytest.mark.needs_bpf
def test_needy():
    pass
"""

SPOILT = """
import pytest

made = []

@pytest.fixture(scope="module")
def job():
    made.append("made")
    yield len(made)
    made.append("ended")

def test_good(job):
    assert job == 1

def test_measured(job):
    assert made == ["made", "ended", "made"], f"what was made: {made}"

def test_after(job):
    assert job == 3

def test_wrong():
    assert not "a bug"
"""

ROOT = Path(__file__).parent.parent

PLUGINS = ("-p", "tests.conftest", "-p", "pytest_rerunfailures", "-p", "pytest_timeout")
"""What the settings need; all that is installed takes longer to import than the tests to run."""


def outcome(folder: Path, tests: str, **environment: str) -> str:
    """What pytest prints for a file of tests under the leak check of this repository."""
    (folder / "test_suspects.py").write_text(tests)
    inherited = {name: value for name, value in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-c", "pyproject.toml", *PLUGINS, folder],
        cwd=ROOT,
        env=inherited | {"COLUMNS": "200", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | environment,
        capture_output=True,
        text=True,
        check=False,
    ).stdout


@pytest.mark.needs_bpf
def test_what_a_test_leaves_behind_is_an_error_of_that_test(tmp_path):
    printed = outcome(tmp_path, CULPRITS)
    errors = re.findall(r"at teardown of test_(\w+) _+\nleft behind: (.*)", printed)
    assert {test: re.sub(r"/\S+/test_", "test_", left) for test, left in errors} == {
        "thread": "{'threads': ['sleeper']}",
        "process": "{'processes': ['sleep 60 ']}",
        "environment": "{'environment': ['TOBS_LEFT']}",
        "directory": f"{{'current directory': {sorted(['/', str(ROOT)])}}}",
        "descriptor": "{'BPF descriptors': ['anon_inode:bpf-map']}",
        "mount": "{'mounts': ['test_mount0']}",
    }


def test_without_bpf_a_test_that_needs_it_is_skipped(tmp_path):
    printed = outcome(tmp_path, NEEDY)
    assert "needs BPF: no such luck" in printed
    assert "1 skipped in" in printed


@pytest.mark.skipif(os.geteuid() != 0, reason="is about root")
def test_without_bpf_root_in_ci_fails_a_test_that_needs_it(tmp_path):
    printed = outcome(tmp_path, NEEDY, CI="true")
    assert "root must be able to load probes: no such luck" in printed
    assert "1 error in" in printed


def test_a_spoilt_measurement_is_made_again_and_a_bug_fails(tmp_path):
    (tmp_path / "kernel").mkdir()
    printed = outcome(tmp_path / "kernel", SPOILT)
    assert "1 failed, 3 passed, 3 rerun" in printed
    assert "what was made: ['made']" in printed  # what failed at first is shown


def test_where_nothing_is_measured_nothing_runs_again(tmp_path):
    (tmp_path / "core").mkdir()
    printed = outcome(tmp_path / "core", SPOILT)
    assert "3 failed, 1 passed in" in printed
