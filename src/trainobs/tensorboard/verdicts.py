"""Verdicts while training runs: one at the end of each epoch, one on the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from tensorboard.compat.proto.summary_pb2 import Summary

from trainobs.core.records import RunInfo, StepTable
from trainobs.tensorboard.values import text_value
from trainobs.verdict.blocks import Blocks
from trainobs.verdict.rules import judge
from trainobs.verdict.sentence import lines, sentence
from trainobs.verdict.verdict import Verdict, facts_of

EPOCH_TAG = "verdict/epoch"
RUN_TAG = "verdict/run"


class Text(NamedTuple):
    """A verdict to be logged.

    Attributes:
        step: last step that it is about.
        at_ns: CLOCK_MONOTONIC at the beginning of that step.
        value: the text.
    """

    step: int
    at_ns: int
    value: Summary.Value


class Verdicts:
    """Takes steps, and gives verdicts as TensorBoard text. Memory does not grow with the steps.

    An epoch is over when a step of another one comes, or the run ends.
    """

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self._epoch: int | None = None
        self._at = (0, 0)
        self._of_epoch = Blocks()
        self._of_run = Blocks()

    def add(self, batch: StepTable) -> Iterator[Text]:
        """Take the next steps, none of them from before the first; yields ended epochs' texts."""
        self._of_run.add(batch.columns)
        edges = np.flatnonzero(np.diff(batch.epoch)) + 1
        for rows in np.split(np.arange(len(batch)), edges):
            epoch = int(batch.epoch[rows[0]])
            if self._epoch not in (None, epoch):
                yield self._end_epoch()
            self._epoch = epoch
            self._of_epoch.add(_rows(batch, rows))
            self._at = int(batch.step[rows[-1]]), int(batch.start_ns[rows[-1]])

    def end(self) -> Iterator[Text]:
        """Texts for the last epoch and for the run."""
        if self._epoch is not None:
            yield self._end_epoch()
            yield self._text(RUN_TAG, "the run", self._of_run)

    def _end_epoch(self) -> Text:
        record, self._of_epoch = self._of_epoch, Blocks()
        return self._text(EPOCH_TAG, f"epoch {self._epoch}", record)

    def _text(self, tag: str, subject: str, record: Blocks) -> Text:
        return Text(*self._at, _value(tag, subject, judge(record, facts_of(self._info))))


def _rows(batch: StepTable, rows: npt.NDArray[np.intp]) -> dict[str, npt.NDArray[np.float64]]:
    if len(rows) == len(batch):
        return batch.columns
    return {name: column[rows] for name, column in batch.columns.items()}


def _value(tag: str, subject: str, verdict: Verdict) -> Summary.Value:
    """TensorBoard draws Markdown: the sentence, then the evidence as it stands."""
    evidence = "".join(f"    {line}\n" for line in lines(verdict))
    return text_value(tag, f"**{subject}: {sentence(verdict)}**\n\n{evidence}")
