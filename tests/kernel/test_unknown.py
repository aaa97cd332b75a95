"""Right or unknown: whatever programs are off, no number rests on one of them.

One job, of which every count is known, runs with all programs, then without each, and without some
by chance. Each number that it records must be what is true, or missing.
"""

from __future__ import annotations

import math
import mmap
import os
import random
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.data import DataLoader, Dataset

from tests.kernel.ground_truth import BLOCK, BUFFER, PAGE, evict, rounded, write_file
from tests.kernel.uring import READ, Uring
from trainobs import observe
from trainobs.analysis.one_step import explain
from trainobs.analysis.summary import summarize
from trainobs.core.abi import FileClass, Op
from trainobs.core.catalogue import CATALOGUE, METRICS
from trainobs.core.coverage import SCHEDULER, feeds
from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.core.histogram import LATENCIES
from trainobs.core.metrics import MetricKind
from trainobs.probes.loader import LibbpfLoader
from trainobs.probes.programs import PROBES
from trainobs.report import one_step
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog
from trainobs.tensorboard.latency import latency_tag

pytestmark = pytest.mark.needs_bpf

OPTIONAL = sorted(program.name for programs in PROBES.values() for program in programs)
CHANCES = [sorted(random.Random(seed).sample(OPTIONAL, 2 + 2 * seed)) for seed in range(6)]

