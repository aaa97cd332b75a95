"""Bytes of a real job on gloo: of each collective, and to and from each rank."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import needs, warm
from tests.integrations.gloo_job import METRICS, NUMBERS, PARAMETERS
from trainobs.analysis.io.files import files_read
from trainobs.analysis.summary import summarize
from trainobs.report import io_text
from trainobs.runlog.reader import RunLog

JOB = Path(__file__).with_name("gloo_job.py")
RANKS, STEPS = 3, 12
KNOWN = STEPS - 1
"""Steps of which all collectives are known."""
HEADER_BYTES = 48
"""Of a message of gloo: gloo/transport/tcp/pair.h."""

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.needs_program("tobs_send"),
    pytest.mark.needs_program("tobs_receive"),
]


def run_of(loop: str, directory: Path) -> RunLog:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, JOB, loop, directory, *map(str, (RANKS, STEPS))]
    done = warm.run(command, env=environment)
    assert done.returncode == 0, done.stderr
    return RunLog.open(directory / "run")


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    return run_of("ddp", tmp_path_factory.mktemp("ddp"))


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    return run_of("sums", tmp_path_factory.mktemp("sums"))


def io_of(run: RunLog, rank: int) -> dict[str, Any]:
    io = files_read(run, run.ranks[rank], None)
    assert io is not None
    return io


def collectives(run: RunLog, rank: int) -> tuple[dict[str, Any], dict[str, dict[str, int]]]:
    """The collectives of a rank, and those of each kind."""
    found = io_of(run, rank)["collectives"]
    assert (found["steps"], found["of_steps"]) == (KNOWN, STEPS)
    return found, {one.pop("kind"): one for one in found["kinds"]}


def peers(run: RunLog, rank: int) -> dict[int | None, dict[str, Any]]:
    return {one["rank"]: one for one in io_of(run, rank)["peers"]}


@needs.recorder
@pytest.mark.parametrize("rank", range(RANKS))
def test_each_kind_has_the_bytes_of_its_tensors(ddp: RunLog, rank: int) -> None:
    _, kinds = collectives(ddp, rank)
    gradients, shown = 4 * PARAMETERS * KNOWN, 8 * METRICS * KNOWN
    kinds.pop("broadcast")  # with which DDP agrees on its buckets
    assert kinds == {
        "all_reduce": {"count": KNOWN, "input_bytes": gradients, "output_bytes": gradients},
        "all_gather": {"count": KNOWN, "input_bytes": shown, "output_bytes": RANKS * shown},
        "barrier": {"count": KNOWN, "input_bytes": 0, "output_bytes": 0},
    }


@needs.recorder
@pytest.mark.parametrize("rank", range(RANKS))
def test_sockets_have_what_the_algorithms_of_gloo_send(ddp: RunLog, rank: int) -> None:
    """A ring passes all of a tensor around twice to add it up, once to gather; a root sends each.

    Beside that there are messages without a tensor, and a header before each: 48 bytes.
    """
    found, kinds = collectives(ddp, rank)
    around = RANKS - 1
    needed = 2 * around * kinds["all_reduce"]["input_bytes"] // RANKS
    needed += around * kinds["all_gather"]["input_bytes"]
    needed += around * kinds["broadcast"]["input_bytes"] if rank == 0 else 0
    headers, rest = divmod(found["sent_bytes"] - needed, HEADER_BYTES)
    assert rest == 0
    assert 0 < headers < 100 * KNOWN
    assert found["received_bytes"] == pytest.approx(found["sent_bytes"], rel=0.01)


@needs.recorder
def test_the_report_tells_of_them(ddp: RunLog) -> None:
    text = io_text.render(summarize(ddp))
    lines = text.partition("Collectives in a step")[2].splitlines()
    assert lines[1].split() == ["all_reduce", "1.00", "360", "kB", "360", "kB"]
    assert f"means of {KNOWN} of {STEPS} steps" in " ".join(map(str.strip, lines))


def test_each_rank_is_named_and_nobody_else(sums: RunLog) -> None:
    for rank in range(RANKS):
        assert peers(sums, rank).keys() == set(range(RANKS)) - {rank}


def test_what_one_sent_the_other_received(sums: RunLog) -> None:
    sent = {(a, b): one["sent_bytes"] for a in range(RANKS) for b, one in peers(sums, a).items()}
    got = {(b, a): one["received_bytes"] for a in range(RANKS) for b, one in peers(sums, a).items()}
    assert sent == got
    assert all(sent.values())


def test_peers_add_up_to_the_network_of_the_rank(sums: RunLog) -> None:
    for rank in range(RANKS):
        assert not [text for text in io_of(sums, rank)["unknown"] if "peer" in text]
        for way in ("sent", "received"):
            total = sums.ranks[rank].metric(f"net/{way}_bytes").sum()
            assert sum(one[f"{way}_bytes"] for one in peers(sums, rank).values()) == total


def test_collectives_count_in_the_phase_that_waits_for_them(sums: RunLog) -> None:
    """To add up n bytes over r ranks takes 2 (r - 1) n, sent and received."""
    needed = 2 * 2 * (RANKS - 1) * 4 * NUMBERS * STEPS
    phases = [one["phases"] for rank in range(RANKS) for one in peers(sums, rank).values()]
    backward = sum(one.get("backward", 0) for one in phases)
    everything = sum(sum(one.values()) for one in phases)
    assert needed < everything < 1.02 * needed
    assert 0.95 * needed < backward <= everything
