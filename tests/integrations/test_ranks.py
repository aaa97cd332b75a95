"""Two ranks on gloo: each has its record, and the slow one is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.integrations.models import DURATION, step_numbers, told_by_trainobs
from tests.session.jobs import TWO_RANKS, Job, end_of_two_ranks
from trainobs.analysis.summary import summarize
from trainobs.core.catalogue import METRICS
from trainobs.core.catalogue.ranks import COMPARED, over_ranks
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog

JOB = Path(__file__).with_name("ranks_job.py")
STEPS = 16
SLOW_S = 0.2
SHORT_STEPS = 800


def said_by(ended: tuple[int, list[str], str]) -> list[str]:
    """What two ranks said, in their order."""
    status, lines, errors = ended
    assert status == 0, errors
    assert told_by_trainobs(errors) == []
    return sorted(line for line in lines if line.startswith("rank "))


def torchrun(*arguments: object) -> list[str]:
    """What two ranks said that torchrun started."""
    return said_by(Job(*TWO_RANKS, JOB, *arguments).end())


def two_ranks(*arguments: object, **variables: object) -> list[str]:
    """The same of two that have torch as they begin."""
    return said_by(end_of_two_ranks(JOB, *arguments, **variables))


class Jobs:
    """Jobs that have run, by kind and slow rank (-1: none)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.said: dict[tuple[str, int], list[str]] = {}

    def __call__(self, kind: str, slow_rank: int) -> Path:
        directory = self._directory / f"{kind}{slow_rank}"
        if (kind, slow_rank) not in self.said:
            start = torchrun if slow_rank < 0 else two_ranks
            self.said[kind, slow_rank] = start(kind, directory, STEPS, slow_rank, SLOW_S)
        return directory / "run"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """The run directory of a job of some kind."""
    return Jobs(tmp_path_factory.mktemp("ranks"))


KINDS = ["ddp", "fsdp2"]


@pytest.mark.parametrize(("kind", "slow_rank"), [("ddp", 1), ("fsdp2", 0)])
def test_a_rank_slow_in_backward_is_found_though_backward_takes_as_long_on_all(
    run, kind, slow_rank
):
    summary = summarize(RunLog.open(run(kind, slow_rank)))
    found, ranks = summary["straggler"], summary["ranks"]
    assert (found["by"], found["rank"]) == ("arrival", slow_rank)
    assert found["held_up_ns"] == pytest.approx(SLOW_S * 1e9, rel=0.25)
    assert found["most_ratio"] > 0.8
    backward = [ranks[rank]["backward_ns"] for rank in (0, 1)]
    assert backward[0] == pytest.approx(backward[1], rel=0.1)
    assert min(backward) > SLOW_S * 1e9
    assert f"STRAGGLER: rank {slow_rank} makes the others wait" in render(summary)


@pytest.mark.parametrize("kind", KINDS)
def test_where_all_ranks_are_equally_slow_none_is_found(run, kind):
    summary = summarize(RunLog.open(run(kind, -1)))
    assert summary["straggler"]["known"]
    assert summary["straggler"]["rank"] is None
    assert summary["straggler"]["steps"] >= STEPS - 4
    assert "  no straggler" in render(summary)


@pytest.mark.parametrize(("slow_rank", "slow_s", "found"), [(-1, 0.0, None), (1, 0.003, 1)])
def test_of_short_steps_chance_makes_no_straggler_and_a_late_rank_is_found(
    tmp_path, slow_rank, slow_s, found
):
    """Steps of 1 to 2 ms on two CPUs; what other work does to them hits now one rank, now both."""
    two_ranks("ddp", tmp_path, SHORT_STEPS, slow_rank, slow_s)
    straggler = summarize(RunLog.open(tmp_path / "run"))["straggler"]
    assert (straggler["by"], straggler["rank"]) == ("arrival", found)
    assert straggler["steps"] > SHORT_STEPS / 4


@pytest.mark.needs_bpf
def test_the_kernel_tells_the_same_by_who_waits(run):
    ranks = summarize(RunLog.open(run("ddp", 1)))["ranks"]
    assert ranks[0]["wait_ns"] == pytest.approx(SLOW_S * 1e9, rel=0.25)
    assert ranks[1]["wait_ns"] < 0.05e9


@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_has_its_record(run, kind):
    for rank in (0, 1):
        assert step_numbers(run(kind, -1), rank) == list(range(STEPS))


def test_rank_0s_tensorboard_shows_least_median_and_greatest_at_the_same_x(run):
    events = EventAccumulator(str(run("ddp", 1) / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    ends = [3, 7, 11, 15]
    assert [p.step for p in events.Scalars(DURATION)] == list(range(STEPS))
    names = (
        COMPARED
        if METRICS["sched/main_await_ns"].tag.name in events.Tags()["scalars"]
        else COMPARED[:-1]
    )
    values = {}
    for name in names:
        for what in ("min", "median", "max"):
            points = events.Scalars(f"{over_ranks(METRICS[name].tag.name)}/{what}")
            assert [point.step for point in points] == ends
            values[name, what] = [point.value for point in points]
    for name in names:
        least, middle, greatest = (values[name, what] for what in ("min", "median", "max"))
        means = [(a + b) / 2 for a, b in zip(least, greatest, strict=True)]
        assert middle == pytest.approx(means, rel=1e-5)
    # A rank that is not slow waits for the other in each step, if not for the same one.
    assert min(values["step/duration_ns", "min"]) > 0.9 * SLOW_S * 1e3
    if names == COMPARED:
        assert max(values["ranks/wait_ns", "min"][1:]) < 50
        assert min(values["ranks/wait_ns", "max"][1:]) > 150


@pytest.mark.parametrize("kind", KINDS)
def test_no_collective_is_added_and_the_weights_are_the_same(run, tmp_path, kind):
    run(kind, -1)
    plain = two_ranks(kind, tmp_path, STEPS, -1, SLOW_S, TRAINOBS="off")
    assert run.said[kind, -1] == plain
    assert len(plain) == 2


def test_without_torchs_record_it_is_told_by_who_waits_or_not_at_all(tmp_path):
    two_ranks("ddp", tmp_path, STEPS, 1, SLOW_S, TORCH_FR_BUFFER_SIZE="0")
    summary = summarize(RunLog.open(tmp_path / "run"))
    if summary["ranks"][0]["wait_ns"] is None:
        assert not summary["straggler"]["known"]
    else:
        assert (summary["straggler"]["by"], summary["straggler"]["rank"]) == ("waiting", 1)
