"""What hot rows served over a run, by numbers worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.samples import USER, batch, info
from trainobs.access import AccessCounts
from trainobs.analysis.summary import summarize
from trainobs.core.records import SETUP
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import counts_file
from trainobs.runlog.writer import RunLogSink

STEPS = 160
HOT_BYTES = 640  # ten rows of the table


def summary_of(
    path: Path,
    hot: np.ndarray[Any, Any],
    counts: AccessCounts | None = None,
    world_size: int = 1,
    **others: np.ndarray[Any, Any],
) -> Any:
    """A run whose steps look up 100 rows each, of which so many were hot; 80 were expected."""
    steps = len(hot)
    columns = {
        "fae__lookup_count": np.full(steps, 100.0),
        "fae__hot_lookup_count": hot,
        "fae__expected_hot_count": np.full(steps, 80.0),
        "fae__hot_bytes": np.full(steps, float(HOT_BYTES)),
        **{f"fae__{name}": np.ones(steps) for name in ("input_count", "saved_bytes", "sync_ns")},
        "step__duration_ns": np.full(steps, 1e9),
        **others,
    }
    sink = RunLogSink(path, 0)
    facts = info(
        tables=(USER,), world_size=world_size, capabilities={"embeddings": "on", "hot_rows": "on"}
    )
    sink.begin(facts)
    before = {name: [0.0] for name in columns}
    sink.write(batch([SETUP], **before))
    sink.write(batch(range(steps), **columns))
    sink.end({"outcome": "ok"})
    if counts is not None:
        counts_file(path, 0).parent.mkdir()
        counts.save(counts_file(path, 0))
    return summarize(RunLog.open(path))


def test_the_run_is_told_in_parts_of_equal_numbers_of_steps(tmp_path: Path) -> None:
    hot = np.repeat([80.0, 60.0, 40.0, 20.0], STEPS // 4)
    summary = summary_of(tmp_path / "run", hot)
    parts = summary["hot_rows"]["parts"]
    assert [part["hot_lookup_ratio"] for part in parts] == [0.8, 0.8, 0.6, 0.6, 0.4, 0.4, 0.2, 0.2]
    assert [part["drift_ratio"] for part in parts] == pytest.approx(
        [0, 0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75]
    )
    assert (parts[0]["first_step"], parts[-1]["last_step"]) == (0, STEPS - 1)
    page = " ".join(render(summary).split())
    assert "from step 0 to 159: 80 %, 80 %, 60 %, 60 %, 40 %, 40 %, 20 %, 20 %" in page
    assert summary["hot_rows"]["at_most_ratio"] is None
    assert "at most" not in page


def test_a_part_has_enough_steps_to_mean_something(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "run", np.array([100.0] * 10 + [0.0] * 20))
    (part,) = summary["hot_rows"]["parts"]
    assert part["hot_lookup_ratio"] == pytest.approx(1 / 3)
    assert "from step" not in render(summary)


def test_what_other_rows_would_serve_is_that_of_the_runs_own_counts(tmp_path: Path) -> None:
    counts = AccessCounts({"user": 1000}, seed=0)
    ids = np.repeat(np.arange(1000), np.where(np.arange(1000) < 10, 99, 1))
    counts.add("user", ids)
    summary = summary_of(tmp_path / "run", np.full(STEPS, 20.0), counts)
    most = 10 * 99 / (10 * 99 + 990)
    assert summary["hot_rows"]["at_most_ratio"] == pytest.approx(most)
    assert "50 % at most of those counted by row, had the rows" in " ".join(render(summary).split())


@pytest.mark.parametrize(
    ("all_bytes", "most"), [(HOT_BYTES, 0.5), (2 * HOT_BYTES, 0.5 + 10 / 1980)]
)
def test_rows_that_each_rank_has_are_not_taken_for_others(
    tmp_path: Path, all_bytes: int, most: float
) -> None:
    """Two ranks with ten rows each: the same ones, or twenty."""
    counts = AccessCounts({"user": 1000}, seed=0)
    counts.add("user", np.repeat(np.arange(1000), np.where(np.arange(1000) < 10, 99, 1)))
    held = {"fae__all_hot_bytes": np.full(STEPS, float(all_bytes))}
    hot = np.full(STEPS, 20.0)
    summary = summary_of(tmp_path / "run", hot, counts, world_size=2, **held)
    assert summary["hot_rows"]["at_most_ratio"] == pytest.approx(most)
    older = summary_of(tmp_path / "older", hot, counts, world_size=2)
    assert older["hot_rows"]["at_most_ratio"] is None


def test_what_hot_rows_take_is_told_before_and_after_others_took_their_place(
    tmp_path: Path,
) -> None:
    held = np.repeat([640.0, 1280.0], STEPS // 2)
    summary = summary_of(tmp_path / "run", np.full(STEPS, 80.0), fae__hot_bytes=held)
    assert summary["hot_rows"]["held"] == [
        {"first_step": 0, "bytes": 640},
        {"first_step": STEPS // 2, "bytes": 1280},
    ]
    page = " ".join(render(summary).split())
    assert "640 B on the device from step 0 1.28 kB on the device from step 80" in page


def test_what_is_unknown_of_hot_rows_is_a_dash(tmp_path: Path) -> None:
    nothing = np.full(STEPS, np.nan)
    hot = np.repeat([80.0, np.nan], STEPS // 2)
    summary = summary_of(tmp_path / "run", hot, fae__saved_bytes=nothing, fae__sync_ns=nothing)
    page = " ".join(render(summary).split())
    assert "- a step read from them, not from the tables" in page
    assert "- a step to keep them equal" in page
    assert "of the lookups, from step 0 to 159: 80 %, 80 %, 80 %, 80 %, -, -, -, -" in page
