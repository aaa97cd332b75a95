"""The lookups of a model's embedding tables, step by step."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import nn

from trainobs.access import AccessCounts
from trainobs.core.hot_rows import ATTRIBUTE
from trainobs.embeddings.buffer import LookupBuffer, joined
from trainobs.embeddings.caches import caches
from trainobs.embeddings.find import find
from trainobs.embeddings.hooks import BagHook, BatchedHook, EmbeddingHook, SiteHook
from trainobs.embeddings.hot_row_readings import HotRowReadings
from trainobs.embeddings.model_changes import ModelWatch
from trainobs.embeddings.sampling import SamplingInterval
from trainobs.embeddings.sites import NEVER, Site, SiteKind
from trainobs.embeddings.step_lookups import CapturedStep
from trainobs.embeddings.totals import LookupTotals
from trainobs.steps.closed_step import ClosedStep
from trainobs.steps.fast_path import untracked


class ModelLookups:
    """Finds the embedding tables of a model and counts what they are asked for.

    Lookups are counted where they are asked for, whatever rank serves them, and for the step
    whose forward asks. Those of an evaluation are not: of a module in evaluation mode, with
    autograd off, or where `aside` says so. A forward that activation checkpointing runs again
    counts again.

    Counts of lookups and bags, and what follows from them, are known in each step. What needs the
    ids themselves is known in sampled steps, and NaN in others; with `every=1` all of it is exact
    in every step. Ids are copied as they are at the call, so it does not matter what becomes of
    them. On a GPU the copy is asynchronous; nothing here waits for a device.

    Args:
        model: any module, wrapped (DDP, FSDP, torch.compile, DistributedModelParallel) or not.
        serial: the serial of the step that runs; asked in the training thread.
        every: one of so many steps is sampled, at random; None: about 1 in 17, fewer where it would
            cost more than 2 % of the time of a step.
        world_size: ranks of the job.
        rank: this one's number.
        aside: whether what is looked up now is for no training step.

    Attributes:
        tables: what there is of tables; empty for a model without any.
        counts: how often each row was looked up, in sampled steps.
        hooks: what is on the modules that look rows up.
        hot_rows: what hot rows of sharded modules do; None for a model without any.

    Notes:
        It does not see rows that are read without calling their module (`F.embedding` on its
        weight): they are in none of its numbers. Nor does it see what a replayed CUDA graph or
        code that was compiled before looks up, or a subclass with a forward of its own, which need
        not look up what it is given: there its rows are NaN.
    """

    def __init__(
        self,
        model: nn.Module,
        serial: Callable[[], int],
        *,
        every: int | None = None,
        world_size: int = 1,
        rank: int = 0,
        aside: Callable[[], bool] = lambda: False,
    ) -> None:
        self._found = find(model, rank)
        self.tables = tuple(table.info for table in self._found.tables)
        self.counts = AccessCounts({table.name: table.row_count for table in self.tables})
        serving = [getattr(site.module, ATTRIBUTE, None) for site in self._found.sites]
        modules = [module for module in serving if module is not None]
        self.hot_rows = HotRowReadings(modules, serial) if modules else None
        self._epoch = 0
        self._interval = SamplingInterval(every, rank, world_size)
        self._buffer = LookupBuffer(serial, self._interval, aside)
        self._totals = LookupTotals(self._found, self.counts, world_size, rank)
        seen = [site for site in self._found.sites if not site.unseen]
        self.hooks = [_put_on(site, self._buffer) for site in seen]
        self._watch = ModelWatch(model, self._found, self.hooks, self._totals.forget_bytes)
        if world_size == 1:  # with more, kernels serve other ranks' lookups too
            for hook in self.hooks:
                hook.caches = caches(hook.site)

    @property
    def fault(self) -> Exception | None:
        """Why nothing is counted any more; None where it is."""
        return self._buffer.error

    @property
    def every(self) -> int:
        """One of so many steps is sampled at present."""
        return self._interval.every

    def ready(self, step: ClosedStep) -> bool:
        """Whether all that was copied from devices in a closed step is there."""
        return all(map(self._buffer.ready, step.serials))

    def rows(self, steps: Sequence[ClosedStep]) -> NDArray[np.void]:
        """What tables were asked for in closed steps.

        Args:
            steps: consecutive steps, each asked for once.

        Returns:
            Rows of `LOOKUP_ROW`: one a step and table that was asked for rows, and one of NaN for
            each that may have been, unseen.
        """
        began_ns = time.thread_time_ns()
        captured = [self._captured(step) for step in steps]
        if steps:
            captures = [one.capture for one in captured if one.capture is not None]
            self._watch.look(captures, steps[-1].serial)
            captured = self._without_lost(steps, captured)
        rows = self._totals.rows(captured, self._epoch)
        self._account(captured, time.thread_time_ns() - began_ns)
        return rows

    def begin_epoch(self, epoch: int) -> None:
        """The steps asked for from now on are of another epoch.

        It is for the sample of inputs; rows have the epoch of their step.
        """
        self._epoch = epoch

    def close(self) -> None:
        """Take the hooks off; may be called twice. `rows` still answers for what was noted.

        While an exception is being handled, ids of the last calls are looked at: if one is outside
        its table, that may be why the training ends.
        """
        if sys.exc_info()[0] is not None:
            for call, ids in filter(None, (hook.last for hook in self.hooks)):
                self._totals.blame(call, ids)
        try:
            self._watch.close()
        finally:
            for hook in self.hooks:
                hook.remove()
            self.hooks.clear()
            self._buffer.settle()

    def _captured(self, step: ClosedStep) -> CapturedStep:
        measured = self.ready(step) and step.serial < self._buffer.failed_serial
        self._interval.stepped(step.end_ns - step.start_ns)
        captures = filter(None, map(self._buffer.hand_out, step.serials))
        return untracked(CapturedStep(step.step, step.epoch, joined(list(captures)), measured))

    def _without_lost(
        self, steps: Sequence[ClosedStep], captured: list[CapturedStep]
    ) -> list[CapturedStep]:
        """The same, with the tables of which not all is known."""
        sites = [site for site in self._found.sites if site.lost_serial != NEVER]
        if not sites:
            return captured
        return [
            one._replace(
                lost=tuple(t for s in sites if s.lost_serial <= step.serial for t in s.tables)
            )
            for step, one in zip(steps, captured, strict=True)
        ]

    def _account(self, captured: Sequence[CapturedStep], counting_ns: int) -> None:
        """Tell the interval what the samples among these steps have cost."""
        samples = [
            one.capture for one in captured if one.capture is not None and one.capture.sampled
        ]
        for capture in samples:
            self._interval.sampled(capture.hook_ns + counting_ns / len(samples))


def _put_on(site: Site, buffer: LookupBuffer) -> SiteHook:
    """The hook that a site needs, on its module."""
    if site.kind is SiteKind.JAGGED:
        from trainobs.embeddings.jagged import JaggedHook

        return JaggedHook(site, buffer)
    kinds = {
        SiteKind.EMBEDDING: EmbeddingHook,
        SiteKind.BAG: BagHook,
        SiteKind.BATCHED: BatchedHook,
    }
    return kinds[site.kind](site, buffer)
