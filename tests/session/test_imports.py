"""What a run imports, and when: nothing heavy before its first flush."""

from __future__ import annotations

import json
import os
import subprocess
import sys

LATE = (
    "PIL",
    "google.protobuf",
    "pyarrow",
    "tensorboard",
    "trainobs.access",
    "trainobs.analysis",
    "trainobs.report",
)
"""What a run imports once it is used, and some of it never."""

MODULES = 330
"""Modules that `observe` adds to those of torch, at most."""

JOB = """
import json, sys, time, torch, torch.utils.data
before = set(sys.modules)
def told():
    print(json.dumps(sorted(set(sys.modules) - before)), flush=True)
from trainobs import observe
from trainobs.session import observer
obs = observe(run_dir=sys.argv[1], probes="off", quiet=True)
told()
def steps(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with obs.step():
            time.sleep(0.005)
steps(0.1)
told()
obs.close()
told()
"""


def modules(tmp_path, job: str = JOB) -> list[set[str]]:
    """Modules beyond torch's, after each part of the job."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", job, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return [set(json.loads(line)) for line in done.stdout.splitlines()]


def test_nothing_heavy_is_imported_before_the_first_flush(tmp_path):
    begun, stepped, ended = modules(tmp_path)
    assert begun.isdisjoint(LATE)
    assert stepped.isdisjoint(LATE)
    assert {"pyarrow", "tensorboard"} <= ended  # the names are right
    assert len(begun) <= MODULES


def test_nor_anything_when_steps_are_delivered_before_it(tmp_path):
    """The steps would wait for the interpreter's lock; the observer imports as it begins."""
    delivered = JOB.replace("obs = ", "observer.DELIVERED_STEPS = 0; obs = ")
    delivered = delivered.replace(
        "quiet=True)\n",
        "quiet=True)\nwhile 'numpy.ma.extras' not in sys.modules: time.sleep(0.1)\n",
    )
    delivered = delivered.replace(
        "steps(0.1)",
        "steps(0.6)\nimport gc; from trainobs.tensorboard.verdicts import Verdicts\n"
        "assert any(isinstance(one, Verdicts) for one in gc.get_objects())",  # so they were
    )
    begun, stepped, _ = modules(tmp_path, delivered)
    assert stepped == begun


def test_a_run_that_the_interpreter_ends_is_written(tmp_path):
    """What the first flush imports comes with the end of the interpreter then."""
    modules(tmp_path, JOB.replace("obs.close()", ""))
    assert len(list((tmp_path / "run" / "rank=0").glob("steps-*.parquet"))) == 1
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1


def test_a_package_that_is_missing_is_told_at_the_start(tmp_path):
    job = """
import sys
from importlib.machinery import PathFinder
class Finder:
    def find_spec(self, name, path=None, target=None):
        return None if name == "pyarrow" else PathFinder.find_spec(name, path, target)
sys.meta_path = [Finder() if finder is PathFinder else finder for finder in sys.meta_path]
from trainobs import observe
observe(run_dir=sys.argv[1], probes="off")
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", job, tmp_path / "run"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stderr.splitlines()[-3:] == [
        "trainobs.core.errors.MissingPackageError: A run cannot be recorded here.",
        "  found: no package pyarrow",
        "  do:    pip install pyarrow",
    ]
    assert not (tmp_path / "run").exists()
