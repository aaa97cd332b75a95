"""Which batch a step got from Accelerate's loaders, which fetch one ahead: by the files in it.

File n has 2 ** n bytes, so that the bytes read for a batch tell which files are in it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.data_loader import DataLoaderShard
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer

from tests import needs
from tests.integrations.models import read_steps
from tests.integrations.trainers import Sample, TokenFiles, sample
from tests.samples import part_files
from trainobs import ObsTrainerCallback, observe
from trainobs.analysis.one_step import explain
from trainobs.analysis.summary import summarize
from trainobs.analysis.verdicts import summed_steps
from trainobs.cli import main
from trainobs.report.one_step import render
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES
from trainobs.verdict.facts import facts_from
from trainobs.verdict.replayable import replay_of

pytestmark = pytest.mark.needs_bpf

PARTS = [f"loader/{part}_ns" for part in ("device", "cpu_wait", "compute", "sleep", "handover")]
COUNT = 13
"""Samples, in batches of two: the last one is not whole."""

Steps = dict[int, list[int]]
"""Step -> the files in each of its batches."""


class Files(TokenFiles):
    """File n has 2 ** n bytes, and its sample begins with n."""

    def __init__(self, root: Path, count: int = COUNT) -> None:
        root.parent.mkdir(exist_ok=True)
        super().__init__(root, count)
        for index in range(count):
            (root / f"{index}").write_bytes(bytes(2**index))

    def __getitem__(self, index: int) -> Sample:
        (self.root / f"{index}").open("rb", buffering=0).read(2**index)
        return sample(index)


class FileStream(IterableDataset[Sample]):
    """The same without a length."""

    def __init__(self, root: Path, count: int = COUNT) -> None:
        self.files = Files(root, count)

    def __iter__(self) -> Iterator[Sample]:
        return (self.files[index] for index in range(self.files.count))


def bytes_in(batch: Sample) -> int:
    return sum(2**index for index in batch["input_ids"][:, 0].tolist())


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The table `batches`, in the order in which they were fetched."""
    return pq.read_table(part_files(run_dir, 0, BATCHES)).sort_by("fetch_begin_ns").to_pylist()


def found(run_dir: Path) -> Steps:
    steps: Steps = defaultdict(list)
    for row in rows(run_dir):
        if row["for_step"] is not None:
            steps[row["for_step"]].append(row["read_bytes"])
    return steps


def of_no_step(run_dir: Path) -> list[int]:
    return [row["read_bytes"] for row in rows(run_dir) if row["for_step"] is None]


def assert_waits_are_explained(run_dir: Path) -> None:
    """Each wait is divided, and each batch was fetched in its step or in the one before."""
    steps = read_steps(run_dir).to_pylist()
    for row in steps[1:]:
        assert sum(row[part] for part in PARTS) == row["loader/wait_ns"]
    begun = {row["step"]: row["start_ns"] for row in steps}
    for row in rows(run_dir):
        if row["for_step"] is not None:
            before = begun.get(row["for_step"] - 1, begun[row["for_step"]])
            assert before <= row["fetch_begin_ns"] <= row["fetch_end_ns"]


