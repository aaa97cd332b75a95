"""Collectives of the steps of which all are known, and nothing of the others."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.samples import batch, info
from trainobs.analysis.ranks.collectives import collectives_of
from trainobs.core.collectives import Collective
from trainobs.core.records import SETUP, UNKNOWN
from trainobs.runlog.arrivals import ALL, BLOCK, ArrivalsSink
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink

SECOND = 10**9
REDUCE = Collective.ALL_REDUCE, 100, 100
GATHER = Collective.ALL_GATHER, 10, 30


def logged(path: Path, steps: int, rows: Iterable[tuple[int, ...]]) -> RankLog:
    """A rank of steps of one second, each of which sent 1000 bytes; a row has its second."""
    table = batch(range(-1, steps), net__sent_bytes=[1000.0] * (steps + 1))
    assert SETUP == -1
    log = RunLogSink(path / "run")
    log.begin(info())
    log.write(table)
    log.end({})
    start = 2 * SECOND + SECOND  # of step 0: see `samples.batch`
    every = [(group, seq, start + int(at * SECOND), *of) for group, seq, at, *of in rows]
    ArrivalsSink(path / "run", 0, lambda is_last: every).end({})
    return RunLog.open(path / "run").ranks[0]


def two_a_step(steps: int) -> list[tuple[Any, ...]]:
    """Two collectives in each step, after two in the set-up."""
    return [
        (0, 2 * step + number, step - 1 + 0.4 * (number + 1), *(GATHER if number else REDUCE))
        for step in range(steps + 1)
        for number in (0, 1)
    ]


def test_each_kind_is_summed_over_the_known_steps(tmp_path: Path) -> None:
    found = collectives_of(logged(tmp_path, 5, two_a_step(5)))
    assert found == {
        "steps": 4,
        "of_steps": 5,
        "kinds": [
            {"kind": "all_reduce", "count": 4, "input_bytes": 400, "output_bytes": 400},
            {"kind": "all_gather", "count": 4, "input_bytes": 40, "output_bytes": 120},
        ],
        "sent_bytes": 4000,
        "received_bytes": None,
    }


def steps_known(path: Path, steps: int, rows: Iterable[tuple[Any, ...]]) -> int:
    found = collectives_of(logged(path, steps, rows))
    return found["steps"] if found else 0


@pytest.mark.parametrize(
    ("lost", "known"),
    [({6}, 7), ({6, 7}, 6), ({5, 6}, 7), ({0}, 9), ({0, 1, 2}, 8), ({20, 21}, 8)],
    ids=["in a step", "a step", "over an edge", "the first", "the first steps", "the last"],
)
def test_steps_around_a_gap_are_left_out(tmp_path: Path, lost: set[int], known: int) -> None:
    """Of ten steps the last is never known; what is lost may belong to the step of a neighbour."""
    rows = [row for row in two_a_step(10) if row[1] not in lost]
    assert steps_known(tmp_path, 10, rows) == known


def test_each_group_has_numbers_of_its_own(tmp_path: Path) -> None:
    """A group that is used now and then makes no step unknown, but where it has a gap."""
    now_and_then = [(1, 0, 1.5, *REDUCE), (1, 1, 6.5, *REDUCE), (1, 3, 7.5, *REDUCE)]
    assert steps_known(tmp_path, 10, [*two_a_step(10), *now_and_then]) == 7


def test_a_long_run_knows_the_steps_of_the_blocks_that_it_keeps(tmp_path: Path) -> None:
    steps = (ALL + 9 * BLOCK) // 2
    known = steps_known(tmp_path, steps, two_a_step(steps))
    # The first of two a step is in the set-up; each stretch that is kept ends in an unknown step.
    assert known == ((ALL + BLOCK) // 2 - 2) + (BLOCK // 2 - 2)


def test_what_torch_does_not_tell_is_unknown(tmp_path: Path) -> None:
    rows = [(*row[:4], UNKNOWN, 7) if row[1] == 4 else row for row in two_a_step(5)]
    found = collectives_of(logged(tmp_path, 5, rows))
    assert found is not None
    assert found["kinds"][0] | {"kind": ""} == {
        **{"kind": "", "count": 4},
        **{"input_bytes": 40, "output_bytes": 120},
    }
    assert found["kinds"][1]["input_bytes"] is None
    assert found["kinds"][1]["output_bytes"] == 307


def test_without_a_record_nothing_is_known(tmp_path: Path) -> None:
    assert collectives_of(logged(tmp_path, 5, [])) is None


def test_a_record_of_a_version_without_kinds_tells_nothing() -> None:
    old = Path(__file__).parents[1] / "runlog" / "old"
    assert collectives_of(RunLog.open(old).ranks[0]) is None
