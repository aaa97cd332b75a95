"""Who stops the loading thread again and again keeps no program from the kernel, or is named."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.observed import ObservedKernel, refusal
from tests.kernel.own import source
from trainobs.core.errors import ProbeError
from trainobs.core.now import now_s
from trainobs.probes import extra
from trainobs.probes.compiling import compile_source
from trainobs.probes.extra import ExtraObject

pytestmark = pytest.mark.needs_bpf

LONG = """
#include "trainobs_probe.h"
SEC("tp_btf/sys_enter")
int BPF_PROG(tobs_own_long, struct pt_regs *regs, long number)
{
    for (int i = 0; i < 50000; i++)
        __asm__ volatile("" : "+r"(number));
    return 0;
}
"""
"""The verifier goes through each turn."""


@contextmanager
def interrupted(seconds: float) -> Iterator[None]:
    """Stop this thread all the time, for so long or until the end of the block."""
    command = [sys.executable, "-m", "tests.kernel.jobs.interrupt"]
    command += [str(threading.get_native_id()), str(seconds), "0.0001"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as profiler:
        assert profiler.stdout
        assert profiler.stdout.readline()
        try:
            yield
        finally:
            profiler.kill()


def test_what_a_profiler_interrupts_is_loaded_as_soon_as_it_lets_go() -> None:
    with interrupted(seconds=1.5):
        observed = ObservedKernel()
    assert observed.load_count > 1
    observed.stop()


def test_a_profiler_that_never_lets_go_is_named() -> None:
    with interrupted(seconds=60):
        assert "samples by ptrace" in refusal(("syscalls",)).found


def test_an_own_program_is_loaded_as_soon_as_a_profiler_lets_go(tmp_path: Path) -> None:
    built = compile_source(source(tmp_path, LONG), tmp_path / "long.bpf.o")
    with interrupted(seconds=1.5):
        begin_s = now_s()
        ExtraObject([built], {}, "long").close()
    assert now_s() - begin_s > 1, "was not interrupted"


def test_who_never_lets_go_of_an_own_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extra, "INTERRUPTED_S", 0.5)
    built = compile_source(source(tmp_path, LONG), tmp_path / "long.bpf.o")
    with interrupted(seconds=60), pytest.raises(ProbeError, match="samples by ptrace"):
        ExtraObject([built], {}, "long").close()


def test_signals_of_a_timer_do_not_keep_programs_from_loading() -> None:
    ticks = 0

    def tick(*_: object) -> None:
        nonlocal ticks
        ticks += 1

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 1e-4, 1e-4)  # for the process: the main thread takes it
    try:
        observed = ObservedKernel()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert observed.load_count == 1
    assert ticks > 1
    observed.stop()
