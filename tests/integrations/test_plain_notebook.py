"""`observe` without `with`: at once, until `close`, the next one, or the end of the interpreter."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.integrations.models import FileData, loader, logged_steps, read_steps, step_numbers
from tests.samples import part_files
from tests.session.jobs import Job
from trainobs import load_run, observe
from trainobs.analysis.summary import summarize
from trainobs.analysis.view import RunView
from trainobs.core.catalogue.named import metric_of_phase
from trainobs.integrations import plain
from trainobs.integrations.plain import Observation
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES
from trainobs.steps.clock import MAX_NAMED


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def outcome(run_dir: Path) -> str:
    return RunLog.open(run_dir).info["summary"]["outcome"]


def steps(obs: Observation, count: int) -> None:
    for _ in range(count):
        with obs.step():
            pass


def test_it_works_at_once_and_ends_with_close(run_dir):
    obs = observe(run_dir=run_dir, probes="off")
    gc.collect()
    steps(obs, 3)
    obs.close()
    assert step_numbers(run_dir) == [0, 1, 2]
    assert outcome(run_dir) == "ok"
    obs.close()
    assert outcome(run_dir) == "ok"


def test_what_nobody_keeps_goes_on_until_the_next(run_dir):
    batches = observe(run_dir=run_dir, probes="off").loader(loader())
    gc.collect()
    assert len(list(batches)) == 8
    observe(run_dir=run_dir, probes="off").close()
    assert step_numbers(run_dir) == list(range(8))
    assert outcome(run_dir) == "the next run began"


def test_a_cell_that_runs_again_begins_another_run_and_ends_the_former(run_dir):
    batches: Any = loader()
    for _ in range(3):
        obs = observe(run_dir=run_dir, probes="off")
        batches = obs.loader(batches)  # which is observed already, from the second time on
        assert len(list(batches)) == 8
    obs.close()
    places = [run_dir, *(run_dir.with_name(f"run-{number}") for number in (2, 3))]
    assert [step_numbers(place) for place in places] == [list(range(8))] * 3
    assert [outcome(place) for place in places] == [*["the next run began"] * 2, "ok"]


def test_the_next_one_leaves_alone_what_a_with_holds_and_what_another_thread_does(run_dir):
    elsewhere: list[Observation] = []
    done, over = threading.Event(), threading.Event()

    def other_thread() -> None:
        elsewhere.append(observe(run_dir=run_dir.with_name("thread"), probes="off"))
        done.set()
        over.wait()
        steps(elsewhere[0], 2)
        elsewhere[0].close()

    thread = threading.Thread(target=other_thread)
    thread.start()
    done.wait()
    with observe(run_dir=run_dir, probes="off") as held:
        inner = observe(run_dir=run_dir.with_name("inner"), probes="off")
        steps(inner, 1)
        inner.close()
        steps(held, 2)
    over.set()
    thread.join()
    assert [step_numbers(run_dir.with_name(name)) for name in ("run", "inner", "thread")] == [
        [0, 1], [0], [0, 1],
    ]  # fmt: skip
    assert outcome(run_dir.with_name("thread")) == "ok"


@pytest.mark.parametrize("fails", [True, False])
def test_close_says_whether_an_exception_was_under_way(run_dir, fails):
    obs = observe(run_dir=run_dir, probes="off")
    try:
        steps(obs, 1)
        if fails:
            raise LookupError
    except LookupError:
        obs.close()
    finally:
        obs.close()
    assert outcome(run_dir) == ("closed while handling LookupError" if fails else "ok")


NEVER_CLOSED = """
import os, sys
from trainobs import load_run, observe
from trainobs.analysis.view import RunView

obs = observe(run_dir=sys.argv[1], probes="off")
with obs.step():
    pass
if sys.argv[2] == "fork":
    pid = os.fork()
    if pid == 0:
        with obs.step(), obs.phase("forward"):
            obs.close()
        sys.exit(0)
    os.waitpid(pid, 0)
    with obs.step():
        pass
if sys.argv[2] == "raise":
    raise LookupError
"""


@pytest.mark.parametrize(
    ("ends_by", "status", "ended", "count"),
    [
        ("return", 0, "interpreter exit", 1),
        ("raise", 1, "interpreter exit, after LookupError", 1),
        ("fork", 0, "interpreter exit", 2),
    ],
)
def test_at_the_end_of_the_interpreter_it_ends(run_dir, ends_by, status, ended, count):
    job = Job("-c", NEVER_CLOSED, run_dir, ends_by)
    assert job.end()[0] == status
    assert step_numbers(run_dir) == list(range(count))
    assert outcome(run_dir) == ended


STILL_THERE = """
import sys
import torch
from torch.utils.data import DataLoader
from trainobs import load_run, observe

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters())

