"""Verdicts in TensorBoard, read back with its own reader."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.samples import batch, info
from trainobs.core.records import BATCH_ROW, SETUP
from trainobs.tensorboard.sink import EventFile, TensorBoardSink
from trainobs.tensorboard.verdicts import Verdicts

MS = 1e6


def steps(first: int, epoch: int, wait_ms: float, number: int = 20):
    """Steps of 100 ms computation after a wait."""
    made = batch(
        range(first, first + number),
        step__duration_ns=[(100 + wait_ms) * MS] * number,
        loader__wait_ns=[wait_ms * MS] * number,
        phase__forward_ns=[100 * MS] * number,
        sched__main_offcpu_ns=[wait_ms * MS] * number,
    )
    return replace(made, epoch=np.full(number, epoch, np.int32))


@pytest.fixture
def texts(tmp_path):
    """Runs batches through a sink; tag -> (step, text) of what TensorBoard reads."""
    folders = (tmp_path / str(number) for number in count())

    def run(*batches):
        folder = next(folders)
        sink = TensorBoardSink(EventFile(folder), 50)
        sink.begin(info())
        for steps in batches:
            sink.write(steps)
        sink.end({})
        if not folder.exists():
            return {}
        events = EventAccumulator(str(folder), size_guidance={"tensors": 0})
        events.Reload()
        tags = [tag for tag in events.Tags()["tensors"] if tag.startswith("trainobs/verdict/")]
        return {
            tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(tag)]
            for tag in tags
        }

    return run


def heads(texts) -> list[tuple[int, str]]:
    return [(step, text.splitlines()[0]) for step, text in texts]


def test_each_epoch_has_a_verdict_at_its_last_step_and_the_run_has_one_at_the_end(texts):
    found = texts(steps(0, 0, 100), steps(20, 1, 5))
    assert heads(found["trainobs/verdict/epoch"]) == [
        (19, "**epoch 0: loader-bound: 100 ms a step, 50 % of it**"),
        (39, "**epoch 1: compute-bound: 100 ms a step, 95 % of it**"),
    ]
    assert heads(found["trainobs/verdict/run"]) == [
        (
            39,
            "**the run: loader-bound: 51.3 ms a step on average, 34 % of all time, "
            "in the first epoch only**",
        )
    ]


def test_an_epoch_may_come_in_pieces_and_end_within_one(texts):
    whole = [steps(0, 0, 100), steps(20, 1, 5)]
    joined = replace(
        whole[0],
        **{
            name: np.concatenate([getattr(part, name) for part in whole])
            for name in ("step", "epoch", "start_ns")
        },
        columns={n: np.concatenate([part.columns[n] for part in whole]) for n in whole[0].columns},
    )
    assert texts(joined)["trainobs/verdict/epoch"] == texts(*whole)["trainobs/verdict/epoch"]


def test_the_evidence_is_below_the_sentence(texts):
    text = texts(steps(0, 0, 100))["trainobs/verdict/epoch"][0][1]
    assert "    waiting for data                             100 ms     50 %" in text.splitlines()


def test_what_came_before_the_first_step_has_no_verdict(texts):
    assert texts(batch([SETUP], step__duration_ns=[MS])) == {}


def accumulating(first: int, number: int):
    """Steps of 100 ms that take four batches of 9 ms; the first one of the run takes 30 ms."""
    made = steps(first, 0, 10, number)
    start = np.arange(first, first + number) * 100 * int(MS)
    rows = np.zeros(4 * number, BATCH_ROW)
    rows["loader"], rows["worker"] = 1, -1
    rows["for_step"] = np.repeat(made.step, 4)
    begin = np.repeat(start, 4) + np.tile([0, 20, 40, 60], number) * int(MS)
    rows["begin_ns"] = rows["fetch_begin_ns"] = begin
    rows["end_ns"] = rows["fetch_end_ns"] = begin + 9 * int(MS)
    rows["compute_ns"] = int(9 * MS)
    rows["compute_ns"][rows["fetch_begin_ns"] == 0] = int(30 * MS)
    return replace(made, start_ns=start, batches=rows)


@pytest.mark.parametrize("pieces", [(20,), (1, 19), (2, 18), (3, 17), (1,) * 20])
def test_what_the_first_of_accumulated_batches_took_longer_is_known_or_not_told(pieces):
    verdicts, first = Verdicts(info()), 0
    for number in pieces:
        list(verdicts.add(accumulating(first, number)))
        first += number
    usual = verdicts._of_run.sample().columns["batch/compute_ns"]
    longer = verdicts._of_run.first_batch["batch/compute_ns"] - np.median(usual)
    assert longer == 21 * MS or (pieces[0] == 2 and longer <= 0)
