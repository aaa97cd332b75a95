"""What `make bench` measures can be measured: its cases run on what trainobs is now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


@pytest.mark.needs_bpf
@pytest.mark.parametrize("case", ["hot_path", "lookups"])
def test_a_case_that_takes_objects_of_ours_runs(case):
    command = [sys.executable, str(RUN), "--quick", "--only", case]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{case} ...\n{{")
