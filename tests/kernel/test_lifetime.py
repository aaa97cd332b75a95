"""The probes are gone when their run is over, whoever is still there."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.kernel.ground_truth import read_whole, write_file
from tests.kernel.lifetime import PATIENCE_S, own_programs, still_loaded
from tests.kernel.observed import ObservedKernel
from tests.kernel.processes import fork, run_job
from trainobs.core.abi import FileClass, Op
from trainobs.probes.loader import LibbpfLoader
from trainobs.probes.local_backend import LocalBackend

pytestmark = pytest.mark.needs_bpf


def fork_beside(kernel: LocalBackend, *, abandon: bool) -> int:
    """A child that has done what there is to do, and stays."""
    ready, tell_ready = os.pipe()

    def work() -> None:
        if abandon:
            kernel.abandon()
        os.write(tell_ready, b"x")
        signal.pause()

    pid = fork(work)
    os.read(ready, 1)
    os.close(ready)
    os.close(tell_ready)
    return pid


def program_count(kernel: LocalBackend) -> int:
    """Programs that run for it: on older kernels several may stand in for one."""
    return sum(map(len, kernel._probes.attach_points().values()))


@pytest.mark.parametrize("abandon", [True, False])
def test_a_forked_child_keeps_the_probes_loaded_unless_it_abandons_them(abandon: bool) -> None:
    kernel = LocalBackend()
    programs = own_programs()
    assert len(programs) == program_count(kernel)
    pid = fork_beside(kernel, abandon=abandon)
    try:
        kernel.stop()
        left = still_loaded(programs, PATIENCE_S if abandon else 0.5)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert left == (set() if abandon else programs)
    assert still_loaded(programs) == set()


def test_children_that_outlive_a_run_hold_none_of_its_programs(place: Path) -> None:
    path = write_file(place / "data", 4096)
    output = run_job("outlive", data=str(path), run_dir=str(place / "run"))
    loaded, left = map(int, re.findall(r"\d+", output.splitlines()[-1]))
    kernel = LocalBackend()
    kernel.stop()
    assert (loaded, left) == (program_count(kernel), 0)


def test_stopped_probes_count_no_more_and_leave_their_counts(place: Path) -> None:
    path = write_file(place / "data", 4096)
    observed = ObservedKernel()
    kernel = observed.kernel
    observed.data(path)
    read_whole(path)
    before = kernel.rows["count"][:, Op.READ, FileClass.DATA].sum()
    kernel.stop()
    kernel.stop()
    read_whole(path)
    assert kernel.rows["count"][:, Op.READ, FileClass.DATA].sum() == before == 2
    observed.stop()


def test_ends_are_attached_before_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that begins in between would be kept, and be lost as its place is used again."""
    attached: list[str] = []

    def attach(loader: LibbpfLoader, program: str) -> None:
        attached.append(program)
        attach_as_it_is(loader, program)

    attach_as_it_is = LibbpfLoader.attach
    monkeypatch.setattr(LibbpfLoader, "attach", attach)
    LocalBackend().stop()
    pairs = [
        ("tobs_blk_start", "tobs_blk_done"),
        ("tobs_sys_enter", "tobs_sys_exit"),
        ("tobs_reclaim", "tobs_reclaimed"),
        ("tobs_cg_reclaim", "tobs_cg_freed"),
    ]
    for beginning, end in pairs:
        assert attached.index(end) < attached.index(beginning)


def test_the_kernel_side_may_start_again_and_again() -> None:
    for _ in range(3):
        kernel = LocalBackend()
        kernel.adopt()
        kernel.stop()
    assert own_programs() == set()
