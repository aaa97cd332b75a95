"""Iterators between a loop and torch's: which batch of torch's each batch is that they give.

Accelerate's loaders make an iterator of torch's as they are asked for their first batch, and fetch
one batch more than they give, to know which is the last. Loaders of others (litdata's) are torch's,
with an `__iter__` of their own that goes on with what torch's gives, batch by batch.
"""

from __future__ import annotations

import sys
import weakref
from inspect import GEN_CREATED, getgeneratorstate
from types import FrameType, GeneratorType
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainobs.core.abi import Phase
from trainobs.hooks.loader_listener import LoaderListener
from trainobs.hooks.loader_pass import LoaderPass, passes

_AHEAD = {"DataLoaderShard": 1, "DataLoaderDispatcher": 1, "SkipDataLoader": 0}
"""Classes of Accelerate's -> batches that their `__iter__` fetches before the first is given."""

_MODULE = "accelerate.data_loader"

_LOADER = Phase.LOADER.value


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

    __slots__ = ("_ahead", "_at", "_iterator", "_number", "_passes", "_watch", "base")

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
        self._passes = 0

    def is_by(self, iterator: object) -> bool:
        """Whether it is this iterator's, which has not begun again since."""
        begun_again = self._at is not None and self._at.passes != self._passes
        return self._iterator() is iterator and not begun_again

    def ask(self) -> None:
        """A batch is about to be asked for, and torch's iterator made with the first."""
        if self.base is not None:
            self._watch.expected = self

    def begin(self, at: LoaderPass) -> None:
        """Torch's iterator is there, and about to be asked for its next batch."""
        self._watch.expected = self.base = None
        self._at, self._passes = at, at.passes
        self._number += at.number
        self._watch.ledger.gives_later(at.loader)

    def explain(self) -> None:
        """The wait that goes on is for the iterator itself, which asks for no batch in it."""
        clock, is_known = self._watch.clock, self.base is not None or self._at is not None
        if is_known and clock.phase == _LOADER:
            clock.explain()

    def got(self) -> None:
        """The loop has got a batch."""
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
    module = sys.modules.get(_MODULE)
    kinds = [getattr(module, name, None) for name in _AHEAD]
    codes = [getattr(getattr(kind, "__iter__", None), "__code__", None) for kind in kinds]
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code not in codes:
        frame = frame.f_back
    return frame is not None


def matcher_for(iterator: Any, watch: LoaderListener) -> BatchMatcher | None:
    """That of an iterator which was not asked for a batch yet; None if its ways are not known."""
    if isinstance(iterator, _BaseDataLoaderIter):
        at = passes.get(id(iterator))
        if at is None:
            return None
        matcher = BatchMatcher(iterator, watch)
        matcher.begin(at)
        return matcher
    frame = iterator.gi_frame if type(iterator) is GeneratorType else None
    if frame is None or getgeneratorstate(iterator) != GEN_CREATED:
        return None
    for name, ahead in _AHEAD.items():
        kind = getattr(sys.modules.get(_MODULE), name, None)
        if kind is None or iterator.gi_code is not getattr(kind.__iter__, "__code__", None):
            continue
        loader: Any = frame.f_locals.get("self")
        base = getattr(loader, "base_dataloader", None)
        if base is None:  # an older version
            return None
        if name == "DataLoaderDispatcher" and loader.state.num_processes > 1:
            return None  # rank 0 makes a batch of several, or part of one
        skipped = getattr(loader, "skip_batches", 0)
        return BatchMatcher(iterator, watch, ahead=ahead, skipped=skipped, base=base)
    base = frame.f_locals.get("self")
    return BatchMatcher(iterator, watch, base=base) if isinstance(base, DataLoader) else None
