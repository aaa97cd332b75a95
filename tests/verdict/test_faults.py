"""Real faults, really injected, and the verdicts on them; and what the injectors leave behind."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SUITE = Path(__file__).parents[2] / "benchmarks" / "verdicts.py"


def test_the_quick_suite_gets_every_verdict_right(tmp_path):
    command = [sys.executable, SUITE, "--quick", "--json", tmp_path / "found.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (tmp_path / "found.json").exists(), done.stdout + done.stderr
    faults = json.loads((tmp_path / "found.json").read_text())["faults"]
    right = {
        "healthy_light_loader": ("compute-bound", None),
        "large_checkpoints": ("checkpoint-bound", None),
        "frequent_gc": ("compute-bound", "Python's garbage collector"),
    }
    assert faults.keys() == right.keys()
    for name, fault in faults.items():
        if (
            fault["result"] == "disturbed"
        ):  # other processes had the machine, and the verdict says so
            assert fault["cause"] in ("other processes on its CPUs", "waiting for a CPU", None)
        elif name == "large_checkpoints":  # which part of it is slow depends on the disk
            assert fault["kind"] == "checkpoint-bound"
        else:
            assert (fault["kind"], fault["cause"]) == right[name]
    assert {fault["result"] for fault in faults.values()} <= {"right", "disturbed"}
    assert done.returncode == 0


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_injection_leaves_no_group_and_no_process(signum):
    if os.geteuid():
        pytest.skip("control groups need root")
    suite = subprocess.Popen(
        [sys.executable, SUITE, "--only", "slow_storage"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        groups = _wait_for_groups(suite)
        suite.send_signal(signum)
        output, _ = suite.communicate()
    finally:
        suite.kill()
        suite.wait()
    if groups is None:
        pytest.skip(f"no control group for I/O here: {output.decode()}")
    assert suite.returncode != 0
    assert not any(folder.exists() for folder in groups)


def _wait_for_groups(suite: subprocess.Popen[bytes]) -> list[Path] | None:
    """Groups that the suite has made, once there is one; None if it ended without."""
    while suite.poll() is None:
        found = list(Path("/sys/fs/cgroup").glob(f"**/trainobs-fault-{suite.pid}"))
        if found:
            time.sleep(1.0)  # until its job is under way
            return found
        time.sleep(0.05)
    return None


@pytest.mark.parametrize(
    ("kind", "cause", "lacked", "load", "result"),
    [
        ("loader-bound", "the device", 0.0, 0.0, "right"),
        ("loader-bound", None, 0.0, 0.0, "right"),  # a cause that is withheld is not wrong
        ("loader-bound", "fsync", 0.0, 0.0, "wrong"),
        ("compute-bound", None, 0.0, 99.0, "wrong"),
        ("compute-bound", None, 0.5, 0.0, "wrong"),
        ("compute-bound", None, 0.5, 99.0, "disturbed"),
        (None, None, 0.5, 99.0, "abstained"),
    ],
)
def test_the_suite_calls_wrong_what_is_wrong(monkeypatch, kind, cause, lacked, load, result):
    monkeypatch.syspath_prepend(SUITE.parent)
    suite = importlib.import_module("verdicts")
    evidence = [{"metric": "sched/main_runqueue_ns", "share": lacked}]
    verdict = {"kind": kind, "cause": cause, "evidence": evidence}
    assert suite._result(suite.FAULTS["slow_storage"], verdict, load) == result
