"""A loop of one's own whose parts Hugging Face Accelerate has prepared, under `observe`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader

from tests.integrations.models import (
    FEATURES,
    FILE_BYTES,
    FileData,
    read_steps,
    step_numbers,
    told_by_trainobs,
)
from tests.session.jobs import end_of_two_ranks
from trainobs import observe
from trainobs.runlog.reader import RunLog

JOB = Path(__file__).with_name("accelerate_job.py")


class Loop:
    """A loop as Accelerate's guide writes it, observed."""

    def __init__(self, directory: Path, *, dispatch: bool = False, accumulate: int = 1) -> None:
        config = DataLoaderConfiguration(dispatch_batches=dispatch)
        self.accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, dataloader_config=config
        )
        self.data = FileData(directory / "data", 16)
        self.run_dir = directory / "run"
        torch.manual_seed(0)
        self.module = nn.Linear(FEATURES, 1)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=0.1)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(
            self.module, optimizer, DataLoader(self.data, batch_size=2, shuffle=True)
        )

    def run(self, epochs: int = 2) -> None:
        with observe(run_dir=self.run_dir) as obs:
            train = obs.loader(self.loader)
            for _ in range(epochs):
                for batch in train:
                    with self.accelerator.accumulate(self.model):
                        self.batch(obs, batch)

    def batch(self, obs: Any, batch: torch.Tensor) -> None:
        with obs.phase("forward"):
            loss = self.model(batch).square().mean()
        with obs.phase("backward"):
            self.accelerator.backward(loss)
        with obs.step() if self.accelerator.sync_gradients else nullcontext():
            with obs.phase("optimizer"):
                self.optimizer.step()
            self.optimizer.zero_grad()

    def column(self, name: str) -> list[Any]:
        return read_steps(self.run_dir)[name].to_pylist()[1:]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Accelerate keeps its state in the process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.needs_bpf
@pytest.mark.parametrize("dispatch", [False, True])
def test_a_prepared_loader_reads_one_batch_ahead(tmp_path, dispatch):
    loop = Loop(tmp_path, dispatch=dispatch)
    assert type(loop.loader) is (DataLoaderDispatcher if dispatch else DataLoaderShard)
    loop.run()
    files = [4, 2, 2, 2, 2, 2, 2, 0]
    assert loop.column("step") == list(range(16))
    assert loop.column("epoch") == [0] * 8 + [1] * 8
    assert loop.column("io/data_read_count") == files * 2
    assert loop.column("io/data_read_bytes") == [n * FILE_BYTES for n in files * 2]
    assert min(loop.column("loader/wait_ns")) > 0


@pytest.mark.needs_bpf
def test_accumulated_batches_are_one_step(tmp_path):
    loop = Loop(tmp_path, accumulate=3)
    loop.run()
    assert loop.column("step") == list(range(6))
    assert loop.column("io/data_read_count") == [8, 6, 2] * 2
    assert min(loop.column("phase/backward_ns")) > 0


@pytest.mark.parametrize("dispatch", [False, True])
def test_weights_are_the_same_to_the_last_bit(tmp_path, monkeypatch, dispatch):
    found = []
    for switch in ("on", "off"):
        monkeypatch.setenv("TRAINOBS", switch)
        loop = Loop(tmp_path, dispatch=dispatch, accumulate=3)
        loop.run()
        found.append((loop.module.weight.detach().clone(), torch.rand(1)))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_a_step_that_the_scaler_skipped_is_a_step_all_the_same(tmp_path):
    class Overflowing(Loop):
        """The third step's gradients are infinite."""

        def batch(self, obs: Any, batch: torch.Tensor) -> None:
            super().batch(obs, batch * torch.inf if len(skipped) == 2 else batch)
            skipped.append(self.optimizer.step_was_skipped)

    skipped: list[bool] = []
    loop = Overflowing(tmp_path)
    # On a CPU Accelerate itself makes no scaler.
    scaler = loop.accelerator.scaler = torch.amp.GradScaler("cpu")
    loop.optimizer = AcceleratedOptimizer(loop.optimizer.optimizer, scaler=scaler)
    loop.run(epochs=1)
    assert skipped == [False, False, True] + [False] * 5
    assert loop.column("step") == list(range(8))


@pytest.mark.needs_bpf
@pytest.mark.parametrize("dispatch", [False, True])
def test_skipping_the_first_batches_of_what_is_observed_or_observing_the_rest(tmp_path, dispatch):
    loop = Loop(tmp_path, dispatch=dispatch)
    kind = type(loop.loader)
    with observe(run_dir=loop.run_dir) as obs:
        skipped = loop.accelerator.skip_first_batches(obs.loader(loop.loader), 6)
        assert type(skipped) is kind
        for _ in obs.loader(loop.accelerator.skip_first_batches(loop.loader, 6)):
            with obs.step():
                pass
    assert loop.column("io/data_read_count") == [4, 0]


def test_a_loader_that_is_observed_and_then_prepared_is_accelerates_own(tmp_path):
    loop = Loop(tmp_path)
    with observe(run_dir=loop.run_dir, probes="off") as obs:
        for _ in loop.accelerator.prepare(obs.loader(DataLoader(loop.data, batch_size=2))):
            with obs.step():
                pass
        again = obs.loader(loop.loader)
        assert loop.accelerator.prepare(again) is again  # it was prepared before
    assert loop.column("step") == list(range(8))
    assert set(loop.column("loader/wait_ns")) == {None}  # nobody saw the fetches


@pytest.fixture(scope="module", params=["shard", "dispatch", "late"])
def job(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, int, list[str], str]:
    """How the loop was made, a directory, and how two ranks that trained there ended."""
    directory = tmp_path_factory.mktemp("accelerate")
    return (request.param, directory, *end_of_two_ranks(JOB, directory, request.param))


def test_ranks_share_the_data_as_if_they_were_not_observed(job):
    _, directory, status, lines, errors = job
    assert status == 0, errors
    said = sorted(line for line in lines if line.startswith("rank "))
    halves = [[i for i in range(16) if i // 2 % 2 == rank] for rank in (0, 1)]
    run = directory / "run"
    assert said == [f"rank {r} saw {halves[r]} and wrote to {run}" for r in (0, 1)]
    assert told_by_trainobs(errors) == []


def test_each_rank_has_its_record(job):
    run = RunLog.open(job[1] / "run")
    assert (list(run.ranks), run.info["world_size"]) == ([0, 1], 2)
    for rank in (0, 1):
        assert step_numbers(job[1] / "run", rank) == list(range(4))


@pytest.mark.needs_bpf
def test_each_rank_counts_what_it_read_itself(job):
    way, directory, *_ = job
    reads = [
        sum(read_steps(directory / "run", rank)["io/data_read_count"].to_pylist())
        for rank in (0, 1)
    ]
    assert reads == ([16, 0] if way == "dispatch" else [8, 8])  # rank 0 reads for all
