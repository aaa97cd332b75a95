"""The levels of the ladder: what a run measures where it may do less."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integrations.models import logged_steps, read_steps
from tests.kernel.own import source
from tests.session.jobs import Job
from tests.session.unprivileged_job import NOBODY
from trainobs import observe
from trainobs.core.catalogue import CATALOGUE
from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.host.others import NAME
from trainobs.host.sampler import HostSampler
from trainobs.probes.loader import LibbpfLoader
from trainobs.runlog.reader import RunLog

JOB = Path(__file__).with_name("unprivileged_job.py")

TIMED = {
    "step/duration_ns",
    "phase/other_ns",
    "python/gc_ns",
    "python/gc_count",
    "obs/cpu_ns",
    "obs/lost_count",
}
"""What a loop without phases always gets."""

WORKERS = {
    "memory/worker_major_fault_count",
    "memory/worker_rss_bytes",
    "memory/refault_count",
    "memory/oom_kill_count",
    "memory/high_count",
    "memory/stalled_ns",
    "sched/throttled_ns",
    "sched/frozen_ns",
}
"""What the observer reads of loader workers and control groups, on every level that reads."""

CLIMB = (
    "  do:    run as root, have root start `trainobs-probed --group GROUP`, or give the process "
    "CAP_BPF and CAP_PERFMON (`setpriv --inh-caps=+bpf,+perfmon --ambient-caps=+bpf,+perfmon`)"
)


def known(run_dir: Path) -> set[str]:
    """Metrics that have a value in every step but the set-up."""
    steps = read_steps(run_dir).slice(1)
    return {m.name for m in CATALOGUE if steps[m.name].null_count == 0}


def unknown(run_dir: Path) -> set[str]:
    """Metrics that have no value at all, and no point in TensorBoard."""
    steps = read_steps(run_dir)
    missing = [m for m in CATALOGUE if steps[m.name].null_count == len(steps)]
    assert not [m for m in missing if logged_steps(run_dir / "tensorboard", m.tag.name)]
    return {metric.name for metric in missing}


@contextmanager
def nobodys_directory() -> Iterator[Path]:
    """A directory of the unprivileged user's own; pytest's are closed to others."""
    if os.geteuid():
        pytest.fail("needs root, to be able to drop its privileges", pytrace=False)
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, NOBODY, NOBODY)
        yield Path(directory)


@pytest.fixture
def nobodys() -> Iterator[Path]:
    with nobodys_directory() as directory:
        yield directory


def test_switched_off_by_hand_it_is_timing_without_a_word(tmp_path, caplog):
    with observe(run_dir=tmp_path, probes="off") as obs:
        for _ in range(2):
            with obs.step():
                pass
    assert obs.level == "timing"
    assert known(obs.run_dir) == TIMED
    assert unknown(obs.run_dir) == {metric.name for metric in CATALOGUE} - TIMED
    assert [r for r in caplog.records if r.name == "trainobs"] == []
    assert RunLog.open(obs.run_dir).info["level"] == "timing"


@pytest.mark.needs_bpf
def test_with_all_probes_every_metric_of_the_kernel_has_values(tmp_path):
    with observe(run_dir=tmp_path / "run") as obs, obs.step():
        for phase in ("loader", "transfer", "forward", "backward", "optimizer"):
            with obs.phase(phase):
                pass
    sums = {m.name for m in CATALOGUE if m.formula is not None and m.kind.name == "SUM"}
    machine = {"memory/major_fault_count", "memory/worker_major_fault_count"}
    pressure = {f"pressure/{kind}_ns" for kind in ("cpu", "io", "memory")}
    assert known(obs.run_dir) >= (TIMED | sums | machine | pressure) - {"ranks/wait_ns"}
    assert "ranks/wait_ns" not in known(obs.run_dir)  # it is no rank of a job


@pytest.fixture(scope="module")
def unprivileged():
    """A run of nobody's: its directory, and how its job ended."""
    with nobodys_directory() as directory:
        yield directory, Job(JOB, directory, "auto").end()


