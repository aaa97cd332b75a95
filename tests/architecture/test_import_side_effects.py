"""Importing trainobs does nothing but define names."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

from tests.architecture.rooms import ROOMS, SOURCE, modules

# Runs in a fresh interpreter. What other packages do when imported is theirs, so they come first.
PROBE = """
import importlib, json, os, signal, sys, threading, warnings

def state():
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "environment": dict(os.environ),
        "directory": os.getcwd(),
        "signal handlers": [str(signal.getsignal(s)) for s in signal.valid_signals()],
        "warning filters": [str(f) for f in warnings.filters],
        "path": list(sys.path),
        "hooks": [str(sys.excepthook), str(threading.excepthook)],
    }

packages, modules = json.loads(sys.argv[1])
for name in packages:
    importlib.import_module(name)
effects = []
for name in modules:
    before = state()
    importlib.import_module(name)
    after = state()
    effects += [f"{name}: {what}" for what in before if before[what] != after[what]]
print(json.dumps([effects, sorted(sys.modules)]))
"""


def import_afresh(*names: str, after: tuple[str, ...] = ()) -> tuple[list[str], set[str]]:
    """Effects of importing `names` in turn, and all modules that are loaded in the end."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps([after, names])],
        capture_output=True,
        text=True,
        check=True,
    )
    effects, loaded = json.loads(done.stdout.splitlines()[-1])
    return effects, set(loaded)


def test_importing_every_module_changes_nothing_in_the_process():
    named = {package for room in ROOMS.values() for package in room.packages.split()}
    packages = {package for package in named if find_spec(package)}  # ray is for few
    ours = [name for name in modules(SOURCE) if not name.endswith("__main__")]
    packages.add("transformers.trainer_callback")  # that one imports its parts when asked for
    effects, loaded = import_afresh(*ours, after=tuple(sorted(packages)))
    assert effects == []
    assert set(ours) <= loaded


def test_an_effect_would_be_seen(tmp_path, monkeypatch):
    (tmp_path / "rude.py").write_text(
        "import os, threading, time\n"
        "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "os.environ['TOBS'] = '1'\n"
        "file = open(os.devnull)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    effects, _ = import_afresh("rude")
    assert effects == ["rude: threads", "rude: descriptors", "rude: environment"]


def test_the_package_alone_loads_nothing_heavy():
    _, loaded = import_afresh("trainobs")
    heavy = {package for room in ROOMS.values() for package in room.packages.split()}
    assert loaded & heavy == set()
