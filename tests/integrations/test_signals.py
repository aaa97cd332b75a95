"""What the handler of a signal raises is for the training, wherever in trainobs the signal came."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest

from tests import warm
from trainobs.runlog.reader import RunLog


@pytest.mark.parametrize("pure", ["", "1"])
@pytest.mark.parametrize("words", [["off"], ["off", "--collects"]], ids=" ".join)
def test_it_reaches_the_loop_and_the_run_goes_on(tmp_path, words, pure):
    check(tmp_path / "run", words, pure)


@pytest.mark.needs_bpf
@pytest.mark.parametrize("words", [["auto"], ["auto", "--collects"]], ids=" ".join)
def test_it_does_so_with_probes(tmp_path, words):
    check(tmp_path / "run", words, "")


def check(run, words, pure):
    done = warm.run(
        [sys.executable, "-m", "tests.integrations.signal_job", run, *words],
        timeout=240,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TRAINOBS_PURE_PYTHON": pure},
    )
    assert done.returncode == 0, done.stderr
    # A phase that was interrupted as it ended stays open, and the next pass begins inside of it.
    told = [line for line in done.stderr.splitlines() if line.startswith("trainobs")]
    assert all("does not know which step waited for which batch" in line for line in told), told
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert found["kept"] == []
    assert found["reached"] > 150
    read = RunLog.open(run)
    assert read.info["summary"]["outcome"] == "ok"
    assert np.diff(read.ranks[0].step()[-30:]).tolist() == [1] * 29  # of ten passes without
