"""Which batch a step of Lightning consumed, and why it waited for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    SequentialSampler,
    get_worker_info,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from tests.integrations.models import (
    FILE_BYTES,
    FileData,
    Lightning,
    loader,
    read_steps,
    tiny_class,
)
from tests.samples import part_files
from trainobs import ObsCallback
from trainobs.runlog.schema import BATCHES

pytestmark = pytest.mark.needs_bpf

PARTS = [f"loader/{part}_ns" for part in ("device", "cpu_wait", "compute", "sleep", "handover")]
FILES, EPOCHS, WORKERS = 12, 2, 2


class Unsized(BatchSampler):
    """Batches of two, of which nobody knows how many there are."""

    def __init__(self, count: int) -> None:
        super().__init__(SequentialSampler(range(count)), 2, drop_last=False)

    def __len__(self) -> int:
        raise TypeError("no length")


def rows(run_dir: Path) -> list[dict[str, Any]]:
    """The `batches` table, by the step that consumed them."""
    tables = [pq.read_table(path, partitioning=None) for path in part_files(run_dir, 0, BATCHES)]
    found = pa.concat_tables(tables).to_pylist()
    return sorted(found, key=lambda row: -1 if row["for_step"] is None else row["for_step"])


def fit(lightning: Lightning, loaders: Any, module: Any = None, **options: Any) -> ObsCallback:
    root = lightning.directory / "data"
    callback = ObsCallback(data_roots=root if root.exists() else None)
    trainer = lightning.trainer(callback, **{"max_epochs": EPOCHS, **options})
    trainer.fit(module or lightning.module(), loaders)
    return callback


def files(lightning: Lightning, **options: Any) -> DataLoader[torch.Tensor]:
    data = FileData(lightning.directory / "data", FILES)
    if "batch_sampler" not in options:
        options["batch_size"] = 2
    return DataLoader(data, num_workers=WORKERS, **options)


def assert_adds_up(callback: ObsCallback) -> None:
    for row in read_steps(callback.run_dir).to_pylist():
        assert sum(row[part] for part in PARTS) == row["loader/wait_ns"]


@pytest.mark.parametrize("persistent", [False, True])
def test_every_batch_has_its_step_and_its_worker(lightning: Lightning, persistent: bool) -> None:
    callback = fit(lightning, files(lightning, persistent_workers=persistent))
    batches = rows(callback.run_dir)
    assert [row["for_step"] for row in batches] == [*range(EPOCHS * FILES // 2)]
    for row in batches:
        index = row["for_step"] % (FILES // 2)
        assert (row["worker"], row["number"]) == (index % WORKERS, index // WORKERS)
        assert (row["read_bytes"], row["read_count"]) == (2 * FILE_BYTES, 2)
        assert int(row["slowest_file"]) // 2 == index
    assert_adds_up(callback)


def test_under_accumulation_a_step_consumes_several(lightning: Lightning) -> None:
    callback = fit(lightning, files(lightning), accumulate_grad_batches=3)
    batches = rows(callback.run_dir)
    assert [row["for_step"] for row in batches] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert_adds_up(callback)


def test_of_two_loaders_each_batch_is_known(lightning: Lightning) -> None:
    class Both(tiny_class(lightning.pl)):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch["a"] + batch["b"], batch_idx)

    callback = fit(lightning, {"a": files(lightning), "b": files(lightning)}, Both())
    batches = rows(callback.run_dir)
    assert [row["for_step"] for row in batches[::2]] == [*range(EPOCHS * FILES // 2)]
    assert [row["for_step"] for row in batches[1::2]] == [*range(EPOCHS * FILES // 2)]
    assert len({row["loader"] for row in batches}) == 2 * EPOCHS
    assert_adds_up(callback)


def test_beside_a_loader_that_is_not_torchs_the_parts_are_unknown(lightning: Lightning) -> None:
    class Both(tiny_class(lightning.pl)):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch["a"], batch_idx)

    callback = fit(lightning, {"a": files(lightning), "b": [1, 2, 3, 4, 5, 6]}, Both())
    steps = read_steps(callback.run_dir).to_pylist()[1:]
    assert {row[part] for row in steps for part in PARTS} == {None}
    assert [row["for_step"] for row in rows(callback.run_dir)] == [*range(EPOCHS * FILES // 2)]


def trained(lightning: Lightning, loader: Any, **options: Any) -> tuple[Path, list[list[int]]]:
    """The run log, and the files in what each step trained on, as the model saw it.

    Lightning fetches one batch ahead of a loader without a length.
    """
    steps: list[list[int]] = []

    class Seeing(tiny_class(lightning.pl)):
        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            while len(steps) <= self.global_step:
                steps.append([])
            steps[-1] += (batch[:, 0] * FILES).round().int().tolist()
            return super().training_step(batch, batch_idx)

    callback = fit(lightning, loader, Seeing(), **options)
    assert callback.run_dir
    return callback.run_dir, steps


def told(batches: list[dict[str, Any]]) -> dict[int, list[str]]:
    """Step -> the file of each of its batches that took the longest."""
    found: dict[int, list[str]] = {}
    for row in batches:
        if row["for_step"] is not None:
            found.setdefault(row["for_step"], []).append(row["slowest_file"])
    return found


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_what_is_fetched_ahead_has_its_step(
    lightning: Lightning, persistent: bool, accumulate: int
) -> None:
    options = {"batch_sampler": Unsized(FILES), "persistent_workers": persistent}
    run_dir, steps = trained(
        lightning, files(lightning, **options), accumulate_grad_batches=accumulate
    )
    batches = rows(run_dir)
    assert len(batches) == EPOCHS * FILES // 2
    for step, slowest in told(batches).items():
        assert len(slowest) == accumulate
        assert all(int(file) in steps[step] for file in slowest)
    assert [*told(batches)] == [*range(len(steps))]
    assert sorted(row["read_bytes"] for row in batches) == [2 * FILE_BYTES] * len(batches)


class FileStream(IterableDataset[torch.Tensor]):
    """Files without a length: each worker has those from one number to the next."""

    def __init__(self, files: FileData, bounds: list[int]) -> None:
        self.files, self.bounds = files, bounds

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, last = self.bounds[worker.id :][:2] if worker else (0, FILES)
        return map(self.files.__getitem__, range(first, last))


@pytest.mark.parametrize(
    ("bounds", "options", "unknown"),
    [
        ([0], {}, 0),
        ([0, 12], {"val_check_interval": 4}, 0),
        ([0, 6, 12], {"accumulate_grad_batches": 2}, 2 * EPOCHS),  # those behind an end
        ([0, 6, 12], {"max_epochs": -1, "max_steps": 4}, 2),  # made, and not trained on
        ([0, 2, 12], {}, FILES - 2),  # likewise
    ],
)
def test_each_batch_of_a_stream_has_its_step(
    lightning: Lightning, bounds: list[int], options: dict[str, Any], unknown: int
) -> None:
    data = FileStream(FileData(lightning.directory / "data", FILES), bounds)
    run_dir, steps = trained(
        lightning, DataLoader(data, batch_size=2, num_workers=len(bounds) - 1), **options
    )
    batches = rows(run_dir)
    for step, slowest in told(batches).items():
        assert all(int(file) in steps[step] for file in slowest)
    missing = sum(row["for_step"] is None for row in batches)
    assert missing <= unknown
    assert [*told(batches)] == [*range(len(steps))] or unknown


def test_a_step_that_fetches_for_itself_is_timed_and_names_no_batch(lightning: Lightning) -> None:
    class Fetching(tiny_class(lightning.pl)):
        def training_step(self, dataloader_iter: Iterator[Any]) -> torch.Tensor:
            batch, _, _ = next(dataloader_iter)
            return self.layer(batch).square().mean()

    callback = fit(lightning, files(lightning), Fetching())
    steps = read_steps(callback.run_dir).to_pylist()
    assert all(row["loader/wait_ns"] > 0 for row in steps[1:])
    assert {row["for_step"] for row in rows(callback.run_dir)} == {None}
    assert_adds_up(callback)


@pytest.mark.parametrize("probes", ["auto", "off"])
def test_the_start_of_workers_is_waiting_for_the_loader(lightning: Lightning, probes: str) -> None:
    started: list[int] = []

    class Timed(DataLoader[torch.Tensor]):
        def __iter__(self) -> Any:
            begin = time.monotonic_ns()
            iterator = super().__iter__()
            started.append(time.monotonic_ns() - begin)
            return iterator

    callback = ObsCallback(probes=probes)
    trainer = lightning.trainer(callback, max_epochs=EPOCHS)
    data = FileData(lightning.directory / "data", FILES)
    trainer.fit(lightning.module(), Timed(data, batch_size=2, num_workers=WORKERS))
    steps = read_steps(callback.run_dir).to_pylist()
    first = {row["epoch"]: row for row in reversed(steps) if row["step"] is not None}
    assert len(started) == EPOCHS
    for epoch, true_ns in enumerate(started):
        assert first[epoch]["loader/wait_ns"] >= 0.9 * true_ns
        assert first[epoch]["loader/start_stop_ns"] >= 0.9 * true_ns
        assert first[epoch]["loader/start_stop_ns"] <= first[epoch]["loader/wait_ns"]


def test_torch_is_as_it_was_after_the_run(lightning: Lightning) -> None:
    before = DataLoader.__iter__, _BaseDataLoaderIter.__next__
    train = loader()
    fit(lightning, train)
    assert (DataLoader.__iter__, _BaseDataLoaderIter.__next__) == before
    assert train.worker_init_fn is None
