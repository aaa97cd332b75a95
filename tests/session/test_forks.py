"""Processes that the training process starts: they let go of its run, and never write to it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from tests.integrations.models import read_steps, step_numbers
from tests.session.jobs import Job, descriptors_of
from trainobs import observe
from trainobs.session import observer


def in_child(look: Callable[[], object]) -> str:
    """What a function returns in a forked child."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(writing, repr(look()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return said


def holding() -> set[str]:
    """What keeps programs in the kernel; mapped memory does not."""
    return descriptors_of(os.getpid()) - {"anon_inode:bpf-map"}


@pytest.mark.needs_bpf
def test_a_forked_child_holds_nothing_that_keeps_programs_in_the_kernel(tmp_path):
    with observe(run_dir=tmp_path / "run"):
        assert holding() == {"anon_inode:bpf-prog", "anon_inode:bpf_link"}
        assert in_child(holding) == "set()"


@pytest.mark.needs_bpf
def test_an_executed_child_inherits_no_descriptor(tmp_path):
    with observe(run_dir=tmp_path / "run"):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
        inherited = descriptors_of(child.pid)
        child.kill()
        child.wait()
    assert inherited == set()


def test_a_forked_child_has_no_observer_and_marks_no_step(tmp_path):
    with observe(run_dir=tmp_path / "run") as obs:
        word = obs._session._kernel.clock if obs.level == "ebpf" else [0]

        def use_it() -> object:
            before = word[0]
            for _ in range(200):
                with obs.step(), obs.phase("forward"):
                    pass
            names = [thread.name for thread in threading.enumerate() if thread.is_alive()]
            return word[0] == before, "trainobs" in names

        with obs.step():
            assert in_child(use_it) == "(True, False)"
    assert step_numbers(tmp_path / "run") == [0]


@pytest.mark.needs_bpf
def test_a_forked_child_waits_for_no_lock_of_a_thread_that_it_has_not(tmp_path):
    with observe(run_dir=tmp_path / "run") as obs:

        def exhaust_loaders() -> object:
            signal.alarm(20)  # what waits for ever is ended by it, and says nothing
            for _ in range(200):
                for _ in obs.loader([1, 2]):
                    with obs.step():
                        pass
            return "done"

        for _ in obs.loader([1, 2]):
            with obs.step():
                pass
        with obs._session._collector._lock:  # as the observer's thread does as it collects
            said = in_child(exhaust_loaders)
    assert said == "'done'"
    assert step_numbers(tmp_path / "run") == [0, 1]


class Meddling(Dataset[torch.Tensor]):
    """Uses the observation of the training process in the workers, where it means nothing."""

    def __init__(self) -> None:
        self.obs: Any = None
        self.session: Any = None

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        with self.obs.step(1000), self.obs.phase("validation"):
            time.sleep(0.05)  # several flushes, if there were any
        self.session.stop("ended by a worker")
        self.obs.close()
        return torch.tensor(index)


def test_workers_never_write_to_the_run_of_the_training_process(tmp_path, monkeypatch):
    monkeypatch.setattr(observer, "FLUSH_S", 0.02)
    monkeypatch.setattr(observer, "WAKE_S", 0.01)
    data = Meddling()
    with observe(run_dir=tmp_path / "run") as obs:
        data.obs, data.session = obs, obs._session
        for batch in obs.loader(DataLoader(data, batch_size=2, num_workers=2)):
            with obs.step():
                assert len(batch) == 2
    steps = read_steps(tmp_path / "run")
    assert steps["step"].to_pylist() == [None, 0, 1, 2, 3]
    assert not any(steps["phase/validation_ns"].to_pylist())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


EXITING = """
import os, sys, warnings
from trainobs.integrations.plain import observe

warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside our thread, since 3.12
with observe(run_dir=sys.argv[1]) as obs:
    with obs.step():
        if os.fork() == 0:
            sys.exit(0)  # leaves the block and runs what is registered for the exit
        os.wait()
    with obs.step():
        print("the parent goes on as", obs.level, flush=True)
"""


def test_a_child_that_leaves_the_block_ends_no_run(tmp_path):
    status, lines, errors = Job("-c", EXITING, tmp_path / "run").end()
    assert (status, errors) == (0, "")
    assert lines[0].startswith("the parent goes on")
    assert step_numbers(tmp_path / "run") == [0, 1]
    assert sorted(path.name for path in Path(tmp_path).iterdir()) == ["run"]
