"""Which batches of torch's are in what an iterator gives, of whose ways nothing is known.

Where it passes tensors on as they are, these tell. Those that it makes anew tell nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch import Tensor

from trainobs.hooks.loader_facts import inside
from trainobs.hooks.loader_listener import LoaderListener
from trainobs.hooks.loader_pass import LoaderPass

MOST = 4
"""Tensors of a batch by which it is known."""

MOST_PARTS = 32
"""Parts of a batch that are looked at for them: some us."""

MOST_KEPT = 1024
"""Tensors of batches that are remembered, not kept alive; of more, all are forgotten."""

_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})

Key = tuple[int, int, int, int]


class GivenTensors:
    """Tells the ledger which batches of torch's are in what the iterators of a watch give.

    A tensor that was in two batches before the loop got it tells nothing, and neither does what has
    tensors of two batches of a loader.

    Args:
        watch: whose ledger and clock they are.
    """

    def __init__(self, watch: LoaderListener) -> None:
        self._watch = weakref.ref(watch)
        self._known: dict[int, tuple[weakref.ref[Tensor], Key | None]] = {}
        self._workers: dict[int, int] = {}  # of loaders that were not told of

    @classmethod
    def of_watch(cls, watch: LoaderListener) -> GivenTensors:
        """The one of a watch."""
        if watch.given_tensors is None:
            watch.given_tensors = cls(watch)
        made: GivenTensors = watch.given_tensors
        return made

    def is_by(self, iterator: object) -> bool:
        """Whether it tells of no other iterator: see `BatchMatcher`."""
        return False

    def ask(self) -> None:
        """A batch is about to be asked for, and maybe an iterator of torch's made meanwhile."""
        if (watch := self._watch()) is not None:
            watch.expected = self

    def makes(self, loader: object, at: LoaderPass) -> None:
        """An iterator of torch's was made meanwhile."""
        at.show_to(self)
        if len(self._workers) > MOST_KEPT:
            self._workers.clear()
        self._workers[at.loader] = at.workers

    def fetched(self, at: LoaderPass, number: int, batch: object) -> None:
        """It gave the batch of this number."""
        watch = self._watch()
        if watch is None or not watch.here():
            return
        if len(self._known) > MOST_KEPT:
            self._known = {key: one for key, one in self._known.items() if one[0]() is not None}
        if len(self._known) > MOST_KEPT:
            self._known.clear()
        key = (at.loader, at.passes, *at.key_of(number)) if at.exact else None
        for tensor in _tensors(batch):
            known = self._known.get(id(tensor))
            is_new = known is None or known[0]() is not tensor or known[1] == key
            self._known[id(tensor)] = weakref.ref(tensor), key if is_new else None

    def got(self, batch: object) -> None:
        """The loop has got this."""
        watch = self._watch()
        if watch is None:
            return
        watch.expected = None
        found: dict[int, Key | None] = {}
        for tensor in _tensors(batch):
            known, key = self._known.get(id(tensor), (lambda: None, None))
            if known() is tensor and key is not None:
                del self._known[id(tensor)]
                found[key[0]] = key if found.get(key[0], key) == key else None
        for loader, key in found.items():
            if key is None:
                continue
            if loader in self._workers:
                watch.gives_later(loader, self._workers.pop(loader))
            watch.ledger.given([watch.clock.serial, *key])

    def explain(self) -> None:
        """No iterator of torch's is to be made now."""
        if (watch := self._watch()) is not None:
            watch.expected = None


def _tensors(batch: object) -> list[Any]:
    """The first of a batch, in its order."""
    tensors: list[Any] = []
    for part in islice(_in_order((batch,)), MOST_PARTS):
        if issubclass(type(part), Tensor):
            tensors.append(part)
            if len(tensors) == MOST:
                break
    return tensors


def _in_order(parts: Iterable[object]) -> Iterator[object]:
    for part in parts:
        yield part
        kind = type(part)
        if kind not in _PLAIN and not issubclass(kind, Tensor):
            yield from _in_order(inside(part))