class Noting(Trainer):
    """Notes what each step trained on."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.noted: Steps = defaultdict(list)

    def training_step(self, model: Any, inputs: Sample, *args: Any, **kwargs: Any) -> Tensor:
        self.noted[self.state.global_step + 1].append(bytes_in(inputs))
        return super().training_step(model, inputs, *args, **kwargs)


def trained(hf: Any, **options: Any) -> tuple[Path, Noting]:
    callback = ObsTrainerCallback()
    options = {"data": Files(hf.directory / "data"), "kind": Noting} | options
    trainer = hf.train(callback, **options)
    return callback.run_dir, trainer


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_steps_of_a_trainer_have_the_batches_that_they_trained_on(hf, workers, accumulate):
    run_dir, trainer = trained(
        hf,
        num_train_epochs=3,
        dataloader_num_workers=workers,
        gradient_accumulation_steps=accumulate,
        eval_strategy="steps",
        eval_steps=2,
    )
    assert found(run_dir) == trainer.noted
    assert sum(map(len, trainer.noted.values())) == 3 * 7
    assert len(of_no_step(run_dir)) > 0  # of evaluations
    assert set(of_no_step(run_dir)) == {0}
    assert_waits_are_explained(run_dir)


def test_workers_that_live_on(hf):
    run_dir, trainer = trained(
        hf, num_train_epochs=3, dataloader_num_workers=2, dataloader_persistent_workers=True
    )
    assert found(run_dir) == trainer.noted
    assert sum(map(len, trainer.noted.values())) == 3 * 7
    assert of_no_step(run_dir) == []
    assert_waits_are_explained(run_dir)


def test_the_batch_that_was_fetched_ahead_of_the_end_has_no_step(hf):
    run_dir, trainer = trained(hf, max_steps=3)
    assert found(run_dir) == trainer.noted
    assert len(trainer.noted) == 3
    assert len(of_no_step(run_dir)) == 1


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream(hf, workers):
    data = FileStream(hf.directory / "data")
    run_dir, trainer = trained(hf, data=data, max_steps=17, dataloader_num_workers=workers)
    assert found(run_dir) == trainer.noted
    assert len(trainer.noted) == 17
    assert_waits_are_explained(run_dir)


@needs.needs_torch("2.6", "what transformers demands to resume")
@pytest.mark.parametrize("stream", [False, True])
def test_a_resumed_training_skips_batches(hf, stream):
    data = (FileStream if stream else Files)(hf.directory / "data")
    hf.train(data=data, max_steps=4, save_strategy="steps", save_steps=4)
    callback = ObsTrainerCallback()
    trainer = hf.trainer(callback, data=data, kind=Noting, max_steps=14)
    trainer.train(resume_from_checkpoint=str(hf.output / "checkpoint-4"))
    assert found(callback.run_dir) == trainer.noted
    assert sorted(trainer.noted) == list(range(5, 15))


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_loader_of_torch_that_nobody_prepared(hf, workers, persistent):
    class Own(Noting):
        def get_train_dataloader(self) -> DataLoader[Sample]:
            return loader

    loader = DataLoader(
        Files(hf.directory / "data"),
        batch_size=2,
        shuffle=True,
        num_workers=workers,
        persistent_workers=persistent,
    )
    run_dir, trainer = trained(hf, kind=Own, num_train_epochs=2)
    loader._iterator = None  # ends workers that live on
    assert found(run_dir) == trainer.noted
    assert sum(map(len, trainer.noted.values())) == 2 * 7
    assert_waits_are_explained(run_dir)


@pytest.fixture
def fresh() -> Iterator[None]:
    """Accelerate keeps its state in the process."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


class Loop:
    """A loop of one's own; notes what each step trained on."""

    def __init__(self, directory: Path, *, accumulate: int = 1, **config: Any) -> None:
        self.accelerator = Accelerator(
            cpu=True,
            gradient_accumulation_steps=accumulate,
            dataloader_config=DataLoaderConfiguration(**config),
        )
        model = nn.Linear(1, 1)
        self.model, self.optimizer = self.accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.1)
        )
        self.directory = directory
        self.run_dir = directory / "run"
        self.noted: Steps = defaultdict(list)
        self.done = 0

    def loader(self, data: Any = None, **options: Any) -> Any:
        data = data or Files(self.directory / "data")
        if not isinstance(data, IterableDataset):
            options.setdefault("shuffle", True)
        return self.accelerator.prepare(DataLoader(data, batch_size=2, **options))

    def run(self, obs: Any, batches: Any, *, marks: bool = True) -> None:
        for batch in batches:
            self.noted[self.done].append(bytes_in(batch))
            with self.accelerator.accumulate(self.model):
                self.accelerator.backward(self.model(batch["input_ids"][:, :1].float()).mean())
                is_step = marks and self.accelerator.sync_gradients
                with obs.step() if is_step else nullcontext():
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            self.done += int(self.accelerator.sync_gradients)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("way", ["fetches", "marks", "accumulated"])
def test_steps_of_a_loop_have_the_batches_that_they_trained_on(tmp_path, workers, persistent, way):
    loop = Loop(tmp_path, accumulate=3 if way == "accumulated" else 1)
    loader = loop.loader(num_workers=workers, persistent_workers=persistent)
    other = loop.loader(
        Files(tmp_path / "data" / "evaluation", 3), shuffle=False, num_workers=workers
    )
    with observe(run_dir=loop.run_dir) as obs:
        batches = obs.loader(loader)
        for _ in range(3):
            loop.run(obs, batches, marks=way != "fetches")
            for _ in other:
                pass
            with obs.phase("validation"):
                list(obs.loader(other))
    loader.base_dataloader._iterator = None
    assert found(loop.run_dir) == loop.noted
    assert sum(map(len, loop.noted.values())) == 3 * 7
    assert of_no_step(loop.run_dir) == [3, 4] * 6  # two passes over the other loader each time
    assert_waits_are_explained(loop.run_dir)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_dispatches_to_one_process(tmp_path, workers):
    loop = Loop(tmp_path, dispatch_batches=True)
    loader = loop.loader(FileStream(tmp_path / "data", 12), num_workers=workers)
    with observe(run_dir=loop.run_dir) as obs:
        batches = obs.loader(loader)
        for _ in range(2):
            loop.run(obs, batches)
    assert found(loop.run_dir) == loop.noted
    assert sum(map(len, loop.noted.values())) == 2 * 6


