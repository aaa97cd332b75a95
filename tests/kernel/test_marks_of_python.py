"""The marks (USDT) that a Python has in its code, counted by a user's program, step by step."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trainobs.core.abi import Role
from trainobs.core.own_counter import of_role
from trainobs.core.records import SETUP
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

STEPS = 40
PYTHON = Path(f"/usr/bin/python3.{sys.version_info.minor}")
"""Debian builds it with marks, most others without."""

SOURCE = f"""
#include "trainobs_probe.h"
#include <bpf/usdt.bpf.h>
TRAINOBS_COUNTER(0, "collections", "times");
TRAINOBS_VALUE(0, "generations", "generations");
SEC("usdt/{PYTHON}:python:gc__start")
int BPF_USDT(tobs_own_gc, long generation)
{{
    trainobs_add(0, 1, generation);
    return 0;
}}
"""

JOB = f"""
import gc, sys
sys.path += {sys.path!r}
from trainobs import Probe, observe
gc.disable()
with observe(run_dir=sys.argv[2], probes=["auto", Probe(sys.argv[1])], quiet=True) as obs:
    for step in range({STEPS}):
        with obs.step():
            for _ in range(step % 4):
                gc.collect(2)
"""


@pytest.fixture
def python() -> str:
    """A Python of this version with marks."""
    notes = ["readelf", "--notes", str(PYTHON)]
    if (
        not PYTHON.exists()
        or "gc__start"
        not in subprocess.run(notes, capture_output=True, text=True, check=True).stdout
    ):
        pytest.skip(f"{PYTHON} has no marks")
    return str(PYTHON)


def test_each_collection_is_counted_to_its_step(python: str, tmp_path: Path) -> None:
    (tmp_path / "gc.c").write_text(SOURCE)
    words = [python, "-c", JOB, str(tmp_path / "gc.c"), str(tmp_path / "run")]
    subprocess.run(words, check=True, timeout=300)
    log = RunLog.open(tmp_path / "run").ranks[0]
    training = log.step() != SETUP
    expected = [step % 4 for step in range(STEPS)]
    found = log.metric(of_role("probe/collections", Role.MAIN))[training]
    assert found.tolist() == expected
    found = log.metric(of_role("probe/generations", Role.MAIN))[training]
    assert found.tolist() == [2 * number for number in expected]
