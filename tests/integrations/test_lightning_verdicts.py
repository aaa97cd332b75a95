"""Verdicts of Lightning runs: in the logger's event file, and what they are made from."""

from __future__ import annotations

import json
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.integrations.models import loader
from trainobs import ObsCallback
from trainobs.analysis.summary import summarize
from trainobs.runlog.reader import RunLog


def texts(directory, tag) -> list[tuple[int, str]]:
    events = EventAccumulator(str(directory), size_guidance={"tensors": 0})
    events.Reload()
    found = ((e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(tag))
    return [(step, text.splitlines()[0]) for step, text in found]


@pytest.mark.parametrize("late_in", ["transfer", "checkpoint"])
def test_what_a_step_waits_for_is_told_for_each_epoch_in_the_logger_s_file(lightning, late_in):
    kind = {"transfer": "copy-bound", "checkpoint": "checkpoint-bound"}[late_in]

    class Late(lightning.pl.Callback):
        def state_dict(self):
            time.sleep(0.04 if late_in == "checkpoint" else 0)
            return {}

    module = lightning.module(lambda batch: time.sleep(0.01))
    if late_in == "transfer":
        module.transfer_batch_to_device = lambda batch, device, index: time.sleep(0.04) or batch
    logger = lightning.pl.loggers.TensorBoardLogger(lightning.directory, name="board")
    saving = lightning.pl.callbacks.ModelCheckpoint(every_n_train_steps=1)
    callback = ObsCallback()
    trainer = lightning.trainer(
        [callback, Late(), *([saving] if late_in == "checkpoint" else [])],
        logger=logger,
        enable_checkpointing=late_in == "checkpoint",
        max_epochs=2,
    )
    trainer.fit(module, loader())

    told = texts(logger.log_dir, "trainobs/verdict/epoch")
    assert [step for step, _ in told] == [7, 15]
    for epoch, (_, text) in enumerate(told):
        assert text.startswith(f"**epoch {epoch}: {kind}: ")
    assert len(texts(logger.log_dir, "trainobs/verdict/run")) == 1
    run = summarize(RunLog.open(callback.run_dir))["verdict"]["run"]
    assert run["kind"] == kind
    assert 0.5 < run["share"] < 0.95  # 40 of 50 ms, and what Lightning itself takes
    info = json.loads((callback.run_dir / "run.json").read_text())
    assert info["settings"]["loader_workers"] == 0
