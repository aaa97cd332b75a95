"""Where the record goes, and that its curves lie under those of `self.log`."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.integrations.models import Lightning, loader, logged_steps, read_steps, step_numbers
from trainobs import ObsCallback
from trainobs.analysis.summary import summarize
from trainobs.report import brief
from trainobs.runlog.reader import RunLog
from trainobs.tensorboard import sink

EIGHT = list(range(8))


def tensorboard(lightning: Lightning) -> Any:
    return lightning.pl.loggers.TensorBoardLogger(lightning.directory, name="board")


def event_files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("events.out.tfevents.*"))


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_windows_end_at_the_steps_of_self_log(lightning, every, accumulate, monkeypatch):
    monkeypatch.setattr(sink, "STEPS_ALONE", 0)
    logger, callback = tensorboard(lightning), ObsCallback()
    lightning.fit(
        callback,
        logger=logger,
        log_every_n_steps=every,
        accumulate_grad_batches=accumulate,
        max_epochs=3,
    )
    theirs = logged_steps(logger.log_dir, "loss")
    steps = range(24 // accumulate)
    assert theirs == list(steps[every - 1 :: every])  # this is what Lightning does
    assert logged_steps(logger.log_dir) == theirs
    assert step_numbers(callback.run_dir) == list(steps)


def test_events_go_into_the_file_of_the_tensorboard_logger_which_is_told(lightning, capfd):
    logger, callback = tensorboard(lightning), ObsCallback()
    lightning.fit(callback, logger=logger, log_every_n_steps=1)
    assert callback.run_dir == Path(logger.log_dir, "trainobs")
    (events,) = event_files(lightning.directory)
    assert events.parent == Path(logger.log_dir)
    assert logged_steps(events.parent) == logged_steps(events.parent, "loss")
    told = capfd.readouterr().err
    assert f"`trainobs report {callback.run_dir}`, `tensorboard --logdir {logger.log_dir}`" in told
    assert "tensorboard" not in brief.render(summarize(RunLog.open(callback.run_dir)), 0)


@pytest.mark.parametrize("name", ["elsewhere", "a:b"])
def test_tensorboard_is_told_of_a_run_beside_its_curves_too(lightning, tmp_path, capfd, name):
    """As that of several ranks is."""
    logger, callback = tensorboard(lightning), ObsCallback(run_dir=tmp_path / name)
    lightning.fit(callback, logger=logger)
    both = f"--logdir_spec {logger.log_dir},{tmp_path / name}"
    told = f"--logdir {logger.log_dir}" if ":" in name else both
    assert f"`tensorboard {told}`" in capfd.readouterr().err


def test_without_a_logger_it_has_an_event_file_of_its_own(lightning):
    callback = ObsCallback(log_every_n_steps=2)
    lightning.fit(callback)
    assert callback.run_dir.parent == lightning.directory / "trainobs"
    (events,) = event_files(lightning.directory)
    assert events.parent == callback.run_dir / "tensorboard"
    assert logged_steps(events.parent) == EIGHT
    assert "`tensorboard --logdir " in brief.render(summarize(RunLog.open(callback.run_dir)), 0)


def test_a_csv_logger_gets_the_run_log_beside_its_file_and_no_other_column(lightning):
    logger = lightning.pl.loggers.CSVLogger(lightning.directory, name="table")
    callback = ObsCallback()
    lightning.fit(callback, logger=logger, log_every_n_steps=1)
    assert callback.run_dir == Path(logger.log_dir, "trainobs").absolute()
    with Path(logger.log_dir, "metrics.csv").open() as file:
        assert set(csv.DictReader(file).fieldnames) == {"epoch", "step", "loss"}
    assert step_numbers(callback.run_dir) == list(range(8))


def test_of_several_loggers_the_tensorboard_one_is_taken(lightning):
    table = lightning.pl.loggers.CSVLogger(lightning.directory, name="table")
    board, callback = tensorboard(lightning), ObsCallback()
    lightning.fit(callback, logger=[table, board], log_every_n_steps=1)
    assert callback.run_dir == Path(board.log_dir, "trainobs")
    assert logged_steps(board.log_dir) == EIGHT


def test_the_callbacks_own_settings_go_first(lightning, monkeypatch):
    monkeypatch.setattr(sink, "STEPS_ALONE", 0)
    logger = tensorboard(lightning)
    callback = ObsCallback(run_dir=lightning.directory / "mine", log_every_n_steps=4)
    lightning.fit(callback, logger=logger, log_every_n_steps=1)
    assert callback.run_dir == lightning.directory / "mine"
    assert logged_steps(logger.log_dir) == [3, 7]


def test_the_logger_can_still_be_used_after_the_run(lightning):
    logger = tensorboard(lightning)
    lightning.fit(ObsCallback(), logger=logger)
    logger.log_metrics({"after": 1.0}, step=99)
    logger.finalize("success")
    assert logged_steps(logger.log_dir, "after") == [99]


def test_a_resumed_run_goes_on_counting_and_nobody_warns_of_it(lightning, recwarn):
    logger, checkpoint = tensorboard(lightning), lightning.directory / "last.ckpt"
    first = lightning.fit(ObsCallback(), logger=logger, log_every_n_steps=1)
    first.save_checkpoint(checkpoint)
    recwarn.clear()
    for callback in (ObsCallback(), None):
        trainer = lightning.trainer(callback, logger=logger, log_every_n_steps=1, max_epochs=2)
        trainer.fit(lightning.module(), loader(), ckpt_path=checkpoint)
        if callback:
            assert step_numbers(callback.run_dir) == list(range(8, 16))
            assert set(read_steps(callback.run_dir)["epoch"].to_pylist()[1:]) == {1}
            assert logged_steps(logger.log_dir)[8:] == list(range(8, 16))
    assert [str(w.message) for w in recwarn if "allback" in str(w.message)] == []


def test_a_metric_that_nothing_measures_is_null_and_has_no_point(lightning):
    callback = ObsCallback(probes="off", log_every_n_steps=1)
    lightning.fit(callback)
    steps = read_steps(callback.run_dir)
    assert steps["io/data_read_bytes"].null_count == len(steps) == 9
    assert steps["step/duration_ns"].null_count == 0
    assert pa.types.is_integer(steps["io/data_read_bytes"].type)
    assert logged_steps(callback.run_dir / "tensorboard", "trainobs/io/data_read_MB") == []
    assert logged_steps(callback.run_dir / "tensorboard") == EIGHT


@pytest.mark.parametrize("where", ["root", "logger", "both"])
def test_in_place_of_an_object_store_it_takes_a_local_directory_and_says_so(
    lightning, where, monkeypatch, told
):
    monkeypatch.chdir(lightning.directory)
    url, callback, options = "memory://bucket/runs", ObsCallback(), {}
    if where != "root":
        options["logger"] = lightning.pl.loggers.CSVLogger(url)
    if where != "logger":
        options["default_root_dir"] = url
    lightning.fit(callback, **options)
    assert callback.run_dir.parent == lightning.directory / "trainobs"
    (said,) = told()
    assert said.startswith(f"trainobs writes to {callback.run_dir}, since 'memory://bucket/runs")
    assert [path.name for path in lightning.directory.iterdir()] == ["trainobs"]
    assert step_numbers(callback.run_dir) == list(range(8))
