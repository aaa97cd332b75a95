"""Steps of different work: by how much, and what a comparison makes of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tests.analysis.runs import HOST, LOADER, MS, steps_of, write
from trainobs import observe
from trainobs.analysis.comparison.step_work import SAME_WORK, StepWork, work_of, work_ratio
from trainobs.analysis.comparison.two_sides import compare
from trainobs.report import comparison
from trainobs.runlog.reader import RunLog


def run_of(path, *, batches: int | None, batch_size: int | None, step_ms: float):
    """A run whose steps take so many batches of its one loader; the last of all is of another."""
    count = np.nan if batches is None else float(batches)
    table = steps_of(1, step_ms - 1, loader__batch_count=[count] * 200)
    rows = np.repeat(table.batches, batches or 1)
    rows["loader"] = 7
    rows = np.append(rows, rows[-1:])
    rows["loader"][-1], rows["for_step"][-1] = 8, -1
    loaders = [
        {**LOADER, "batch_size": 1000, "serial": 8},
        {**LOADER, "batch_size": batch_size, "serial": 7},
    ]
    table, host = replace(table, batches=rows), {**HOST, "hostname": path.name}
    return RunLog.open(write(path, table, loaders=loaders, host=host, end={}))


@pytest.mark.parametrize(
    ("a", "b", "per", "gain", "told"),
    [
        ((4, 8, 40), (1, 8, 10), "sample", 1.0, "4 batches of 8, and one of B has 1 batch of 8"),
        ((1, 32, 15), (1, 8, 10), "sample", 0.375, "1 batch of 32, and one of B has 1 batch of 8"),
        ((2, 8, 20), (1, 16, 10), "sample", 2.0, "2 batches of 8, and one of B has 1 batch of 16"),
        ((2, None, 20), (1, None, 15), "batch", 2 / 3, "2 batches, and one of B has 1 batch"),
        (
            (None, 32, 15),
            (None, 8, 10),
            "sample",
            0.375,
            "batches of 32, and one of B has batches of 8",
        ),
        ((None, 8, 20), (None, 8, 10), "step", 2.0, None),
        ((1, 8, 20), (1, 8, 10), "step", 2.0, None),
        ((1, None, 20), (1, 8, 10), "step", 2.0, None),
        ((2, None, 20), (1, 8, 10), "step", None, "2 batches, and one of B has 1 batch of 8"),
    ],
)
def test_runs_are_compared_by_what_their_steps_take(tmp_path, a, b, per, gain, told):
    old, new = (
        run_of(tmp_path / name, batches=one[0], batch_size=one[1], step_ms=one[2])
        for name, one in (("a", a), ("b", b))
    )
    found = compare([old], [new])
    assert found["per"] == per
    text = comparison.render(found)
    if gain is None:
        assert found["gain"] is None
        assert f"Whether B is faster is unknown: a step of A has {told}" in text
        return
    assert found["gain"] == pytest.approx(gain, rel=0.01)
    assert (found["work"] is None) == (told is None)
    if told:
        assert f"  a step of A has {told}: times below are those of steps." in text
    note = "how many batches a step has is not known of all runs: it is taken to be the same"
    assert (note in found["notes"]) == (a[0] is None)
    low, high = found["gain_interval"]
    assert low < gain < high
    answer = "none" if low < 1 < high else "faster" if gain > 1 else "slower"
    assert found["answer"] == answer
    if answer == "slower":
        assert f"B is slower: a {per} takes" in text


def test_runs_of_one_side_whose_steps_take_different_work_are_no_side(tmp_path):
    runs = [
        run_of(tmp_path / str(count), batches=count, batch_size=8, step_ms=10) for count in (1, 2)
    ]
    other = run_of(tmp_path / "b", batches=1, batch_size=8, step_ms=10)
    told = comparison.render(compare(runs, [other]))
    assert "unknown: a step of A has 1 batch of 8, and another has 2 batches of 8" in told


def test_without_ebpf_nobody_counts_batches(tmp_path):
    with observe(run_dir=tmp_path / "run", probes=[], quiet=True):
        list(DataLoader(torch.ones(96, 3), 4))
    assert work_of(RunLog.open(tmp_path / "run")) == StepWork(None, (4,), in_pass=24)


def test_the_last_batch_of_a_pass_may_be_smaller():
    eight, sixteen = (StepWork(1.0, (size,), in_pass=size) for size in (8, 16))
    found = work_ratio([eight], [sixteen])
    assert (found.ratio, found.off, found.unit) == (2.0, 1 / 8, "sample")
    assert work_ratio([eight, eight], [eight]) == SAME_WORK, "they lack as much"
    few = eight._replace(in_pass=2)
    told = "a step of A has 1 batch of 8, and one of B has 1 batch of 16"
    assert work_ratio([few], [sixteen]).unknown == (
        f"{told}; a pass has 2 batches, the last of which may be smaller"
    )
    one = sixteen._replace(in_pass=1)
    assert work_ratio([few], [one]).unknown.endswith("has one batch, which may be smaller")


@pytest.mark.parametrize("in_pass", [None, 1000, 10])
def test_an_interval_leaves_room_for_small_last_batches(tmp_path, in_pass):
    runs = []
    for name, size in (("a", 32), ("b", 8)):
        run = run_of(tmp_path / name, batches=1, batch_size=size, step_ms=10)
        for one in run.info["loaders"]:
            one["batches"] = in_pass
        runs.append(run)
    found = compare(runs[:1], runs[1:])
    low, high = found["gain_interval"]
    assert found["gain"] == pytest.approx(0.25)
    alone = found["these_runs"][1] / found["these_runs"][0]
    if in_pass == 10:
        assert low < 0.25 * 0.9
        assert high > 0.25 / 0.9
        assert alone > 1.2
    else:
        assert alone < 1.003


def test_a_short_last_step_of_a_pass_is_less_work(tmp_path):
    """Of 10 batches, with gradients of 4 accumulated, or of 2."""
    sides = []
    for name, counts in (("a", [4, 4, 2]), ("b", [2])):
        taken = np.resize(np.array(counts, np.float64), 200)
        table = steps_of(1, 9, loader__batch_count=taken, step__duration_ns=taken * MS)
        loaders = [{**LOADER, "batch_size": 8, "serial": 0}]
        facts = {"loaders": loaders, "host": {**HOST, "hostname": name}, "end": {}}
        sides.append(RunLog.open(write(tmp_path / name, table, **facts)))
    found = compare(sides[:1], sides[1:])
    assert found["per"] == "sample"
    assert found["gain"] == pytest.approx(1.0, rel=0.01)
    assert found["answer"] == "none"
    assert "a step of A has 3.34 batches of 8, and one of B has 2 batches of 8" in found["work"]


@pytest.mark.parametrize(("batches", "is_same"), [(100 / 101, True), (0.98, False)])
def test_runs_that_end_within_a_pass_have_equal_steps_for_all_that_is_known(batches, is_same):
    whole, other = StepWork(1.0, (8,), in_pass=1000), StepWork(batches, (8,), in_pass=1000)
    found = work_ratio([whole], [other])
    assert (found.unit == "step") == is_same
    assert found.off == pytest.approx(1 - batches if is_same else 0.001)


def test_which_loader_trains_is_not_said_where_files_of_batches_are_gone(tmp_path):
    """Else the loader of a validation would be one of the training, too."""
    run = run_of(tmp_path / "run", batches=1, batch_size=4, step_ms=10)
    assert work_of(run).told() == "1 batch of 4"
    (run.path / "rank=0" / "batches-00000.parquet").unlink()
    told = "1 batch of 4 or 1 k (not known which)"
    assert work_of(RunLog.open(run.path)).told() == told
