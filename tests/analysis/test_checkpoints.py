"""What the report says of checkpoints, worked out by hand."""

from __future__ import annotations

import pytest

from tests.samples import batch, info
from trainobs.analysis.summary import summarize
from trainobs.core.records import SETUP
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink

NAN = float("nan")
SECOND = 1_000_000_000
_NO_DEVICE = "  at once, later: to block devices; what a server takes (NFS, FUSE) is in neither"


def summary_of(tmp_path, steps, **columns):
    sink = RunLogSink(tmp_path / "run")
    sink.begin(info())
    sink.write(batch(steps, step__duration_ns=[SECOND] * len(steps), **columns))
    sink.end({})
    return summarize(RunLog.open(tmp_path / "run"))


def test_each_reaches_to_the_next_and_what_is_written_back_later_is_told_apart(tmp_path):
    summary = summary_of(
        tmp_path,
        [SETUP, 0, 1, 2, 3, 4, 5],
        phase__checkpoint_ns=[0, 0, 7e6, 0, 0, 5e6, 0],
        io__checkpoint_write_bytes=[0, 0, 400, 100, 0, 300, 0],
        io__checkpoint_write_ns=[0, 0, 4e6, 1e6, 0, 3e6, 0],
        io__checkpoint_fsync_ns=[0, 0, 2e6, 0, 0, 0, 0],
        block__checkpoint_write_bytes=[0, 0, 50, 0, 450, 0, 0],
    )
    assert summary["checkpoints"] == [
        {
            "step": 1,
            "blocking_ns": 7_000_000,
            "written_bytes": 500,
            "write_ns": 5_000_000,
            "fsync_ns": 2_000_000,
            "block_bytes": 50,
            "later_block_bytes": 450,
            "until_step": 3,
            "later_ns": 2 * SECOND,
        },
        {
            "step": 4,
            "blocking_ns": 5_000_000,
            "written_bytes": 300,
            "write_ns": 3_000_000,
            "fsync_ns": 0,
            "block_bytes": 0,
            "later_block_bytes": 0,
            "until_step": None,
            "later_ns": None,
        },
    ]
    page = render(summary)
    assert "Checkpoints: 2" in page
    assert "    written back until step 3, 2 s later" in page.splitlines()
    assert _NO_DEVICE not in page


def test_what_a_server_takes_of_checkpoints_comes_to_no_block_device(tmp_path):
    summary = summary_of(
        tmp_path,
        [SETUP, 0, 1],
        phase__checkpoint_ns=[0, 7e6, 0],
        io__checkpoint_write_bytes=[0, 500, 0],
        block__checkpoint_write_bytes=[0, 0, 0],
    )
    assert _NO_DEVICE in render(summary)


def test_what_the_background_writes_of_a_checkpoint_is_unknown_and_no_0(tmp_path):
    """A thread, or a process, whose calls are none of the training thread's in that phase."""
    summary = summary_of(
        tmp_path,
        [SETUP, 0, 1, 2, 3],
        phase__checkpoint_ns=[0, 7e6, 0, 5e6, 0],
        io__checkpoint_write_bytes=[0, 0, 0, 0, 0],
        io__checkpoint_write_ns=[0, 0, 0, 0, 0],
        io__checkpoint_fsync_ns=[0, 0, 0, 0, 0],
        block__checkpoint_write_bytes=[0, 0, 0, 0, 0],
        io__write_bytes=[0, 0, 800, 0, 0],
    )
    unknown, nothing = summary["checkpoints"]  # of one of the ranks another one saves
    assert {name for name, value in unknown.items() if value is not None} == {"step", "blocking_ns"}
    assert (nothing["written_bytes"], nothing["block_bytes"]) == (0, 0)
    assert "0 B" not in next(one for one in render(summary).splitlines() if "  step 0 " in one)


def test_without_the_kernel_the_blocking_is_known_and_the_rest_is_not(tmp_path):
    summary = summary_of(tmp_path, [SETUP, 0, 1], phase__checkpoint_ns=[3e6, 0, 7e6])
    assert [one["step"] for one in summary["checkpoints"]] == [None, 1]
    assert summary["checkpoints"][1] == {
        "step": 1,
        "blocking_ns": 7_000_000,
        **dict.fromkeys(
            ("written_bytes", "write_ns", "fsync_ns", "block_bytes", "later_block_bytes")
        ),
        "until_step": None,
        "later_ns": None,
    }
    (row,) = (line for line in render(summary).splitlines() if line.startswith("  step 1"))
    assert row.split() == ["step", "1", "7", "ms", "-", "-", "-", "-"]


def test_where_nobody_marks_the_phase_the_writes_tell(tmp_path):
    columns = {"io__checkpoint_write_bytes": [0, 0, 9], "phase__checkpoint_ns": [NAN] * 3}
    (one,) = summary_of(tmp_path, [SETUP, 0, 1], **columns)["checkpoints"]
    assert (one["step"], one["blocking_ns"], one["written_bytes"]) == (1, None, 9)


@pytest.mark.parametrize("column", ["phase__checkpoint_ns", "io__checkpoint_write_bytes"])
def test_a_run_without_checkpoints_has_no_such_section(tmp_path, column):
    summary = summary_of(tmp_path, [SETUP, 0], **{column: [0, 0]})
    assert summary["checkpoints"] == []
    assert "Checkpoints" not in render(summary)


def test_of_many_the_page_shows_those_that_blocked_longest_in_order(tmp_path):
    blocking = [9e6, 1e6, 8e6, 2e6, 7e6, 6e6, 5e6]
    summary = summary_of(tmp_path, list(range(7)), phase__checkpoint_ns=blocking)
    assert len(summary["checkpoints"]) == 7
    lines = render(summary).splitlines()
    assert any(line.startswith("Checkpoints: 7, longest 5") for line in lines)
    shown = [line.split()[1] for line in lines if line.startswith("  step ")]
    assert shown == ["0", "2", "4", "5", "6"]


def test_a_step_that_enters_the_phase_and_saves_nothing_saved_none(tmp_path):
    """`with obs.phase("checkpoint"): if step % 3 == 0: save()`."""
    summary = summary_of(
        tmp_path,
        [SETUP, 0, 1, 2, 3],
        phase__checkpoint_ns=[0, 800, 7e6, 900, 5e6],
        io__checkpoint_write_bytes=[0, 0, 400, 0, 0],
    )
    assert [one["step"] for one in summary["checkpoints"]] == [1, 3], "one in the background"
