"""`observe`: the words of a plain loop, their misuse, and what they cost a loop that goes wrong."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tests.integrations.models import (
    FILE_BYTES,
    FileData,
    loader,
    logged_steps,
    read_steps,
    step_numbers,
)
from trainobs import observe
from trainobs.core.abi import Phase
from trainobs.core.errors import shown
from trainobs.integrations import steps_told
from trainobs.runlog.reader import RunLog
from trainobs.steps.clock import LAST_STEP

PHASES = [phase.name.lower() for phase in Phase]


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / "run"


def column(run_dir: Path, name: str) -> list[Any]:
    return read_steps(run_dir)[name].to_pylist()


@pytest.mark.needs_bpf
def test_a_whole_loop(run_dir, tmp_path):
    data = FileData(tmp_path / "data", 12)
    batches, model = DataLoader(data, batch_size=3, num_workers=1), nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with observe(run_dir=run_dir, log_every_n_steps=2) as obs:
        observed = obs.loader(batches)
        assert len(observed) == 4
        for _ in range(2):
            for batch in observed:
                with obs.step():
                    with obs.phase("forward"):
                        loss = model(batch).mean()
                    with obs.phase("backward"):
                        loss.backward()
                    with obs.phase("optimizer"):
                        optimizer.step()
            with obs.phase("validation"):
                time.sleep(0.002)
    assert obs.level == "ebpf"
    assert obs.run_dir == run_dir
    steps = read_steps(run_dir)
    assert steps["step"].to_pylist() == [None, *range(8)]
    assert steps["epoch"].to_pylist()[1:] == [0] * 4 + [1] * 4
    for name in ("loader/wait_ns", "phase/forward_ns", "phase/backward_ns", "phase/optimizer_ns"):
        assert min(steps[name].to_pylist()[1:]) > 0
    # Null in what was delivered before there was any.
    validated = [(ns or 0) >= 2e6 for ns in steps["phase/validation_ns"].to_pylist()]
    assert validated == [False] * 4 + [True] + [False] * 3 + [True]
    assert sum(steps["io/data_read_bytes"].to_pylist()) == 2 * 12 * FILE_BYTES
    assert logged_steps(run_dir / "tensorboard") == list(range(8))
    assert RunLog.open(run_dir).info["summary"]["outcome"] == "ok"


class Hidden(Dataset):
    """A file of 12 items, which nothing that is known of data sets leads to."""

    def __init__(self, place: Path, kind: str) -> None:
        self.file = place / "items.bin"
        self.file.write_bytes(bytes(12 * FILE_BYTES))
        self.path_of = str(self.file).split  # not even a path among its attributes
        self.descriptor = os.open(self.file, os.O_RDONLY) if kind == "descriptor" else None
        self.mapped: np.memmap | None = None
        self.kind = kind
        del self.file

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        (path,) = self.path_of("\0")
        if self.descriptor is not None:
            return len(os.pread(self.descriptor, FILE_BYTES, index * FILE_BYTES))
        if self.kind == "path":
            with open(path, "rb", buffering=0) as file:
                file.seek(index * FILE_BYTES)
                return len(file.read(FILE_BYTES))
        if self.mapped is None:
            self.mapped = np.memmap(path, mode="r")
        return int(self.mapped[index * FILE_BYTES])


@pytest.mark.needs_bpf
@pytest.mark.parametrize("kind", ["path", "descriptor", "memmap"])
def test_without_workers_what_is_read_for_a_batch_is_data(run_dir, tmp_path, kind):
    data = Hidden(tmp_path, kind)
    with observe(run_dir=run_dir) as obs:
        for _ in obs.loader(DataLoader(data, batch_size=3)):
            with obs.step():
                pass
    if data.descriptor is not None:
        os.close(data.descriptor)
    if kind == "memmap":
        assert sum(column(run_dir, "io/data_mmap_bytes")) == 12 * FILE_BYTES
    else:
        assert column(run_dir, "io/data_read_bytes") == [0, *[3 * FILE_BYTES] * 4]


def test_accumulated_batches_are_one_step(run_dir):
    with observe(run_dir=run_dir) as obs:
        for index, _ in enumerate(obs.loader(loader(16))):
            with obs.phase("forward"):
                pass
            if index % 4 == 3:
                with obs.step(), obs.phase("optimizer"):
                    pass
    assert step_numbers(run_dir) == [0, 1]
    assert min(column(run_dir, "phase/forward_ns")[1:]) > 0


def test_steps_need_no_loader_and_may_have_numbers_of_their_own(run_dir):
    with observe(run_dir=run_dir) as obs:
        for number in (None, 10, None, torch.tensor(50), True):
            with obs.step(number):
                pass
    assert step_numbers(run_dir) == [0, 10, 11, 50, 1]


class NoNumber:
    """Fails as it is asked for its number, and for its name."""

    def __index__(self) -> int:
        raise LookupError("evil")

    def __repr__(self) -> str:
        raise LookupError("evil")


def test_a_step_number_that_fails_as_it_is_asked_stops_no_training(run_dir, caplog, told, untold):
    with observe(run_dir=run_dir, probes="off") as obs, obs.step(NoNumber()):
        pass
    assert step_numbers(run_dir) == [0]
    assert told() == ["trainobs takes no notice of a bad step number"]
    assert "a NoNumber without a repr: LookupError" in caplog.text


@pytest.mark.parametrize("number", [-1, 1.5, "3", 2**63, torch.tensor([1, 2])])
def test_a_bad_step_number_gives_way_to_the_next_and_is_told_once(
    run_dir, number, caplog, told, untold
):
    with observe(run_dir=run_dir, probes="off") as obs:
        for _ in range(2):
            with obs.step(number):
                pass
        with obs.step(5):
            pass
    assert step_numbers(run_dir) == [0, 1, 5]
    assert told() == ["trainobs takes no notice of a bad step number"]
    assert repr(number) in caplog.text


@pytest.mark.parametrize(
    "name", ["for ward", "a/b", "x" * 41, "\x1b[31m", "", None, 3, ["forward"]]
)
def test_a_name_that_can_be_no_phases_counts_as_other_and_is_told_once(
    run_dir, name, caplog, told, untold
):
    with observe(run_dir=run_dir, probes="off") as obs:
        for _ in range(2):
            with obs.step(), obs.phase(name):
                time.sleep(0.001)
    assert column(run_dir, "phase/other_ns")[1] >= 1e6
    assert told() == [f"phase {shown(name)} is counted as other"]
    assert all(repr(phase) in caplog.text for phase in PHASES)


def test_a_phase_that_nobody_marks_is_unknown_and_not_0(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs, obs.step(), obs.phase("forward"):
        pass
    assert column(run_dir, "loader/wait_ns")[1] is None
    assert column(run_dir, "phase/backward_ns")[1] is None
    assert column(run_dir, "phase/forward_ns")[1] is not None


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_its_metric(run_dir, phase):
    with observe(run_dir=run_dir, probes="off") as obs, obs.step(), obs.phase(phase):
        time.sleep(0.001)
    name = "loader/wait_ns" if phase == "loader" else f"phase/{phase}_ns"
    assert column(run_dir, name)[1] >= 1e6


def test_an_exception_arrives_as_it_is_and_the_run_says_so(run_dir):
    with (
        pytest.raises(LookupError, match="^mine$") as caught,
        observe(run_dir=run_dir) as obs,
        obs.step(),
        obs.phase("forward"),
    ):
        raise LookupError("mine")
    assert caught.value.__context__ is None
    assert step_numbers(run_dir) == [0]
    assert RunLog.open(run_dir).info["summary"]["outcome"] == "exception: LookupError"


def misuse_of(obs: Any) -> Iterator[None]:
    with obs.step(), obs.step(), obs.step(3):
        yield
    scope, other = obs.phase("forward"), obs.phase("backward")
    scope.__enter__()
    other.__enter__()
    scope.__exit__(None, None, None)
    other.__exit__(None, None, None)
    other.__exit__(None, None, None)
    obs.step().__exit__(None, None, None)
    yield
    for first, second in zip(obs.loader(loader()), obs.loader(loader()), strict=True):
        assert torch.equal(first, second)
    with obs.phase("forward"):
        list(obs.loader(loader()))
    for _ in obs.loader(obs.loader(loader())):
        with obs.step():
            break
    yield
    obs.phase("forward").__enter__()  # and never left
    list(obs.loader(range(3)))
    yield


def test_no_misuse_of_the_words_kills_the_training(run_dir):
    with observe(run_dir=run_dir) as obs:
        assert len(list(misuse_of(obs))) == 4
    steps = read_steps(run_dir)
    assert sum(steps["step/duration_ns"].to_pylist()) > 0


def test_the_words_still_work_after_the_run_and_do_nothing(run_dir, told, untold):
    with observe(run_dir=run_dir) as obs, obs.step():
        pass
    for _ in range(50):
        assert len(list(misuse_of(obs))) == 4
        with obs.step(), obs.phase("forward"):
            pass
    assert step_numbers(run_dir) == [0]
    assert told() == ["trainobs takes no notice of what is marked after the end of a run"]


def test_two_loaders_side_by_side_are_one_epoch(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs:
        images, texts = obs.loader(loader()), obs.loader(loader())
        for _ in range(3):
            for _, _ in zip(images, texts, strict=True):
                with obs.step():
                    pass
    assert sorted(set(column(run_dir, "epoch")[1:])) == [0, 1, 2]


def test_a_loop_whose_fetches_can_be_no_steps_is_told(run_dir, told, untold):
    with observe(run_dir=run_dir, probes="off") as obs:
        batches = iter(obs.loader(loader()))
        for _ in range(3):
            with obs.phase("loader"):
                next(batches)
    assert told() == ["trainobs takes the whole loop for one step"]


def test_a_validation_before_the_training_makes_no_steps(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs:
        with torch.no_grad():
            for _ in obs.loader(loader()):
                pass
        for _ in obs.loader(loader()):
            pass
    assert step_numbers(run_dir) == list(range(len(loader())))


class Late(Dataset):
    """Batches that take 20 ms each, by index or one after another."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        time.sleep(0.02)
        return index

    def __iter__(self) -> Iterator[int]:
        return map(self.__getitem__, range(3))


