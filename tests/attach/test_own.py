"""Programs of a user's beside a process that is observed from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import kernel_state
from tests.attach.target import (
    FETCHES,
    PATIENCE_S,
    ROOT,
    Target,
    attached,
    boundaries,
    check_steps,
    is_patched,
    steps_of,
)
from tests.kernel.own import SOURCE, Marked, calls_of, source
from trainobs.attach.process import look_at
from trainobs.attach.target_files import file_of
from trainobs.core.abi import Role
from trainobs.core.errors import ProbeError
from trainobs.core.own_counter import of_role
from trainobs.runlog.rank import RankLog

pytestmark = pytest.mark.needs_bpf

PLACED = SOURCE.replace('"uprobe"', '"uprobe/libmarked.so:tobs_called"').replace(
    '"usdt"', '"usdt/libmarked.so:tobs:mark"'
)
"""Names the library, whose file is where the process has it."""

REFUSED = """
#include "trainobs_probe.h"
TRAINOBS_COUNTER(0, "never", "calls");
SEC("tp_btf/sys_enter") int BPF_PROG(p, void *regs, long n)
{
    trainobs_add(0, *(volatile int *)n, 0);
    return 0;
}
"""


@pytest.fixture
def target(start: Callable[..., Target], tmp_path: Path) -> Iterator[Target]:
    """A loop whose items call what the programs count; nothing of them is left behind."""
    before = kernel_state.program_ids()
    Marked(tmp_path)
    found = start("marked", 600)
    yield found
    assert kernel_state.left_behind(before) == []
    if found.process.poll() is None:
        assert not has_uprobe(found)


def has_uprobe(target: Target) -> bool:
    """Whether the process has one in the function that a program is put on."""
    return is_patched(target.pid(), str(target.place / "libmarked.so"), "tobs_called")


def begin(target: Target, program: Path) -> subprocess.Popen[str]:
    """`trainobs attach` that goes on; returns once it is attached."""
    run_dir = target.place / "run"
    words = ["attach", str(target.pid()), "--probe", str(program), "--run-dir", str(run_dir)]
    process = subprocess.Popen(
        [sys.executable, "-m", "trainobs", *words], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )
    assert process.stderr is not None
    assert "attached to process" in process.stderr.readline()
    return process


def check_counts(log: RankLog, truth: list[tuple[str, int, int]], rank: int = 0) -> None:
    """Hold each step's counts against what its items did."""
    steps = check_steps(log, truth, FETCHES)
    edges = boundaries(truth, FETCHES)
    gets = np.cumsum([what == "get" for what, *_ in truth])
    own = log.step() >= 0
    expected = np.array(
        [
            np.sum([calls_of(item, rank) for item in range(gets[a] - 1, gets[b] - 1)], axis=0)
            for a, b in zip(edges[steps], edges[steps.start + 1 : steps.stop + 1], strict=False)
        ]
    )
    own[np.flatnonzero(own)[len(expected) :]] = False  # whose end the truth has not
    sums = {"getsid_calls": (0, 1), "called": (1, 1), "called_with": (1, 3), "marked": (2, 1)}
    for name, (column, factor) in sums.items():
        found = log.metric(of_role(f"probe/{name}", Role.MAIN))[own]
        assert found.tolist() == (expected[:, column] * factor).tolist(), name
        assert (log.metric(f"probe/{name}")[own] == found).all()
    assert expected[:, 1].sum() > 20


def test_each_step_has_the_counts_of_its_items(target: Target, tmp_path: Path) -> None:
    program = source(tmp_path, PLACED)
    refused = source(tmp_path, REFUSED, "refused.c")
    words = ["--probe", str(refused), "--probe", str(program), "--for", "2"]
    done = attached(target.pid(), tmp_path / "run", *words)
    assert done.returncode == 0, done.stderr
    told = done.stderr.splitlines()
    assert told[0] == "trainobs: cannot load refused.c; it counts nothing, and the training goes on"
    assert "invalid mem access" in told[1]
    target.stop()
    log = steps_of(tmp_path / "run")
    check_counts(log, target.events())
    assert np.isnan(log.metric("probe/never")).all()
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["capabilities"]["own.c"] == "on"
    assert "invalid mem access" in info["capabilities"]["refused.c"]


def test_ranks_are_counted_apart(start: Callable[..., Target], tmp_path: Path) -> None:
    Marked(tmp_path)
    target = start("marked", 600, ranks=2)
    target.pid(1)
    words = ["--probe", str(source(tmp_path, PLACED)), "--for", "2"]
    done = attached(target.pid(), tmp_path / "run", *words)
    assert done.returncode == 0, done.stderr
    assert "counts nothing" not in done.stderr, done.stderr
    target.stop()
    for rank in (0, 1):
        check_counts(steps_of(tmp_path / "run", rank), target.events(rank), rank)


@pytest.mark.parametrize("killed", ["observer", "process"])
def test_nothing_is_left_when_either_side_is_killed(
    target: Target, tmp_path: Path, killed: str
) -> None:
    process = begin(target, source(tmp_path, PLACED))
    assert has_uprobe(target)
    os.kill(process.pid if killed == "observer" else target.pid(), signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == (-signal.SIGKILL if killed == "observer" else 0)


def test_a_file_is_the_one_that_the_process_has_mapped(tmp_path: Path) -> None:
    Marked(tmp_path)
    process, library = look_at(os.getpid()), tmp_path / "libmarked.so"
    for name in (str(library), library.stem):
        assert os.path.samefile(file_of(process, name), library)
    os.link(library, tmp_path / "old.so")
    library.unlink()
    library.write_bytes(b"another one")  # as an upgrade does
    for name in (str(library), library.name):
        assert os.path.samefile(file_of(process, name), tmp_path / "old.so")
    assert os.path.samefile(file_of(process, str(tmp_path / "old.so")), tmp_path / "old.so")
    with pytest.raises(ProbeError, match="has mapped no file of that name"):
        file_of(process, "libnever.so")


def test_a_program_at_a_low_address_is_found_as_well(tmp_path: Path) -> None:
    program = tmp_path / "program"
    text = "#include <unistd.h>\nint main(void) { return pause(); }\n"
    command = ["cc", "-no-pie", "-x", "c", "-", "-o", str(program)]
    subprocess.run(command, input=text.encode(), check=True)
    os.link(program, tmp_path / "old")
    with subprocess.Popen([program]) as process:
        while str(program) not in Path(f"/proc/{process.pid}/maps").read_text():
            time.sleep(0.01)
        program.unlink()  # its path leads nowhere
        assert os.path.samefile(file_of(look_at(process.pid), "program"), tmp_path / "old")
        process.kill()
