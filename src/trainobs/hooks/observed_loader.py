"""Loaders that are not torch's, and iterators: what stands for them tells the step clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from trainobs.hooks.batch_matcher import Matcher, matcher_for
from trainobs.hooks.given_tensors import GivenTensors
from trainobs.hooks.loader_listener import LoaderListener
from trainobs.hooks.loader_pass import pass_of, passes
from trainobs.hooks.loop_pass import LoopPass
from trainobs.hooks.object_proxy import ObjectProxy, inner_of


class ObservedLoader(ObjectProxy):
    """Stands for a loader. Its iterators are made at once, as the loader's own are."""

    __slots__ = ("trainobs_watch",)

    trainobs_watch: LoaderListener

    def __new__(cls, inner: object, watch: LoaderListener, *_: object) -> Any:
        """Of the class of stand-ins for loaders like `inner`."""
        made = super().__new__(cls, inner)
        object.__setattr__(made, "trainobs_watch", watch)
        return made

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the loader; to make the iterator counts as waiting for it."""
        inner, watch = self.trainobs_inner, self.trainobs_watch
        if not watch.here():
            watch.note_elsewhere()
            return iter(inner)
        loop = watch.safely(LoopPass, watch.clock, inner)
        if loop is None:
            return iter(inner)
        watch.safely(loop.start)
        watch.safely(_expect, watch)
        try:
            made = iter(inner)
        except BaseException:
            watch.safely(loop.failed)
            raise
        finally:
            watch.expected = None
        observed: Iterator[Any] | None = watch.safely(self._followed, made, loop)
        watch.safely(loop.made)
        return made if observed is None else observed

    def _followed(self, made: Iterator[Any], loop: LoopPass) -> Any:
        if at := passes.get(id(inner_of(made))):  # torch's own, whose fetches tell enough
            at.shown = ()
        return followed(made, self.trainobs_watch, loop)


class ObservedIterator(ObservedLoader):
    """Stands for an iterator, or for a loader that is its own."""

    __slots__ = ("trainobs_matcher", "trainobs_pass")

    trainobs_matcher: Matcher | None
    trainobs_pass: LoopPass | None

    def __new__(cls, inner: object, watch: LoaderListener, loop: LoopPass | None = None) -> Any:
        """Of the class of stand-ins for iterators like `inner`."""
        made = super().__new__(cls, inner, watch)
        made._goes_by(loop)
        if made.trainobs_matcher is not None:
            watch.safely(made.trainobs_matcher.explain)
        return made

    def _goes_by(self, loop: LoopPass | None) -> None:
        watch = self.trainobs_watch
        matches = loop is not None and loop.loop
        matcher = watch.safely(matcher_for, self.trainobs_inner, watch) if matches else None
        object.__setattr__(self, "trainobs_pass", loop)
        object.__setattr__(self, "trainobs_matcher", matcher)

    def __next__(self) -> Any:
        """The next batch."""
        inner, watch = self.trainobs_inner, self.trainobs_watch
        if not watch.here():
            watch.note_elsewhere()
            return next(inner)
        loop = self.trainobs_pass
        if loop is None or loop.ended:
            loop = watch.safely(LoopPass, watch.clock)
            self._goes_by(loop)
        if loop is None:
            return next(inner)
        watch.safely(loop.ask)
        matcher = self.trainobs_matcher
        if matcher is not None:
            watch.safely(matcher.ask)
        try:
            batch = next(inner)
        except StopIteration:
            if matcher is not None:
                watch.safely(matcher.explain)
            watch.safely(loop.over)
            raise
        except BaseException:
            watch.safely(loop.failed)
            raise
        watch.safely(loop.got)
        if matcher is not None:
            watch.safely(matcher.got, batch)
        return batch

    def _followed(self, made: Iterator[Any], loop: LoopPass) -> Any:
        return self if made is self.trainobs_inner else super()._followed(made, loop)


class HeldIterator(ObjectProxy):
    """Stands for an iterator with persistent workers, or of torchdata's, as long as a loop has it.

    The loader keeps such an iterator, so that its end does not tell of a loop that breaks off.
    """

    __slots__ = ("trainobs_passes",)

    trainobs_passes: list[LoopPass]

    def __new__(cls, inner: object) -> Any:
        """Of the class of stand-ins for iterators like `inner`."""
        made = super().__new__(cls, inner)
        object.__setattr__(made, "trainobs_passes", [])
        return made

    def __iter__(self) -> HeldIterator:
        return self

    def __next__(self) -> Any:
        """The next batch."""
        return next(self.trainobs_inner)

    def __del__(self) -> None:
        for loop in self.trainobs_passes:
            loop.drop()


def _expect(watch: LoaderListener) -> None:
    """An iterator of torch's may be made, before it is known who asks it."""
    GivenTensors.of_watch(watch).ask()


def followed(iterator: Any, watch: LoaderListener, loop: LoopPass) -> Any:
    """An iterator whose fetches a loop's pass is told of: torch's own, or what stands for it."""
    if not isinstance(iterator, _BaseDataLoaderIter):
        return ObservedIterator(iterator, watch, loop)
    inner = inner_of(iterator)
    pass_of(inner).go_with(watch, loop)
    if inner is iterator and (inner._persistent_workers or hasattr(inner, "state_dict")):
        iterator = HeldIterator(inner)
    if inner is not iterator:
        iterator.trainobs_passes.append(loop)
    return iterator
