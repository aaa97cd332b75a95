"""Collectives of a DDP job on gloo: what they were given, and what had to be sent for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.collectives_job import METRICS, PARAMETERS
from trainobs.analysis.io_numbers import files_read
from trainobs.analysis.summary import summarize
from trainobs.report import io_text
from trainobs.runlog.reader import RunLog

JOB = Path(__file__).with_name("collectives_job.py")
RANKS, STEPS = 3, 12
KNOWN = STEPS - 1
HEADER_BYTES = 48
"""Of a message of gloo: gloo/transport/tcp/pair.h."""

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.needs_program("tobs_send"),
    pytest.mark.needs_program("tobs_receive"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    directory = tmp_path_factory.mktemp("collectives")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", str(JOB), str(directory), str(STEPS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return RunLog.open(directory / "run")


def of_rank(run: RunLog, rank: int) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """The collectives of a rank, and those of each kind."""
    io = files_read(run, run.ranks[rank])
    assert io is not None
    found = io["collectives"]
    assert (found["steps"], found["of_steps"]) == (KNOWN, STEPS)
    return found, {one.pop("kind"): one for one in found["kinds"]}


@pytest.mark.parametrize("rank", range(RANKS))
def test_each_kind_has_the_bytes_of_its_tensors(run: RunLog, rank: int) -> None:
    _, kinds = of_rank(run, rank)
    gradients, shown = 4 * PARAMETERS * KNOWN, 8 * METRICS * KNOWN
    kinds.pop("broadcast")  # with which DDP agrees on its buckets
    assert kinds == {
        "all_reduce": {"count": KNOWN, "input_bytes": gradients, "output_bytes": gradients},
        "all_gather": {"count": KNOWN, "input_bytes": shown, "output_bytes": RANKS * shown},
        "barrier": {"count": KNOWN, "input_bytes": 0, "output_bytes": 0},
    }


@pytest.mark.parametrize("rank", range(RANKS))
def test_sockets_have_what_the_algorithms_of_gloo_send(run: RunLog, rank: int) -> None:
    """A ring passes all of a tensor around twice to add it up, once to gather; a root sends each.

    Beside that there are messages without a tensor, and a header before each: 48 bytes.
    """
    found, kinds = of_rank(run, rank)
    around = RANKS - 1
    needed = 2 * around * kinds["all_reduce"]["input_bytes"] // RANKS
    needed += around * kinds["all_gather"]["input_bytes"]
    needed += around * kinds["broadcast"]["input_bytes"] if rank == 0 else 0
    headers, rest = divmod(found["sent_bytes"] - needed, HEADER_BYTES)
    assert rest == 0
    assert 0 < headers < 100 * KNOWN
    assert found["received_bytes"] == pytest.approx(found["sent_bytes"], rel=0.01)


def test_the_report_tells_of_them(run: RunLog) -> None:
    text = io_text.render(summarize(run))
    lines = text.partition("Collectives in a step")[2].splitlines()
    assert lines[1].split() == ["all_reduce", "1.00", "360", "kB", "360", "kB"]
    assert f"means of {KNOWN} of {STEPS} steps" in " ".join(map(str.strip, lines))