@pytest.mark.parametrize("of_torch", [True, False])
def test_what_a_marked_validation_waits_for_is_validation(run_dir, of_torch):
    with observe(run_dir=run_dir, probes="off") as obs:
        late = obs.loader(DataLoader(Late(), batch_size=None) if of_torch else Late())
        for number, _ in enumerate(obs.loader(loader(8))):
            with obs.step():
                pass
            with obs.phase("validation"):
                for _ in late:
                    if number == 2:
                        break
        for _ in obs.loader(loader(8)):
            with obs.step():
                pass
    assert step_numbers(run_dir) == list(range(8))
    late_batches = [(ns or 0) // 20_000_000 for ns in column(run_dir, "phase/validation_ns")[1:]]
    assert [late_batches[step] >= least for step, least in enumerate((3, 3, 1, 3))] == [True] * 4
    assert not any(late_batches[4:])
    assert sum(ns or 0 for ns in column(run_dir, "loader/wait_ns")[1:]) < 3 * 20e6


def test_a_look_at_the_first_batch_costs_no_steps(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs:
        batches = obs.loader(loader())
        looked = iter(batches)
        next(looked)
        for _ in batches:
            pass
        del looked
    assert step_numbers(run_dir) == list(range(1 + len(loader())))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loop_that_was_broken_off_leaves_the_steps_to_the_next_loader(run_dir, persistent):
    with observe(run_dir=run_dir, probes="off") as obs:
        tried = obs.loader(loader(num_workers=1, persistent_workers=persistent))
        for _ in tried:
            break
        for _ in obs.loader(loader()):
            pass
    assert step_numbers(run_dir) == list(range(1 + len(loader())))


def test_a_mark_in_another_thread_changes_nothing_and_is_told(run_dir, told, untold):
    entered, over = threading.Event(), threading.Event()

    def save(obs: Any) -> None:
        with obs.phase("checkpoint"), obs.step():
            entered.set()
            over.wait()

    with observe(run_dir=run_dir, probes="off") as obs:
        thread = threading.Thread(target=save, args=[obs])
        thread.start()
        entered.wait()
        for _ in obs.loader(loader()):
            pass
        over.set()
        thread.join()
    assert step_numbers(run_dir) == list(range(len(loader())))
    assert told() == ["trainobs takes no notice of a mark in another thread"]


@pytest.mark.parametrize("marked", [True, False])
def test_a_loop_that_goes_on_without_its_loader_is_told(run_dir, told, untold, monkeypatch, marked):
    monkeypatch.setattr(steps_told, "_LONG_NS", 0)
    with observe(run_dir=run_dir, probes="off") as obs:
        for _ in islice(cycle(obs.loader(loader())), 100):
            with obs.phase("validation" if marked else "forward"):
                time.sleep(0.001)
    if marked:
        assert told() == []
    else:
        (line,) = told()
        assert re.fullmatch(r"the last step includes \d+ ms after the last fetch", line)


def test_numbers_at_the_end_of_their_range_lose_no_record(run_dir):
    with observe(run_dir=run_dir, probes="off") as obs:
        for number in (7, LAST_STEP, None):
            with obs.step(number):
                pass
    assert step_numbers(run_dir) == [7, LAST_STEP, LAST_STEP]
    assert RunLog.open(run_dir).unreadable == {}
