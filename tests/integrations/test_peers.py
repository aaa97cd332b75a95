"""Bytes by peer of a real job on gloo: what one rank sent to another is what that one received."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import warm
from trainobs.analysis.io_numbers import files_read
from trainobs.runlog.reader import RunLog

JOB = Path(__file__).with_name("peers_job.py")
RANKS, STEPS, NUMBERS = 3, 5, 30_000

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.needs_program("tobs_send"),
    pytest.mark.needs_program("tobs_receive"),
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    directory = tmp_path_factory.mktemp("peers")
    arguments = [JOB, directory, *map(str, (RANKS, STEPS, NUMBERS))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = warm.run([sys.executable, *arguments], env=environment)
    assert done.returncode == 0, done.stderr
    return RunLog.open(directory / "run")


def peers(run: RunLog, rank: int) -> dict[int | None, dict[str, Any]]:
    io = files_read(run, run.ranks[rank])
    assert io is not None
    assert io["unknown"] == []
    return {one["rank"]: one for one in io["peers"]}


def test_each_rank_is_named_and_nobody_else(run: RunLog) -> None:
    for rank in range(RANKS):
        assert peers(run, rank).keys() == set(range(RANKS)) - {rank}


def test_what_one_sent_the_other_received(run: RunLog) -> None:
    sent = {(a, b): one["sent_bytes"] for a in range(RANKS) for b, one in peers(run, a).items()}
    got = {(b, a): one["received_bytes"] for a in range(RANKS) for b, one in peers(run, a).items()}
    assert sent == got
    assert all(sent.values())


def test_peers_add_up_to_the_network_of_the_rank(run: RunLog) -> None:
    for rank in range(RANKS):
        for way in ("sent", "received"):
            total = run.ranks[rank].metric(f"net/{way}_bytes").sum()
            assert sum(one[f"{way}_bytes"] for one in peers(run, rank).values()) == total


def test_collectives_count_in_the_phase_that_waits_for_them(run: RunLog) -> None:
    """To add up n bytes over r ranks takes 2 (r - 1) n, sent and received."""
    needed = 2 * 2 * (RANKS - 1) * 4 * NUMBERS * STEPS
    phases = [one["phases"] for rank in range(RANKS) for one in peers(run, rank).values()]
    backward = sum(one.get("backward", 0) for one in phases)
    everything = sum(sum(one.values()) for one in phases)
    assert needed < everything < 1.02 * needed
    assert 0.95 * needed < backward <= everything
