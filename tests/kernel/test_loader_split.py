"""Why the loop waited for a batch: device, CPU, computing or hand-over, against other clocks."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.ground_truth import MIB, evict, kept_in_memory, write_file, write_files
from tests.kernel.jobs.batches import SLEEP_S
from tests.kernel.processes import run_job
from tests.kernel.runlog import RunTables
from trainobs.analysis.batches.workers import workers
from trainobs.analysis.one_step import explain
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

FILES = 16
CLOCKS_NS = 5_000_000
"""By how much clocks that are read one after the other may differ over a run."""
PARTS = ("device", "cpu_wait", "compute", "sleep", "handover")


def train(place: Path, **set_up: Any) -> RunTables:
    runs = Path(tempfile.mkdtemp(dir=place))
    run_job("batches", data=str(place / "data"), runs=str(runs), set_ups=[set_up])
    return RunTables(runs / "0")


def waits(run: RunTables) -> dict[str, int]:
    """The parts of the waits of all steps, in ns, but for the start of workers."""
    total = {part: sum(row[f"loader/{part}_ns"] for row in run.steps) for part in PARTS}
    assert sum(total.values()) == sum(row["loader/wait_ns"] for row in run.steps)
    total["handover"] -= sum(row["loader/start_stop_ns"] for row in run.steps)
    return total


def share(run: RunTables, part: str) -> float:
    total = waits(run)
    return total[part] / sum(total.values())


def of_batches(run: RunTables, column: str) -> list[int]:
    """A column of the batches in the order in which the loop got them."""
    return [row[column] for row in sorted(run.batches, key=lambda row: row["for_step"])]


def true_sums(run: RunTables) -> list[tuple[int, int, int]]:
    """For each batch: time on a CPU, ready without one, and asleep, as its worker has it."""
    found = []
    for batch in run.truth["batches"]:
        on_cpu, ready, wall = (sum(item[place] for item in batch) for place in (1, 2, 3))
        found.append((on_cpu, ready, wall - on_cpu - ready))
    return found


@pytest.mark.parametrize("crowded", [False, True])
def test_computing_and_waiting_for_a_cpu_are_as_the_workers_clocks_have_it(
    place: Path, crowded: bool
) -> None:
    """Three workers that share one CPU wait twice as long as they run, once all are there."""
    with kept_in_memory(write_files(place / "data", [1000] * FILES)):
        run = train(place, kind="busy", crowded=crowded)
    true = true_sums(run)
    for found, (on_cpu, _, _) in zip(of_batches(run, "compute_ns"), true, strict=True):
        assert on_cpu <= found + 20_000
    on_cpu, ready, neither = (sum(column) for column in zip(*true, strict=True))
    compute, cpu_wait = sum(of_batches(run, "compute_ns")), sum(of_batches(run, "cpu_wait_ns"))
    made = sum(of_batches(run, "end_ns")) - sum(of_batches(run, "begin_ns"))
    between = made - on_cpu - ready - neither  # items: where no clock is read
    # Nothing sleeps: neither on a CPU nor ready is what the hypervisor took, for a thread on a CPU.
    assert compute < on_cpu + neither + between + CLOCKS_NS
    assert 0.9 * ready - CLOCKS_NS < cpu_wait < 1.1 * ready + between + CLOCKS_NS
    assert compute + cpu_wait > 0.9 * (on_cpu + ready)
    assert sum(of_batches(run, "device_ns")) < 0.02 * on_cpu
    if crowded:
        assert cpu_wait > 0.1 * on_cpu  # or nothing was tested
    waited = waits(run)
    assert 0 < waited["compute"] <= compute
    assert 0 < waited["cpu_wait"] <= cpu_wait or not crowded
    assert share(run, "device") < 0.02


def test_reading_from_the_device_is_waiting_for_the_device(place: Path) -> None:
    files = write_files(place / "data", [MIB] * FILES)
    run = train(place, kind="direct", workers=1)
    _, ready, asleep = (sum(column) for column in zip(*true_sums(run), strict=True))
    stolen = run.truth["stolen_ns"] + CLOCKS_NS  # it seems asleep, and is computing
    # A wake-up in an interrupt that is hidden from tracing makes a wait for a CPU a sleep.
    device, cpu_wait = sum(of_batches(run, "device_ns")), sum(of_batches(run, "cpu_wait_ns"))
    made = sum(of_batches(run, "end_ns")) - sum(of_batches(run, "begin_ns"))
    assert 0.9 * (asleep + ready) - stolen < device + cpu_wait <= made
    assert device > 0.9 * asleep - stolen
    assert device > 0.1 * made  # or nothing was tested: how much it is depends on the machine
    assert 0 < waits(run)["device"] <= device
    assert sum(of_batches(run, "read_count")) == 2 * FILES * (MIB // 4096 + 1)
    with kept_in_memory(files):
        assert share(train(place, kind="plain", workers=1), "device") < 0.02


@pytest.mark.parametrize("workers", [0, 1])
def test_sleeping_for_neither_device_nor_cpu_is_neither_of_them(place: Path, workers: int) -> None:
    write_files(place / "data", [1000] * FILES)
    run = train(place, kind="asleep", workers=workers)
    asleep = sum(of_batches(run, "sleep_ns"))
    made = sum(of_batches(run, "end_ns")) - sum(of_batches(run, "begin_ns"))
    # Who loses the CPU between setting the timer and going to sleep is ready, not asleep.
    at_least = 2 * FILES * SLEEP_S * 1e9
    assert asleep + sum(of_batches(run, "cpu_wait_ns")) >= at_least
    assert 0.5 * at_least <= asleep <= made
    parts = ("device_ns", "cpu_wait_ns", "compute_ns", "sleep_ns")
    assert sum(sum(of_batches(run, part)) for part in parts) == made
    of_steps = waits(run)  # of which busy CPUs take their part, and delay the hand-over
    assert of_steps["sleep"] > 4 * (of_steps["device"] + of_steps["compute"])


def test_large_tensors_are_waited_for_on_their_way(place: Path) -> None:
    """Made at once, they are copied into shared memory by another thread of the worker."""
    write_files(place / "data", [1000] * 6)
    run = train(place, kind="big", workers=1, ahead=1, batch_size=None)
    assert share(run, "handover") > 0.8


def test_the_slow_file_of_a_batch_has_a_name(place: Path) -> None:
    """Every fourth batch has a large file that is not in memory, and reads it in one call."""
    small = write_files(place / "data", [4096] * FILES)
    slow = []
    for index in range(0, FILES, 8):
        small[index].unlink()
        name = f"{index:03d}{'-of-a-long-name' * 4}-slow.bin"
        slow.append(write_file(place / "data" / name, 32 * MIB))
    evict(*slow)
    run = train(place, kind="at once")
    names = of_batches(run, "slowest_file")
    first = names[: FILES // 2]
    for number, name in enumerate(first):
        if number % 4 == 0:
            assert name == slow[number // 4].name[-47:]
        else:
            assert int(name[:3]) // 2 == number
    longest = of_batches(run, "slowest_ns")[: FILES // 2]
    assert min(longest[0], longest[4]) > max(longest[1:4])
    (batch,) = explain(RunLog.open(run.path), 4)["batches"]
    assert (batch["slowest_file"], batch["worker"]) == (slow[1].name[-47:], 4 % 3)
    assert batch["read_bytes"] == 32 * MIB + 4096
    by_report = max(workers(RunLog.open(run.path).ranks[0]), key=lambda one: one["slowest_ns"])
    assert by_report["slowest_file"] in (slow[0].name[-47:], slow[1].name[-47:])
