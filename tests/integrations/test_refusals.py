"""What cannot be written is refused before the training begins, and a taken place is told."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.integrations.models import Lightning, step_numbers
from tests.integrations.trainers import HuggingFace
from tests.samples import small_disk
from tests.session.test_failing_sinks import fill
from trainobs import ObsCallback, ObsTrainerCallback, observe
from trainobs.core.errors import SettingError


@pytest.fixture(params=["a file above", "read-only", "full"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A run directory that cannot be written."""
    if request.param == "a file above":
        (tmp_path / "file").write_text("in the way")
        yield tmp_path / "file" / "run"
        return
    options = "size=256k" if request.param == "full" else "ro,size=256k"
    with small_disk(tmp_path / "disk", options) as disk:
        if request.param == "full":
            fill(disk / "filler")
        yield disk / "run"
        assert not (disk / "run").exists()


def refused(begin: Callable[[], object]) -> None:
    with pytest.raises(SettingError, match="The run directory cannot be written") as caught:
        begin()
    lines = str(caught.value).splitlines()
    assert [line[:8] for line in lines[1:]] == ["  found:", "  do:   "]


def test_observe_refuses_what_it_cannot_write(unwritable):
    refused(lambda: observe(run_dir=unwritable, probes="off"))


def test_a_directory_that_nobody_named_costs_no_training_and_the_record_where_it_may_come_back(
    request, unwritable, monkeypatch, told, capfd
):
    above = next(path for path in unwritable.parents if path.exists())
    if above.is_file():
        (above.parent / "trainobs").write_text("in the way")
        above = above.parent
    monkeypatch.chdir(above)
    steps = 0
    with observe(probes="off") as obs:
        for _ in range(3):
            with obs.step():
                steps += 1
    assert steps == 3
    if request.node.callspec.params["unwritable"] == "read-only":
        assert told() == [f"The run goes to {obs.run_dir}"]
        assert step_numbers(obs.run_dir) == [0, 1, 2]
        assert f"the run is in {obs.run_dir}\n" in capfd.readouterr().err
        shutil.rmtree(obs.run_dir.parent)
    else:
        assert told()[0].startswith("cannot store the record")
        assert "the run is in" not in capfd.readouterr().err


def test_a_lightning_callback_refuses_a_directory_that_was_named(unwritable, tmp_path):
    lightning = Lightning("lightning.pytorch", tmp_path / "own")
    refused(lambda: lightning.fit(ObsCallback(run_dir=unwritable, probes="off")))


def test_a_hugging_face_callback_refuses_a_directory_that_was_named(unwritable, tmp_path):
    trainer = HuggingFace(tmp_path / "own")
    refused(lambda: trainer.train(ObsTrainerCallback(run_dir=unwritable, probes="off")))


def test_a_trainer_trains_where_nobody_named_a_directory(tmp_path, told):
    with small_disk(tmp_path / "disk", "ro,size=256k") as disk:
        callback = ObsCallback(probes="off")
        Lightning("lightning.pytorch", disk).fit(callback)
    assert told() == [f"The run goes to {callback.run_dir}"]
    assert step_numbers(callback.run_dir)
    shutil.rmtree(callback.run_dir.parent)


def test_a_taken_directory_is_told_at_the_start_and_at_the_end(tmp_path, capfd):
    for quiet in (False, False, True):
        with observe(run_dir=tmp_path / "run", probes="off", quiet=quiet) as obs:
            for _ in range(3):
                with obs.step():
                    pass
    first, second = tmp_path / "run", tmp_path / "run-2"
    told = [line for line in capfd.readouterr().err.splitlines() if "no verdict" not in line]
    assert told[0] == f"trainobs: the run is in {first}"
    assert told[2] == f"trainobs: {first} is taken; this run goes to {second}"
    assert told[3] == f"trainobs: the run is in {second}; {first} holds an earlier one"
    assert len(told) == 5
    assert obs.run_dir == tmp_path / "run-3"
    assert step_numbers(tmp_path / "run-3") == [0, 1, 2]
