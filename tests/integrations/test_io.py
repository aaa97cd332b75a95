"""What a run counts of each file, by epoch: in a loop, and under Lightning and Hugging Face."""

from __future__ import annotations

import json
import os
import re
import resource
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tests.integrations.models import FILE_BYTES, FileData, Lightning
from tests.integrations.trainers import HuggingFace, TokenFiles
from trainobs import ObsCallback, ObsTrainerCallback, observe
from trainobs.analysis.summary import summarize
from trainobs.cli import main
from trainobs.probes.local_backend import LocalBackend
from trainobs.report import io_text
from trainobs.runlog.reader import RunLog
from trainobs.session import file_watch, observer

FILES, EPOCHS = 12, 3


def found(run_dir: Path | None) -> dict[str, Any]:
    assert run_dir is not None
    return summarize(RunLog.open(run_dir))["io"]


def data_read(epochs: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was read of training data, by epoch."""
    return [
        one
        for epoch in epochs
        for one in epoch["classes"]
        if (one["op"], one["class"]) == ("read", "data")
    ]


def assert_each_file_once(io: dict[str, Any], epochs: int = EPOCHS, files: int = FILES) -> None:
    assert [epoch["epoch"] for epoch in io["epochs"]] == list(range(epochs))
    rows = data_read(io["epochs"])
    assert [row["bytes"] for row in rows] == [files * FILE_BYTES] * epochs
    assert [row["open_count"] for row in rows] == [files] * epochs
    assert [row["file_count"] for row in rows] == [files] * epochs
    assert [(row["times_least"], row["times_most"]) for row in rows] == [(1, 1)] * epochs
    assert io["unknown"] == []


@pytest.mark.needs_bpf
@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}],
    ids=["no workers", "workers", "workers that stay"],
)
def test_each_epoch_of_a_loop_has_its_own_reads(tmp_path: Path, options: dict[str, Any]) -> None:
    data = FileData(tmp_path / "data", FILES)
    with observe(run_dir=tmp_path / "run", data_roots=data.root, io=True) as obs:
        loader = obs.loader(DataLoader(data, batch_size=2, shuffle=True, **options))
        for _ in range(EPOCHS):
            for _ in loader:
                pass
    io = found(tmp_path / "run")
    assert_each_file_once(io)
    (data_class,) = data_read([io])
    assert data_class["file_opens"] == [{"from": 1, "count": EPOCHS * FILES}]
    assert io["epochs"][-1]["cache"]["file_count"] == FILES
    assert {one["epochs"] for one in io["files"] if one["class"] == "data"} == {EPOCHS}


@pytest.mark.needs_bpf
@pytest.mark.parametrize("persistent", [False, True])
def test_each_epoch_of_lightning_has_its_own_reads(lightning: Lightning, persistent: bool) -> None:
    data = FileData(lightning.directory / "data", FILES)
    loader = DataLoader(data, batch_size=2, num_workers=2, persistent_workers=persistent)
    callback = ObsCallback(data_roots=data.root, io=True)
    lightning.trainer(callback, max_epochs=EPOCHS).fit(lightning.module(), loader)
    assert_each_file_once(found(callback.run_dir))


@pytest.mark.needs_bpf
def test_each_epoch_tells_what_of_the_data_was_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the files that are opened for that do not count."""
    monkeypatch.setattr(file_watch, "REST_S", 0.05)
    monkeypatch.setattr(observer, "FLUSH_S", 0.2)
    data = FileData(tmp_path / "data", FILES)
    with observe(run_dir=tmp_path / "run", data_roots=data.root, io=True) as obs:
        loader = obs.loader(DataLoader(data, batch_size=2))
        for _ in range(EPOCHS):
            for _ in loader:
                time.sleep(0.15)
    io = found(tmp_path / "run")
    assert_each_file_once(io)
    for epoch in io["epochs"]:
        assert epoch["cache"] == {
            "file_count": FILES,
            "is_all": True,
            "sampled_count": FILES,
            "sampled_bytes": FILES * FILE_BYTES,
            "cached_bytes": FILES * FILE_BYTES,
        }


class Mapped(FileData):
    """Reads through a mapping that each item makes, and then by a call."""

    def __getitem__(self, index: int) -> Tensor:
        mapped = np.memmap(self.root / f"{index}", np.uint8, "r")
        return super().__getitem__(index) + float(mapped.sum())


@pytest.mark.needs_bpf
def test_how_often_mapped_data_is_read_is_unknown(tmp_path: Path) -> None:
    data = Mapped(tmp_path / "data", FILES)
    with observe(run_dir=tmp_path / "run", data_roots=data.root, io=True) as obs:
        for _ in obs.loader(DataLoader(data)):
            pass
    io = found(tmp_path / "run")
    (row,) = data_read(io["epochs"])
    assert row["mmap_count"] == FILES
    assert row["times_least"] is row["times_most"] is None
    assert {one["times_most"] for one in io["files"] if one["class"] == "data"} == {None}
    (said,) = io["unknown"]
    assert said.startswith(f"training data is mapped ({FILES} new mappings, ")
    text = io_text.render(summarize(RunLog.open(tmp_path / "run")))
    assert "not in these numbers: training data is mapped" in text


class Sent(FileData):
    """Reads each file twice, the second time by a call that does not tell where."""

    def __getitem__(self, index: int) -> Tensor:
        with (self.root / f"{index}").open("rb") as file, open(os.devnull, "wb") as nowhere:
            assert os.sendfile(nowhere.fileno(), file.fileno(), 0, FILE_BYTES) == FILE_BYTES
        return super().__getitem__(index)


@pytest.mark.needs_bpf
def test_bytes_of_which_nobody_knows_where_they_lie_widen_the_bounds(tmp_path: Path) -> None:
    data = Sent(tmp_path / "data", FILES)
    with observe(run_dir=tmp_path / "run", data_roots=data.root, io=True) as obs:
        for _ in obs.loader(DataLoader(data)):
            pass
    (row,) = data_read(found(tmp_path / "run")["epochs"])
    assert (row["bytes"], row["untold_bytes"]) == (2 * FILES * FILE_BYTES, FILES * FILE_BYTES)
    assert (row["times_least"], row["times_most"]) == (1, 2)


@pytest.mark.needs_bpf
@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_that_is_made_early_begins_no_epoch_before_it_reads(
    workers: int, tmp_path: Path
) -> None:
    """As Keras does it: the next iterator before the validation, and one after the last epoch."""
    data = FileData(tmp_path / "data", FILES)
    validation = FileData(tmp_path / "validation", 4)
    with observe(run_dir=tmp_path / "run", data_roots=tmp_path, io=True) as obs:
        loader = obs.loader(DataLoader(data, num_workers=workers))
        made = iter(loader)
        for _ in range(EPOCHS):
            for _ in range(FILES):
                next(made)
            made = iter(loader)
            for index in range(len(validation)):
                validation[index]
        if workers:
            time.sleep(0.5)  # until something was read
        del made
    io = found(tmp_path / "run")
    ahead = [epoch["epoch"] for epoch in io["epochs"] if epoch["is_ahead"]]
    assert ahead == ([EPOCHS] if workers else [])
    assert f"rank 0, {EPOCHS} epochs\n" in io_text.render(summarize(RunLog.open(tmp_path / "run")))
    if not workers:  # each has its validation
        files = [row["file_count"] for row in data_read(io["epochs"])]
        assert files == [FILES + len(validation)] * EPOCHS


@pytest.mark.needs_bpf
@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_validation_reads_is_told_as_it_is_counted(workers: int, tmp_path: Path) -> None:
    training, validation = FileData(tmp_path / "a", FILES), FileData(tmp_path / "b", 4)
    with observe(run_dir=tmp_path / "run", io=True) as obs:
        for _ in obs.loader(DataLoader(training, num_workers=workers)):
            pass
        with obs.phase("validation"), torch.no_grad():
            for _ in DataLoader(validation, num_workers=workers):
                pass
    (row,) = data_read(found(tmp_path / "run")["epochs"])
    assert row["file_count"] == FILES + (4 if workers else 0)
    told = " ".join(io_text.render(summarize(RunLog.open(tmp_path / "run"))).split())
    assert "reads of a validation are in it where loader workers make them" in told


@pytest.mark.needs_bpf
def test_a_run_that_was_killed_tells_that_its_last_epoch_is_missing(tmp_path: Path) -> None:
    data = FileData(tmp_path / "data", FILES)
    with observe(run_dir=tmp_path / "run", data_roots=data.root, io=True) as obs:
        for _ in obs.loader(DataLoader(data)):
            pass
    info = tmp_path / "run" / "run.json"
    info.write_text(json.dumps({**json.loads(info.read_text()), "summary": None}))
    assert found(tmp_path / "run")["unknown"] == [
        "what was read since the last epoch that was over: the run goes on, or died"
    ]


@pytest.mark.needs_bpf
def test_what_nobody_asked_for_is_not_counted(tmp_path: Path) -> None:
    data = FileData(tmp_path / "data", 2)
    with observe(run_dir=tmp_path / "run", data_roots=data.root) as obs:
        for _ in obs.loader(DataLoader(data)):
            pass
    assert found(tmp_path / "run") is None
    assert list((tmp_path / "run" / "rank=0").glob("io*")) == []


@pytest.mark.needs_bpf
def test_the_report_tells_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = FileData(tmp_path / "data", FILES)
    with observe(run_dir=tmp_path / "run", data_roots=data.root, io=True) as obs:
        for _ in obs.loader(DataLoader(data, batch_size=2)):
            pass
    assert main(["report", str(tmp_path / "run"), "--io"]) == 0
    text = capsys.readouterr().out
    assert "Data read by epoch" in text
    assert "by calls, so not what mapped files serve" in " ".join(text.split())
    assert re.search(r"data/\d+ read ", text)
    assert main(["report", str(tmp_path / "run"), "--io", "--json"]) == 0
    assert '"state": "on"' in capsys.readouterr().out


@pytest.mark.needs_bpf
def test_a_kernel_side_that_counts_no_files_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Callable[[], list[str]]
) -> None:
    """As that of a service, which serves many."""
    monkeypatch.setattr(
        "trainobs.session.opening.open_backend", lambda probes, **options: LocalBackend(probes)
    )
    data = FileData(tmp_path / "data", 2)
    with observe(run_dir=tmp_path / "run", data_roots=data.root, io=True) as obs:
        for _ in obs.loader(DataLoader(data)):
            pass
    assert found(tmp_path / "run") == {"state": file_watch._SERVED}
    assert told() == ["cannot count what is read of each file; the rest is observed"]


def test_without_room_for_the_probes_no_more_is_claimed(
    tmp_path: Path, told: Callable[[], list[str]]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))  # fewer than the probes need
    try:
        with observe(run_dir=tmp_path / "run", io=True) as obs:
            for _ in obs.loader([1, 2]):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    of_files, of_level = told()
    assert of_files == "cannot count what is read of each file: cannot load the probes"
    assert of_level.startswith("trainobs runs without eBPF")


def test_without_probes_no_files_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with observe(run_dir=tmp_path / "run", probes="off", io=True, quiet=True) as obs:
        for _ in obs.loader([1, 2]):
            pass
    assert main(["report", str(tmp_path / "run"), "--io"]) == 2
    assert "did not count what it read of each file" in capsys.readouterr().err


@pytest.mark.needs_bpf
def test_each_epoch_of_hugging_face_has_its_own_reads(hf: HuggingFace) -> None:
    files = TokenFiles(hf.directory / "data", 16)
    callback = ObsTrainerCallback(data_roots=files.root, io=True)
    hf.train(callback, data=files, num_train_epochs=2)
    rows = data_read(found(callback.run_dir)["epochs"])
    assert len({row["bytes"] for row in rows}) == 1
    assert [row["file_count"] for row in rows] == [16, 16]
