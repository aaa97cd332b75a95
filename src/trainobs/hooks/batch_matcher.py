"""Iterators between a loop and torch's: which batch of torch's each batch is that they give.

Accelerate's loaders make an iterator of torch's as they are asked for their first batch, and fetch
one batch more than they give, to know which is the last. timm's does that, to have the next batch
on the device. Loaders of others (litdata's) are torch's, with an `__iter__` of their own that goes
on with what torch's gives, batch by batch. What any other one gives is known by its tensors.
"""

from __future__ import annotations

import sys
import weakref
from inspect import CO_GENERATOR, GEN_CREATED, getgeneratorstate
from types import FrameType, GeneratorType
from typing import Any, Protocol

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainobs.core.abi import Phase
from trainobs.hooks.given_tensors import GivenTensors
from trainobs.hooks.loader_listener import LoaderListener
from trainobs.hooks.loader_pass import LoaderPass, passes

_ACCELERATE, _TIMM = "accelerate.data_loader", "timm.data.loader"

_AHEAD = {
    (_ACCELERATE, "DataLoaderShard"): (1, "base_dataloader"),
    (_ACCELERATE, "DataLoaderDispatcher"): (1, "base_dataloader"),
    (_ACCELERATE, "SkipDataLoader"): (0, "base_dataloader"),
    (_TIMM, "PrefetchLoader"): (1, "loader"),
}
"""Classes -> batches that their `__iter__` fetches before the first is given, and where their
loader of torch is."""

_LOADER = Phase.LOADER.value


class Matcher(Protocol):
    """Tells the ledger which batch of torch's each one is that an iterator gives."""

    def is_by(self, iterator: object) -> bool:
        """Whether it is this iterator's, which has not begun again since."""

    def ask(self) -> None:
        """A batch is about to be asked for."""

    def explain(self) -> None:
        """The wait that goes on is for the iterator itself, which asks for no batch in it."""

    def got(self, batch: object) -> None:
        """The loop has got a batch."""


class BatchMatcher:
    """Tells the ledger which batch of torch's each one is that an iterator gives.

    It gives them all in turn, but for some that it leaves out first. Where their numbers do not go
    together with that, nothing is said any more.

    Args:
        iterator: the one that the loop asks.
        watch: whose ledger and clock they are.
        ahead: batches that it has fetched and not given, at most.
        skipped: that it leaves out.
        base: the loader of torch that it asks; None if it is torch's iterator itself.
    """

    __slots__ = ("_ahead", "_at", "_before", "_iterator", "_number", "_passes", "_watch", "base")

    def __init__(
        self,
        iterator: Any,
        watch: LoaderListener,
        *,
        ahead: int = 0,
        skipped: int = 0,
        base: object = None,
    ) -> None:
        self.base = base
        self._iterator = weakref.ref(iterator)
        self._watch = watch
        self._ahead = ahead
        self._number = skipped
        self._at: LoaderPass | None = None
        self._before: list[tuple[LoaderPass, int]] = []
        self._passes = 0

    def is_by(self, iterator: object) -> bool:
        """Whether it is this iterator's, which has not begun again since."""
        begun_again = self._at is not None and self._at.passes != self._passes
        return self._iterator() is iterator and not begun_again

    def ask(self) -> None:
        """A batch is about to be asked for, and torch's iterator made with the first, or kept."""
        if self.base is not None:
            self._watch.expected = self
            self._before = [(at, at.number) for at in passes.values() if at.is_of(self.base)]

    def makes(self, loader: object, at: LoaderPass) -> None:
        """An iterator of torch's was made meanwhile."""
        if loader is self.base:
            self.begin(at, at.number)

    def begin(self, at: LoaderPass, number: int) -> None:
        """Torch's iterator is there, and the batch of this number the first that it is asked."""
        self._watch.expected = self.base = None
        self._at, self._passes = at, at.passes
        self._number += number
        self._watch.gives_later(at.loader, at.workers)

    def explain(self) -> None:
        """The wait that goes on is for the iterator itself, which asks for no batch in it."""
        clock, is_known = self._watch.clock, self.base is not None or self._at is not None
        if is_known and clock.phase == _LOADER:
            clock.explain()

    def got(self, batch: object) -> None:
        """The loop has got a batch."""
        if self.base is not None:  # no iterator was made: an older one may have gone on
            moved = [(at, number) for at, number in self._before if at.number > number]
            self._watch.expected = self.base = None
            if len(moved) == 1:
                self.begin(*moved[0])
        at, number = self._at, self._number
        if at is None:
            return
        if not 1 <= at.number - number <= 1 + self._ahead:
            self._at = None
            return
        self._number = number + 1
        key = at.key_of(number)
        self._watch.ledger.given([self._watch.clock.serial, at.loader, at.passes, *key])


def fetches_ahead() -> bool:
    """Whether an iterator of torch's is being made for one that fetches ahead of the loop."""
    codes = [_code_of(*name) for name in _AHEAD]
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def is_made_by_a_generator() -> bool:
    """Whether it is a generator that makes an iterator of torch's: it may fetch ahead."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("trainobs."):
        frame = frame.f_back
    return frame is not None and bool(frame.f_code.co_flags & CO_GENERATOR)


def matcher_for(iterator: Any, watch: LoaderListener) -> Matcher | None:
    """That of an iterator which was not asked for a batch yet; None if its ways are not known."""
    if isinstance(iterator, _BaseDataLoaderIter):
        at = passes.get(id(iterator))
        if at is None:
            return None
        matcher = BatchMatcher(iterator, watch)
        matcher.begin(at, at.number)
        return matcher
    frame = iterator.gi_frame if type(iterator) is GeneratorType else None
    loader: Any = frame.f_locals.get("self") if frame is not None else None
    if frame is None or getgeneratorstate(iterator) != GEN_CREATED:
        return GivenTensors.of_watch(watch)
    for (module, name), (ahead, where) in _AHEAD.items():
        if frame.f_code is not _code_of(module, name):
            continue
        base = getattr(loader, where, None)
        if not isinstance(base, DataLoader):  # of an older version, or not of torch
            return GivenTensors.of_watch(watch)
        if name == "DataLoaderDispatcher" and loader.state.num_processes > 1:
            return None  # rank 0 makes a batch of several, or part of one
        skipped = getattr(loader, "skip_batches", 0)
        return BatchMatcher(iterator, watch, ahead=ahead, skipped=skipped, base=base)
    if isinstance(loader, DataLoader):
        return BatchMatcher(iterator, watch, base=loader)
    return GivenTensors.of_watch(watch)


def _code_of(module: str, name: str) -> object:
    """That of the `__iter__` of a class, if it was imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return getattr(getattr(kind, "__iter__", None), "__code__", None)