SIZE, FILES = 300_007, 4
MAPPED, SAVED, SENT, RING = 8 * PAGE, 200_003, 10_007, 32 * max(16_384, PAGE)
CALLS = -(-SIZE // BUFFER) + 1
SLEEP_S = 0.03

TRUE: dict[str, int] = {
    "io/data_read_bytes": FILES * SIZE,
    "io/data_read_count": FILES * CALLS,
    "io/data_open_count": FILES + 1,
    "io/data_mmap_bytes": MAPPED,
    "io/data_fault_count": MAPPED // PAGE,
    "io/data_direct_read_bytes": 0,
    "io/checkpoint_write_bytes": SAVED,
    "io/fsync_count": 1,
    "cache/miss_bytes": FILES * rounded(SIZE),
    "cache/fault_fill_bytes": MAPPED,
    "block/data_read_bytes": FILES * rounded(SIZE, BLOCK) + MAPPED,
    "block/checkpoint_write_bytes": rounded(SAVED, BLOCK),
    "net/sent_bytes": SENT,
    "net/received_bytes": SENT,
}
"""What the job does, with all that it does known to the byte."""

BY_RING = {
    "io/data_read_bytes": RING,
    "cache/miss_bytes": RING,
    "block/data_read_bytes": RING,
    "io/data_open_count": 1,
}
"""What a ring of io_uring does beside that."""

TRUE_RATIO = {"cache/hit_ratio": 0.0}

ABOVE: dict[str, float] = {
    "io/data_read_ns": 1,
    "io/checkpoint_write_ns": 1,
    "io/fsync_ns": 1,
    "io/checkpoint_fsync_ns": 1,
    "block/read_ns": 1,
    "block/read_count": FILES,
    "block/read_p99_ns": 1,
    "sched/main_offcpu_ns": SLEEP_S * 1e9,
    "sched/main_runqueue_ns": 1,
    "sched/main_await_ns": SLEEP_S * 1e9 * 0.9,
}
"""What is above a limit in truth, so that a zero is wrong; a device may be too fast to wait for."""


NOT_HERE = "ranks/wait_ns"
"""Of jobs with several ranks."""


class Files(Dataset[int]):
    """Each item is read whole by the worker that is asked for it."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        with self.paths[index].open("rb", buffering=0) as file:
            return sum(iter(lambda: len(file.read(BUFFER)), 0))


class Place(NamedTuple):
    """Where the job reads and writes."""

    root: Path
    data: list[Path]
    mapped: Path
    for_ring: Path


@pytest.fixture(scope="module")
def job_place() -> Iterable[Place]:
    root = Path(tempfile.mkdtemp(dir="/var/tmp"))  # on a disk
    (root / "data").mkdir()
    data = [write_file(root / "data" / f"file{i}", SIZE) for i in range(FILES)]
    mapped = write_file(root / "data" / "mapped", MAPPED)
    for_ring = write_file(root / "data" / "for_ring", RING)
    yield Place(root, data, mapped, for_ring)
    shutil.rmtree(root)


def job(place: Place, run: Path, *, ring: bool) -> Path:
    """Reads, faults, messages, a checkpoint and sleep, in a few steps."""
    evict(*place.data, place.mapped, place.for_ring)
    loader = DataLoader(Files(place.data), batch_size=None, num_workers=1)
    with observe(run_dir=run, data_roots=[place.root / "data"], tensorboard="all") as obs:
        for work in [*_chores(obs, place), (lambda: _by_ring(place)) if ring else time.time]:
            with obs.step():
                for phase in ("transfer", "forward", "backward", "optimizer"):
                    with obs.phase(phase):
                        pass
                work()
        for _ in obs.loader(loader):
            with obs.step():
                pass
    assert obs.run_dir is not None
    return Path(obs.run_dir)


def right(place: Place, runs: Path, true: dict[str, int], *, ring: bool) -> Path:
    """Run the job; see that each number that is recorded is right.

    The end of a block request may be kept from everybody (`ObservedKernel.undisturbed`): bytes of
    block devices may be wrong once, and not three times.
    """
    for attempt in range(3):
        run = job(place, runs / str(attempt), ring=ring)
        lies = wrong(recorded(run), true)
        if not all(lie.startswith("block/") for lie in lies) or not lies:
            break
    assert not lies
    return run


def _chores(obs: Any, place: Place) -> list[Callable[[], object]]:
    def fault() -> None:
        with (
            place.mapped.open("rb", buffering=0) as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped,
        ):
            mapped.madvise(mmap.MADV_RANDOM)
            assert sum(mapped[::PAGE]) >= 0

    def save() -> None:
        with obs.phase("checkpoint"), (place.root / "saved").open("wb", buffering=0) as file:
            file.write(os.urandom(SAVED))
            os.fsync(file.fileno())
        (place.root / "saved").unlink()

    def talk() -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname()) as one,
            server.accept()[0] as two,
        ):
            one.sendall(bytes(SENT))
            left = SENT
            while left:
                left -= len(two.recv(left))

    def wait() -> None:
        other = threading.Event()
        threading.Timer(SLEEP_S, other.set).start()
        other.wait()

    return [fault, save, talk, wait]


def _by_ring(place: Place) -> None:
    ring = Uring(64)
    try:
        with mmap.mmap(-1, RING // 32) as buffer, place.for_ring.open("rb", buffering=0) as file:
            ring.transfer(READ, file.fileno(), buffer, RING)
    finally:
        ring.close()


def recorded(run: Path) -> dict[str, float]:
    """Metric -> its value in the whole run, or the largest in a step; no entry where unknown."""
    metrics = summarize(RunLog.open(run))["metrics"]
    found = {}
    for name, values in metrics.items():
        kind = METRICS[name].kind if name in METRICS else MetricKind.SUM
        value = values["sum"] if kind is MetricKind.SUM else values["mean"]
        if value is not None and not math.isnan(value):
            found[name] = value
    return found


def table(run: Path, name: str) -> pa.Table:
    parts = sorted((run / "rank=0").glob(f"{name}*.parquet"))
    return pa.concat_tables([pq.read_table(part) for part in parts])


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[Iterable[str]], None]:
    """Switch programs off at the last moment, as a kernel does that cannot attach them."""

    def switch_off(names: Iterable[str]) -> None:
        gone = frozenset(names)

        def attach(loader: LibbpfLoader, name: str) -> None:
            if name in gone:
                raise ProbeError(ProbeCause.REFUSED, f"cannot attach {name}", "a test", "")
            attach_as_it_is(loader, name)

        attach_as_it_is = LibbpfLoader.attach
        monkeypatch.setattr(LibbpfLoader, "attach", attach)

    return switch_off


def wrong(found: dict[str, float], true: dict[str, int]) -> list[str]:
    """Numbers that are there and not what they should be."""
    lies = [f"{n} is {found[n]}, not {t}" for n, t in true.items() if found.get(n, t) != t]
    lies += [f"{n} is {found[n]}" for n, t in TRUE_RATIO.items() if found.get(n, t) != t]
    return lies + [f"{n} is {found[n]}" for n, t in ABOVE.items() if found.get(n, t) < t]


def unfounded(run: Path) -> list[str]:
    """Numbers that are there although a program is off that they need."""
    info = RunLog.open(run).info
    assert not RunLog.open(run).unreadable
    on = {name for name, state in info["capabilities"].items() if state == "on"}
    rings = "tobs_uring" not in on and _rings_used(run)
    on |= set() if rings else {"tobs_uring"}
    procfs = info["level"] == "procfs"
    lost = {m.name for m in CATALOGUE if m.programs - on and not (procfs and _by_proc(m.name))}
    lies = [f"{name} in the report" for name in recorded(run).keys() & lost]
    steps = table(run, "steps")
    known = {n for n in steps.column_names if steps[n].null_count < len(steps)}
    lies += [f"{name} in steps" for name in (known & lost if not rings else ())]
    events = EventAccumulator(str(run), size_guidance={"histograms": 0}).Reload()
    tags = {tag.removesuffix("/p95").removesuffix("/max") for tag in events.Tags()["scalars"]}
    drawn = {metric.name for metric in CATALOGUE if metric.tag.name in tags}
    lies += [f"{name} in TensorBoard" for name in (drawn & lost if not rings else ())]
    shown = events.Tags()["histograms"]
    for latency in LATENCIES:
        if feeds(latency.op, "ns", [latency.file_class] if latency.file_class else ()) - on:
            lies += [f"{tag} in TensorBoard" for tag in shown if tag == latency_tag(latency)]
    return lies + _unfounded_cells(run, on) + _unfounded_batches(run, on, rings)


def _by_proc(name: str) -> bool:
    from trainobs.host.sampler import HostSampler

    return name in HostSampler.METRICS


def _rings_used(run: Path) -> bool:
    if not (run / "rank=0" / "kernel-00000.parquet").exists():
        return True
    return any(row["op"] == "uring_enter" for row in table(run, "kernel").to_pylist())


def _unfounded_cells(run: Path, on: set[str]) -> list[str]:
    lies = []
    for name, fields in (("kernel", ("count", "bytes", "ns", "wait_ns")), ("latency", ("count",))):
        if not list((run / "rank=0").glob(f"{name}*.parquet")):
            continue
        for row in table(run, name).to_pylist():
            op, file_class = Op[row["op"].upper()], FileClass[row["class"].upper()]
            for field in fields:
                rests_on = feeds(op, "ns" if name == "latency" else field, [file_class])
                if row[field] is not None and rests_on - on:
                    lies.append(f"{field} of {row['op']} on {row['class']} in {name}")
    return lies


def _unfounded_batches(run: Path, on: set[str], rings: bool) -> list[str]:
    if not list((run / "rank=0").glob("batches*.parquet")):
        return []
    batches = table(run, "batches")
    timed = on >= SCHEDULER
    times = set() if timed else {"device_ns", "cpu_wait_ns", "compute_ns"}
    reads = {"read_bytes", "read_count"} if rings else set()
    return [
        f"{name} in batches" for name in times | reads if batches[name].null_count < len(batches)
    ]


def test_with_every_program_every_number_is_there_and_right(
    job_place: Place, tmp_path: Path
) -> None:
    run = right(job_place, tmp_path, TRUE, ring=False)
    found = recorded(run)
    assert found.keys() >= TRUE.keys() | TRUE_RATIO.keys() | ABOVE.keys()
    assert found.keys() >= {metric.name for metric in CATALOGUE if metric.programs} - {NOT_HERE}
    assert not unfounded(run)


@pytest.mark.parametrize("off", [[], ["tobs_switch"], ["tobs_send", "tobs_fault"]], ids="-".join)
def test_a_ratio_of_uneven_steps_is_that_of_all_their_pages(
    job_place: Place, tmp_path: Path, without: Callable[[Iterable[str]], None], off: list[str]
) -> None:
    """One step reads a file that is not in memory, each of many others a page that is."""
    without(off)
    cold, *_ = job_place.data
    evict(cold)
    with observe(run_dir=tmp_path / "run", data_roots=[job_place.root / "data"]) as obs:
        for step in range(20):
            with obs.step(), cold.open("rb", buffering=0) as file:
                while file.read(BUFFER if not step else 100):
                    if step:
                        break
    summary = summarize(RunLog.open(obs.run_dir))
    assert not summary["lost"]["files"]
    true = 1 - rounded(SIZE) / (rounded(SIZE) + 19 * PAGE)
    assert summary["metrics"]["cache/hit_ratio"]["mean"] == pytest.approx(true)
    assert "could not be read" not in render(summary)


def test_with_every_program_what_a_ring_reads_is_there(job_place: Place, tmp_path: Path) -> None:
    true = {name: value + BY_RING.get(name, 0) for name, value in TRUE.items()}
    del true["io/data_read_count"]  # completions count as well
    run = right(job_place, tmp_path, true, ring=True)
    assert recorded(run).keys() >= true.keys()


@pytest.mark.parametrize("off", [[name] for name in OPTIONAL] + CHANCES, ids="-".join)
def test_no_number_rests_on_a_program_that_is_off(
    job_place: Place, tmp_path: Path, without: Callable[[Iterable[str]], None], off: list[str]
) -> None:
    without(off)
    run = right(job_place, tmp_path, TRUE, ring=False)
    assert not unfounded(run)
    render(summarize(RunLog.open(run)))


@pytest.mark.parametrize("off", [["tobs_uring"], ["tobs_uring", "tobs_switch"]], ids="-".join)
def test_once_a_ring_is_used_that_nobody_sees_reads_are_unknown(
    job_place: Place, tmp_path: Path, without: Callable[[Iterable[str]], None], off: list[str]
) -> None:
    without(off)
    run = job(job_place, tmp_path / "run", ring=True)
    steps = table(run, "steps").slice(1)  # without the set-up
    used = 4  # the step in which the ring is made
    for name in ("io/data_read_bytes", "io/read_bytes", "io/write_bytes", "cache/miss_bytes"):
        missing = np.array([value is None for value in steps[name].to_pylist()])
        assert not missing[:used].any(), name
        assert missing[used:].all(), name
    assert not unfounded(run)
    for step in range(len(steps)):
        one_step.render(explain(RunLog.open(run), step))
    cells = table(run, "kernel").to_pylist()
    assert not [row for row in cells if row["op"].startswith("cache_") and row["step"] >= used]