@pytest.mark.usefixtures("fresh")
def test_passes_that_break_off_leave_what_was_fetched_ahead_to_no_step(tmp_path):
    loop = Loop(tmp_path)
    loader = loop.loader(num_workers=2, persistent_workers=True)
    with observe(run_dir=loop.run_dir) as obs:
        batches = obs.loader(loader)
        for _ in range(4):
            loop.run(obs, islice(batches, 3))
    loader.base_dataloader._iterator = None
    assert found(loop.run_dir) == loop.noted
    assert sum(map(len, loop.noted.values())) == 4 * 3


class Shuffled(DataLoaderShard):
    """Gives the batches in another order than torch's loader."""

    def __iter__(self) -> Iterator[Any]:
        held = list(self.base_dataloader)
        yield from reversed(held)


@pytest.mark.usefixtures("fresh")
def test_nothing_is_said_of_a_loader_with_ways_of_its_own(tmp_path, capsys):
    loop = Loop(tmp_path)
    loader = loop.loader()
    shuffled = Shuffled(Files(tmp_path / "data", 12), batch_sampler=loader.batch_sampler)
    with observe(run_dir=loop.run_dir, quiet=True) as obs:
        batches = obs.loader(shuffled)
        for _ in range(6):
            loop.run(obs, batches)
    assert found(loop.run_dir) == {}
    run = RunLog.open(loop.run_dir)
    why = "torch's DataLoader made its batches, and it is not known which step got which"
    assert summarize(run)["would_help"]["refused"] == why
    assert render(explain(run, 20)).splitlines()[-1] == f"Its batches are not known: {why}"
    assert main(["whatif", str(loop.run_dir), "workers=1"]) == 2
    told = capsys.readouterr().err
    assert why in told
    assert "doctor" not in told
    assert main(["report", str(loop.run_dir)]) == 0
    report = " ".join(capsys.readouterr().out.split())
    assert f"What would help: not known; {why}" in report


class OneByOne(DataLoader[Any]):
    """A loader of torch that goes on with each batch, as those of litdata do."""

    def __iter__(self) -> Any:
        yield from super().__iter__()


class OneAhead(DataLoader[Any]):
    """Fetches one batch more than it gives, as no loader does that is known."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        held = next(batches)
        for batch in batches:
            yield held
            held = batch


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("kind", [OneByOne, OneAhead])
def test_a_loader_of_torch_with_an_iter_of_its_own(tmp_path, workers, persistent, kind):
    loop, data = Loop(tmp_path), Files(tmp_path / "data")
    how = {"num_workers": workers, "persistent_workers": persistent}
    loader = kind(data, batch_size=2, shuffle=True, **how)
    with observe(run_dir=loop.run_dir) as obs:
        batches = obs.loader(loader)
        loop.run(obs, batches)
        loop.run(obs, islice(batches, 3))
        loop.run(obs, batches)
    loader._iterator = None
    assert found(loop.run_dir) == (loop.noted if kind is OneByOne else {})
    assert sum(map(len, loop.noted.values())) == (17 if kind is OneByOne else 15)


def test_what_came_from_no_loader_of_torch_is_told_as_that(tmp_path, capsys):
    with observe(run_dir=tmp_path / "run", quiet=True) as obs:
        for _ in obs.loader([torch.zeros(1)] * 40):
            pass
    run = RunLog.open(tmp_path / "run")
    why = "no DataLoader of torch made an iterator for the training thread in this run"
    assert summarize(run)["would_help"]["refused"] == why
    assert render(explain(run, 20)).splitlines()[-1] == f"Its batches are not known: {why}"
    assert main(["whatif", str(tmp_path / "run")]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_of_a_trainer_can_be_replayed(hf, workers):
    """As far as a machine that is busy with other things lets it be replayed."""
    run_dir, _ = trained(hf, num_train_epochs=12, dataloader_num_workers=workers)
    run = RunLog.open(run_dir)
    summed = summed_steps(run).run
    assert np.isfinite(summed.sample().columns["batch/compute_ns"]).all()
    assert replay_of(summed, facts_from(run.info)) is not None


def test_of_a_loop_inside_of_a_phase_no_step_is_known(tmp_path, told, untold):
    with observe(run_dir=tmp_path / "run", quiet=True) as obs, obs.phase("train"):
        for _ in obs.loader(DataLoader(Files(tmp_path / "data"))):
            with obs.step():
                pass
    assert len(of_no_step(tmp_path / "run")) == COUNT
    assert len(told()) == 1
