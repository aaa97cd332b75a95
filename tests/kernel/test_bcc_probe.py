"""A program of bcc counts by step and role, in a process that nobody counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.observed import ObservedKernel
from tests.kernel.own import GETSID, Marked
from tests.kernel.processes import fork, in_child, in_thread, in_worker
from trainobs import BccProbe
from trainobs.core.abi import Role
from trainobs.core.own_counter import OWN_ROLES, of_role
from trainobs.host.tree import ChildrenFileFinder
from trainobs.probes import bcc_child
from trainobs.probes.local_backend import LocalBackend
from trainobs.probes.statistics import ProbeStatistics

pytestmark = pytest.mark.needs_bpf

TEXT = f"""
TRAINOBS_COUNTER(0, "getsid calls", "calls");
TRAINOBS_COUNTER(1, "called", "calls");
TRAINOBS_VALUE(1, "called with", "bytes");
TRAINOBS_COUNTER(2, "all calls", "calls");

RAW_TRACEPOINT_PROBE(sys_enter)
{{
    trainobs_add(2, 1, 0);
    if (ctx->args[1] == {GETSID})
        trainobs_add(0, 1, 0);
    return 0;
}}

int on_call(struct pt_regs *ctx)
{{
    trainobs_add(1, 1, PT_REGS_PARM1(ctx));
    return 0;
}}
"""


@pytest.fixture(autouse=True)
def needs_bcc() -> None:
    command = [sys.executable, "-c", "from trainobs.probes import bcc_child as c; c._import_bcc()"]
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    if subprocess.run(command, env={**os.environ, **path}, capture_output=True).returncode:
        pytest.skip("no bcc for Python: apt-get install python3-bpfcc")


@pytest.fixture
def marked(tmp_path: Path) -> Marked:
    return Marked(tmp_path)


@pytest.fixture
def observed(marked: Marked) -> Iterator[ObservedKernel]:
    probe = BccProbe(TEXT, attach={"on_call": f"uprobe/{marked.path}:tobs_called"})
    found = ObservedKernel((), required=False, own=[probe])
    yield found
    found.stop()


@contextmanager
def others_stopped() -> Iterator[None]:
    """Any other child of the test's process counts rightly, as ranks that wait for a job."""
    children = ChildrenFileFinder(Path("/proc")).descendants(os.getpid())
    others = [pid for pid in children if not is_running(pid)]
    try:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(0.1)  # until all have stopped
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def test_each_role_counts_in_its_step_and_its_process_is_none_of_them(
    observed: ObservedKernel, marked: Marked
) -> None:
    assert observed.kernel.own.status == {"bcc bcc": "on"}
    mounts = Path("/proc/self/mounts").read_text()
    assert "trainobs-" not in mounts
    programs = observed.kernel.own.program_fds()  # of what they cost, and are left out of
    assert len(programs) == 2
    assert "0:on_call" in programs
    statistics = ProbeStatistics(programs)
    in_them = statistics.share(sleep=lambda s: marked.do(1000, 1000, 0))
    assert in_them
    assert min(statistics.run_counts()) >= 1000

    def work() -> None:
        marked.do(7, 1, 0)
        in_thread(lambda: marked.do(3, 2, 0))
        in_worker(lambda: marked.do(11, 30, 0))
        in_child(lambda: marked.do(5, 40, 0))

    steps = [observed.during_own(work), observed.during_own(lambda: marked.do(1, 0, 0))]
    expected = {
        "getsid_calls": (7, 3, 11, 5),
        "called": (1, 2, 30, 40),
        "called_with": (3, 6, 90, 120),
    }
    for name, by_role in expected.items():
        assert tuple(steps[0][of_role(f"probe/{name}", r)] for r in OWN_ROLES) == by_role, name
    assert [steps[1][f"probe/{name}"] for name in expected] == [1, 0, 0]

    def wake() -> None:
        observed.kernel.own.adopted()  # at which its process does something
        time.sleep(0.5)

    with others_stopped():
        counted = observed.during_own(wake)[of_role("probe/all_calls", Role.CHILD)]
    assert counted == 0, subprocess.check_output(["ps", "-eo", "pid,ppid,time,args"], text=True)


def test_an_error_of_its_text_is_told(caplog: pytest.LogCaptureFixture) -> None:
    text = TEXT.replace("return 0;", "return nothing;", 1)
    found = ObservedKernel((), required=False, own=[BccProbe(text, name="locks")])
    found.stop()
    failed, was, do = caplog.text.splitlines()[-3:]
    assert failed.endswith("cannot use bcc locks; it counts nothing, and the training goes on")
    assert "locks:12:12: error: use of undeclared identifier 'nothing'" in was
    assert do == "  do:    change the text of the probe"


def test_its_process_ends_with_the_one_that_is_killed() -> None:
    told, tell = os.pipe()

    def work() -> None:
        kernel = LocalBackend(())
        kernel.load_own([BccProbe(TEXT)])
        (program,) = kernel.own._objects
        os.write(tell, str(program._child.pid).encode())
        signal.pause()

    pid = fork(work)
    child = int(os.read(told, 100))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(told)
    os.close(tell)
    deadline = time.monotonic() + 60
    while is_running(child):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_that_its_process_is_killed_does_not_end_the_training() -> None:
    kernel = LocalBackend(())
    try:
        kernel.load_own([BccProbe(TEXT)])
        (program,) = kernel.own._objects
        program._child.kill()
        program._child.wait()
        kernel.adopt()
    finally:
        kernel.stop()


def is_running(pid: int) -> bool:
    try:
        return bcc_child.__name__ in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