def train_on(inputs):
    model(inputs).sum().backward()
    optimizer.step()

with observe(run_dir=sys.argv[1], probes="off", quiet=True) as obs:
    loader = obs.loader(DataLoader(torch.ones(8, 3), 2, num_workers=1, persistent_workers=True))
    batches = iter(loader)
    for inputs in batches:
        train_on(inputs)
load_run(obs.run_dir)
"""


def test_iterators_that_are_there_until_the_interpreter_ends_say_nothing(run_dir):
    done = subprocess.run(
        [sys.executable, "-c", STILL_THERE, run_dir], capture_output=True, text=True, timeout=240
    )
    assert (done.returncode, done.stderr) == (0, "")


OF_A_CHILD = """
import multiprocessing, sys
from trainobs import observe

def train():
    obs = observe(run_dir=sys.argv[1], probes="off")
    with obs.step():
        pass

process = multiprocessing.get_context("fork").Process(target=train)
process.start()
process.join()
"""


def test_at_the_end_of_a_child_that_began_it_it_ends(run_dir):
    assert Job("-c", OF_A_CHILD, run_dir).end()[0] == 0
    assert step_numbers(run_dir) == [0]
    assert outcome(run_dir) == "interpreter exit"


def test_in_a_forked_child_its_words_do_nothing(run_dir):
    obs = observe(run_dir=run_dir, probes="off")
    batches = loader()
    pid = os.fork()
    if pid == 0:
        with obs.step(), obs.phase("forward"):
            same = obs.loader(batches) is batches
        obs.close()
        os._exit(0 if same and obs._session is None and not plain._running else 1)
    assert os.waitpid(pid, 0)[1] == 0
    steps(obs, 1)
    obs.close()
    assert step_numbers(run_dir) == [0]


def test_after_its_end_a_loader_is_as_it_was_given(run_dir, told, untold):
    obs = observe(run_dir=run_dir, probes="off")
    batches = loader()
    observed = obs.loader(batches)
    obs.close()
    assert obs.loader(observed) is batches
    assert told() == ["trainobs takes no notice of what is marked after the end of a run"]


def for_steps(run_dir: Path) -> list[int | None]:
    """The step of each batch of training, in the order in which they were fetched."""
    table = pq.read_table(part_files(run_dir, 0, BATCHES))
    return table.sort_by("fetch_begin_ns")["for_step"].to_pylist()


@pytest.mark.needs_bpf
@pytest.mark.parametrize("workers", [0, 2])
def test_without_steps_each_fetch_begins_one_and_batches_know_theirs(run_dir, tmp_path, workers):
    data = FileData(tmp_path / "data", 10)
    validation = DataLoader(FileData(tmp_path / "validation", 3), num_workers=workers)
    obs = observe(run_dir=run_dir)
    batches = obs.loader(DataLoader(data, num_workers=workers))
    for _ in range(3):
        for batch in batches:
            torch.square(batch)
        with torch.no_grad():
            for _ in obs.loader(validation):
                pass
    obs.close()
    found = read_steps(run_dir)
    assert found["step"].to_pylist() == [None, *range(30)]
    assert found["epoch"].to_pylist()[1:] == [0] * 10 + [1] * 10 + [2] * 10
    expected = [[*range(10 * epoch, 10 * epoch + 10), None, None, None] for epoch in range(3)]
    assert for_steps(run_dir) == sum(expected, [])  # None: of validation


@pytest.mark.needs_bpf
def test_nothing_is_predicted_of_a_step_that_takes_from_several_loaders(run_dir, tmp_path):
    data = FileData(tmp_path / "data", 40)
    with observe(run_dir=run_dir) as obs:
        loaders = (obs.loader(DataLoader(data, num_workers=workers)) for workers in (1, 0))
        for _ in zip(*loaders, strict=True):
            with obs.step():
                pass
    summary = summarize(RunLog.open(run_dir))
    found = summary["would_help"]["refused"]
    assert found == "a step gets batches of several loaders or passes, and a replay knows one"
    made = summary["loader"]
    assert (made["workers"], made["in_main"], made["batches"]) == (1, True, 80)


@pytest.mark.needs_bpf
@pytest.mark.parametrize("workers", [0, 2])
def test_accumulated_batches_are_of_their_step_from_the_first_on(run_dir, tmp_path, workers):
    data = FileData(tmp_path / "data", 12)
    obs = observe(run_dir=run_dir)
    for index, _ in enumerate(obs.loader(DataLoader(data, num_workers=workers))):
        if index % 4 == 3:
            with obs.step():
                pass
    obs.close()
    assert step_numbers(run_dir) == [0, 1, 2]
    assert for_steps(run_dir) == [0] * 4 + [1] * 4 + [2] * 4
    read = read_steps(run_dir)["io/data_read_bytes"].to_pylist()
    assert sum(read) == 12 * 3_000
    if not workers:
        assert read == [0, *[4 * 3_000] * 3]


@pytest.mark.parametrize("every", [1, 3])
def test_lookups_of_accumulated_batches_are_of_their_step_from_the_first_on(run_dir, every):
    model = nn.EmbeddingBag(100, 8)
    obs = observe(run_dir=run_dir, probes="off", model=model, embedding_every=every)
    for index, rows in enumerate(obs.loader(DataLoader(torch.arange(24).reshape(12, 2)))):
        model(rows).sum().backward()
        if index % 4 == 3:
            with obs.step():
                pass
    obs.close()
    found = load_run(run_dir).embeddings
    assert found["step"].to_pylist() == [0, 1, 2]
    assert found["lookup_count"].to_pylist() == [8, 8, 8]
    if every == 1:
        assert found["unique_rows"].to_pylist() == [8, 8, 8]


def test_marks_that_come_too_late_are_told(run_dir, told, untold):
    obs = observe(run_dir=run_dir, probes="off")
    for _ in obs.loader(loader(80)):
        pass
    steps(obs, 1)
    obs.close()
    assert step_numbers(run_dir) == list(range(40))
    assert told() == ["trainobs took the first 39 batches for steps"]


def test_loaders_side_by_side_make_one_step_and_one_inside_another_none(run_dir):
    obs = observe(run_dir=run_dir, probes="off")
    for _ in range(2):
        for _ in zip(obs.loader(loader()), obs.loader(loader()), strict=True):
            for _ in obs.loader(loader(4)):
                pass
    obs.close()
    assert step_numbers(run_dir) == list(range(16))
    assert read_steps(run_dir)["epoch"].to_pylist()[1:] == [0] * 8 + [1] * 8


def test_names_of_ones_own_are_parts_of_the_step(run_dir, told, untold, caplog):
    obs = observe(run_dir=run_dir, probes="off")
    for index, _ in enumerate(obs.loader(loader(24))):
        with obs.phase("augment"):
            time.sleep(0.002)
            with obs.phase("forward"):
                time.sleep(0.001)
        if index >= 10:
            with obs.phase("log-2.x"):
                time.sleep(0.001)
    for number in range(MAX_NAMED):
        with obs.phase(f"more_{number}"):
            pass
    obs.close()
    assert told() == ["phase 'more_14' is counted as other"]
    assert "found: 16 names of your own before it, and a run has at most so many" in caplog.text
    found = read_steps(run_dir)
    assert RunLog.open(run_dir).info["phases"][:2] == ["augment", "log-2.x"]
    assert min(found["phase/augment_ns"].to_pylist()[1:]) >= 2e6
    of_some = found["phase/log-2.x_ns"].to_pylist()
    assert [(ns or 0) >= 1e6 for ns in of_some] == [False] * 11 + [True] * 2
    assert "phase/more_13_ns" in found.column_names
    assert "phase/more_14_ns" not in found.column_names
    parts = [n for n in found.column_names if n.startswith("phase/")] + ["loader/wait_ns"]
    table = np.array([found[name].to_numpy() for name in parts])
    assert (np.nansum(table, axis=0) == found["step/duration_ns"].to_numpy()).all()


@pytest.mark.needs_bpf
def test_sleep_in_such_a_phase_is_sleep_in_no_phase_that_the_kernel_knows(run_dir):
    obs = observe(run_dir=run_dir)
    for _ in obs.loader(loader(6)):
        with obs.phase("forward"), obs.phase("upload"):
            time.sleep(0.02)
    obs.close()
    found = read_steps(run_dir)
    assert min(found["sched/other_sleep_ns"].to_pylist()[1:]) >= 20e6
    assert max(found["sched/forward_sleep_ns"].to_pylist()[1:]) < 5e6
    assert min(found["phase/upload_ns"].to_pylist()[1:]) >= 20e6
    summary = load_run(run_dir).summary
    assert summary["metrics"]["phase/upload_ns"]["mean"] >= 20e6
    assert "  upload  " in render(summary)
    view = RunView.open(run_dir)
    assert "phase/upload_ns" in view.head()["parts"]
    assert min(view.piece("steps/parts/1/0")["columns"]["phase/upload_ns"]) >= 20e6
    tag = metric_of_phase("upload").tag.name
    assert logged_steps(run_dir / "tensorboard", tag) == [0, 1, 2]
