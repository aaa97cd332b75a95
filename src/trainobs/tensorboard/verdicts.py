"""Verdicts while training runs: one at the end of each epoch, one on the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from trainobs.core.metrics import TAGS
from trainobs.core.records import RunInfo, StepTable
from trainobs.core.text import printable
from trainobs.tensorboard.values import as_text
from trainobs.verdict.batch_columns import columns_of, first_of_run
from trainobs.verdict.facts import facts_of
from trainobs.verdict.rules import judge
from trainobs.verdict.sentence import lines, sentence
from trainobs.verdict.summed_steps import FirstSteps, StepInputs, SummedSteps
from trainobs.verdict.verdict import Verdict

EPOCH_TAG = f"{TAGS}verdict/epoch"
RUN_TAG = f"{TAGS}verdict/run"


class Text(NamedTuple):
    """A verdict to be logged.

    Attributes:
        step: last step that it is about.
        at_ns: CLOCK_MONOTONIC at the beginning of that step.
        tag: of TensorBoard.
        markdown: the text.
    """

    step: int
    at_ns: int
    tag: str
    markdown: str


class Verdicts:
    """Takes steps, and gives verdicts as TensorBoard text. Memory does not grow with the steps.

    An epoch is over when a step of another one comes, or the run ends.

    Attributes:
        of_run: the verdict on the run, once it has ended; None without a step.
    """

    def __init__(self, info: RunInfo) -> None:
        self.of_run: Verdict | None = None
        self._info = info
        self._epoch: int | None = None
        self._at = (0, 0)
        self._of_epoch = SummedSteps()
        self._of_run = SummedSteps()
        self._first = FirstSteps()

    def add(self, table: StepTable) -> Iterator[Text]:
        """Take the next steps; yields the texts of epochs that have ended."""
        usual = self._first.without(table)
        if not len(usual):
            return
        if self._first.first is not None and not len(self._of_run):
            self._of_run.first_batch = first_of_run(self._first.first, usual)
        inputs = StepInputs(columns_of(usual))
        self._of_run.take(inputs, usual.epoch, usual.step)
        edges = (np.flatnonzero(np.diff(usual.epoch)) + 1).tolist()
        for first, last in zip([0, *edges], [*edges, len(usual)], strict=True):
            epoch = int(usual.epoch[first])
            if self._epoch not in (None, epoch):
                yield self._end_epoch()
            self._epoch = epoch
            rows = slice(first, last)
            self._of_epoch.take(inputs[rows], usual.epoch[rows], usual.step[rows])
            self._at = int(usual.step[last - 1]), int(usual.start_ns[last - 1])

    def end(self) -> Iterator[Text]:
        """Texts for the last epoch and for the run, unless there is no step after the first."""
        if self._first.seen:
            self.of_run = judge(self._of_run, facts_of(self._info))
        if self._epoch is not None and self.of_run is not None:
            yield self._end_epoch()
            yield Text(*self._at, RUN_TAG, _markdown("the run", self.of_run))

    def _end_epoch(self) -> Text:
        """Without a replay: the training goes on, and needs its CPU."""
        summed, self._of_epoch = self._of_epoch, SummedSteps()
        verdict = judge(summed, facts_of(self._info), replays=False)
        return Text(*self._at, EPOCH_TAG, _markdown(f"epoch {self._epoch}", verdict))


def _markdown(subject: str, verdict: Verdict) -> str:
    """TensorBoard draws Markdown: the sentence, then the evidence as it stands."""
    evidence = "".join(f"    {printable(line)}\n" for line in lines(verdict))
    return f"**{subject}: {as_text(sentence(verdict))}**\n\n{evidence}"