def test_without_privileges_it_is_procfs_and_one_warning_says_how_to_climb(unprivileged):
    _, (status, lines, errors) = unprivileged
    assert (status, lines) == (0, ["level: procfs"])
    assert errors.count("trainobs runs without eBPF") == 1
    assert errors.startswith("trainobs runs without eBPF, on /proc counters of the process tree:")
    assert CLIMB in errors.splitlines()


def test_without_privileges_metrics_of_proc_have_values_and_the_others_none(unprivileged):
    directory, _ = unprivileged
    run_dir = directory / "run"
    assert TIMED < known(run_dir) <= TIMED | {NAME, *HostSampler.METRICS} | WORKERS
    assert {"io/read_bytes", "io/write_bytes", "sched/main_offcpu_ns"} < known(run_dir)
    assert unknown(run_dir) >= {"io/data_read_bytes", "cache/hit_ratio", "block/read_p99_ns"}
    steps = read_steps(run_dir).slice(1)
    assert min(steps["io/write_bytes"].to_pylist()) >= 100_000
    assert min(steps["sched/main_offcpu_ns"].to_pylist()) >= 9e6
    info = RunLog.open(run_dir).info
    assert info["level"] == "procfs"
    assert "permitted" in info["capabilities"]["ebpf"] or "denied" in info["capabilities"]["ebpf"]


def test_a_probe_asked_for_by_name_without_privileges_is_an_error(nobodys):
    status, lines, errors = Job(JOB, nobodys, "block").end()
    assert (status, errors) == (0, "")
    assert lines[0] == "ProbeError: NO_PERMISSION"
    assert lines[1].startswith("cannot load the probes")
    assert lines[3] == CLIMB
    assert not (nobodys / "run").exists()


def test_without_privileges_a_probe_of_one_s_own_is_told_to_count_nothing(nobodys):
    status, lines, errors = Job(JOB, nobodys, str(source(nobodys))).end()
    assert (status, lines) == (0, ["level: procfs"])
    failed, found, do = next(
        errors.splitlines()[n : n + 3]
        for n, line in enumerate(errors.splitlines())
        if "own.c" in line
    )
    assert failed == "cannot use own.c; it counts nothing, and the training goes on"
    assert "CAP_BPF" in found
    assert do == "  do:    run `trainobs doctor`"
    state = RunLog.open(nobodys / "run").info["capabilities"]["own.c"]
    assert state.startswith("cannot use own.c: cannot load the probes")


@pytest.mark.needs_bpf
def test_probes_asked_for_by_name_are_the_only_ones(tmp_path):
    with observe(run_dir=tmp_path / "run", probes=["block", "net"]) as obs, obs.step():
        pass
    info = RunLog.open(obs.run_dir).info
    # Where no system calls are seen, bytes of files come from there.
    assert info["level"] == "procfs"
    capabilities = info["capabilities"]
    assert set(capabilities.values()) == {"on"}
    assert {"tobs_blk_done", "tobs_send"} < set(capabilities)
    assert "tobs_sys_exit" not in capabilities


@pytest.mark.needs_bpf
def test_where_system_calls_are_not_seen_it_is_procfs_and_one_warning_says_why(
    tmp_path, monkeypatch, caplog
):
    def attach(loader, name):
        if name == "tobs_sys_exit":
            raise ProbeError(ProbeCause.REFUSED, f"cannot attach {name}", str(tmp_path), "")
        attach_as_it_is(loader, name)

    attach_as_it_is = LibbpfLoader.attach
    monkeypatch.setattr(LibbpfLoader, "attach", attach)
    with observe(run_dir=tmp_path / "run") as obs:
        for _ in range(3):
            with obs.step():
                (tmp_path / "file").write_bytes(bytes(100_000))
    assert obs.level == "procfs"
    (told,) = caplog.records
    assert "on /proc counters" in told.message
    assert f"cannot attach tobs_sys_exit: {tmp_path}" in told.message
    with observe(run_dir=tmp_path / "again"):  # as a cell of a notebook
        assert len(caplog.records) == 1
    assert {"io/write_bytes", "sched/main_offcpu_ns", "net/sent_bytes"} < known(obs.run_dir)
    assert unknown(obs.run_dir) >= {"io/data_read_bytes", "cache/hit_ratio", "io/fsync_count"}
    assert min(read_steps(obs.run_dir).slice(1)["io/write_bytes"].to_pylist()) >= 100_000
