"""A training run on a machine with a GPU, or without one."""

from __future__ import annotations

import json
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.gpu.machine import Call, uuid
from trainobs.core.catalogue.gpu import AMOUNTS, LEVELS

READ = [metric.name for metric in (*LEVELS, *AMOUNTS)]


def columns(run_dir: str) -> dict[str, np.ndarray]:
    """All numbers of a run, but those of the set-up."""
    table = pq.read_table(next(Path(run_dir).glob("rank=0/steps-*.parquet"))).slice(1)
    numbers = [
        n for n in table.column_names if n.startswith(("gpu/", "step/", "phase/", "start_ns"))
    ]
    return {name: table[name].to_numpy(zero_copy_only=False).astype(float) for name in numbers}


def sampled(calls: list[Call]) -> list[int]:
    """When samples were taken, CLOCK_MONOTONIC."""
    return [call.at_ns for call in calls if call.name == "nvmlGpmSampleGet"]


def between(table: dict[str, np.ndarray], begin_ns: int, end_ns: int) -> np.ndarray:
    """Which steps lie between two moments; five of them at least."""
    ends = table["start_ns"] + table["step/duration_ns"]
    found = (table["start_ns"] >= begin_ns) & (ends <= end_ns)
    assert found.sum() >= 5
    return found


@pytest.fixture(scope="module")
def trained(library, tmp_path_factory):
    """A run of three seconds, and the calls that the library got."""
    from tests.gpu.machine import Machine

    machine = Machine(library, tmp_path_factory.mktemp("machine"))
    result = machine.run("train", machine.folder / "run", 3.5)
    return result, columns(result["run_dir"]), machine.calls()


def test_steps_have_what_was_read_while_they_ran(trained):
    _, table, calls = trained
    samples = sampled(calls)
    late = between(table, samples[1], samples[2])
    assert set(table["gpu/sm_active_ratio"][late]) == {0.875}
    assert set(table["gpu/sm_clock_mhz"][late]) == {1755}
    # It ends with the calls after the sample.
    assert table["gpu/window_ns"][late] == pytest.approx(samples[2] - samples[1], rel=0.1)
    assert table["gpu/power_w"][late] == pytest.approx(612, rel=0.25)
    seconds = table["step/duration_ns"][late] / 1e9
    assert table["gpu/pcie_received_bytes"][late] == pytest.approx(seconds * 3000 * 2**20)
    power = table["gpu/power_w"][late]
    assert table["gpu/energy_mj"][late] == pytest.approx(power * 1000 * seconds, rel=0.001, abs=1)


def test_a_step_waits_for_the_reading_of_its_time(trained):
    """So a step in the first window has it, though it was over long before the window."""
    _, table, calls = trained
    samples = sampled(calls)
    known = np.isfinite(table["gpu/sm_active_ratio"])
    assert known[between(table, samples[0], samples[-1])].all()


def test_phases_are_timed_on_the_gpu_too(trained):
    """Here by a GPU that is never behind: see tests/hooks/test_events.py for one that is."""
    _, table, _ = trained
    on_gpu, on_host = table["gpu/forward_ns"][1:], table["phase/forward_ns"][1:]
    assert np.isfinite(on_gpu[:-1]).all()
    assert np.nanmedian(on_gpu) == pytest.approx(np.median(on_host), rel=0.02)
    assert np.isnan(table["gpu/backward_ns"]).all()


def test_the_run_log_names_the_device(trained):
    result, _, _ = trained
    assert result["run"]["gpu"]["uuid"] == uuid(0)
    assert result["run"]["gpu"]["gpm"] == "on"


def test_no_call_is_made_by_the_training_thread_and_all_by_one(trained):
    result, _, calls = trained
    threads = {call.tid for call in calls}
    assert len(threads) == 1
    assert result["main"] not in threads


def test_nothing_is_read_more_often_than_said(trained):
    _, _, calls = trained
    samples = sampled(calls)
    assert len(samples) >= 3
    assert min(b - a for a, b in pairwise(samples)) >= 900_000_000
    assert len(calls) < 15 * len(samples)
    forbidden = {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPcieThroughput"}
    assert not forbidden & {call.name for call in calls}


def test_without_nvml_the_columns_are_null_and_nothing_is_said(machine):
    result = machine.run("train", machine.folder / "run", 1.0, LD_LIBRARY_PATH="")
    table = columns(result["run_dir"])
    assert all(np.isnan(table[name]).all() for name in READ)
    assert np.isfinite(table["step/duration_ns"]).all()
    assert result["run"]["gpu"]["gpm"].startswith("NVML: ")
    assert machine.calls() == []


def test_a_run_that_uses_no_gpu_starts_no_thread_and_asks_no_driver(machine):
    result = machine.run("train_on_cpu", machine.folder / "run")
    assert result["threads"] == ["MainThread", "trainobs"]
    assert machine.calls() == []
    run = json.loads(Path(result["run_dir"], "run.json").read_text())
    assert run["gpu"] == {}


def test_each_rank_of_a_node_has_its_own_device_in_its_own_record(machine_of):
    machine = machine_of(2)
    machine.set(1, gpm__2=25)
    jobs = [
        machine.start("train", machine.folder / "run", 4, rank, RANK=str(rank), WORLD_SIZE="2")
        for rank in (0, 1)
    ]
    ended = [job.communicate() for job in jobs]
    assert [job.returncode for job in jobs] == [0, 0], ended
    turns = [tid for tid, _ in groupby(call.tid for call in machine.calls())]
    assert len(turns) <= 2, "one polls at a time; the other takes over if it ends first"
    for rank, active in ((0, 0.875), (1, 0.25)):
        folder = machine.folder / "run"
        table = pq.read_table(folder / f"rank={rank}" / "steps-00000.parquet")
        values = set(table["gpu/sm_active_ratio"].drop_null().to_pylist())
        assert values == {active}
        file = folder / ("run.json" if rank == 0 else "rank=1/rank.json")
        assert json.loads(file.read_text())["gpu"]["uuid"] == uuid(rank)


@pytest.mark.needs_bpf
def test_the_probes_do_not_count_the_thread_that_reads_the_gpu(machine):
    """The stand-in opens files at each call, and nothing else in this loop does."""
    result, _ = machine.hear("train", machine.folder / "run", 2.5, 0, "auto")
    assert len(machine.calls()) > 20
    table = pq.read_table(next(Path(result["run_dir"]).glob("rank=0/kernel-*.parquet"))).to_pylist()
    opened = [row for row in table if row["op"] == "open" and row["step"] is not None]
    assert {row["role"] for row in opened} <= {"main"}


def test_a_forked_child_does_not_keep_the_name_of_the_poller(machine):
    assert machine.run("fork_and_outlive", machine.folder / "run") == {"free": True}
