"""Who is told of fetches in C hears what those hear who are told in Python, whatever fails."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from functools import wraps
from typing import Any

import pytest

from trainobs.steps import fast_path, fast_path_python

pytestmark = pytest.mark.skipif(fast_path.LANGUAGE != "C", reason="the part in C is not built")

DEEPEST = 3


class Fault(Exception):
    pass


def handled() -> list[str]:
    """What is being handled, and what was then."""
    error, all_of_them = sys.exc_info()[1], []
    while error is not None:
        all_of_them.append(repr(error))
        error = error.__context__
    return all_of_them


class World:
    """Loops that get batches from iterators, which have loops of their own, as chance has it."""

    def __init__(self, module: Any, seed: int) -> None:
        self.chance = random.Random(seed)
        self.heard: list[Any] = []
        self.told: dict[int, Any] = {}
        self.passes: dict[int, Any] = {}
        self.kept: list[Any] = []
        world = self

        class Tracker(module.PassTracker):  # type: ignore[misc]
            def _tell(self, watches: object) -> None:
                world.hear("tell")
                self.watches = watches
                self.until_one_ends = world.one_in(3)
                if world.one_in(3):
                    self.marks = module.TaskMarks(0, 1, lambda _: world.hear("size") or 5, ())

            def _look_at(self, iterator: object) -> None:
                world.hear("look")

            def _note(self, iterator: object, batch: object) -> None:
                world.hear("note", self.number, batch)
                self.due = self.number + 1

        class Rare:
            @staticmethod
            def unseen() -> Tracker:
                world.hear("unseen")
                return Tracker()

            @staticmethod
            def without(at: Any, watches: Any, listeners: Any, error: BaseException) -> None:
                world.hear("without", at.number, watches, listeners, repr(error))

            @staticmethod
            def fault(watches: Any) -> None:
                world.hear("fault", watches)

        class Batches:
            depth = 0

            def __next__(self) -> object:
                return world.batch(self.depth + 1)

        self.tracker, self.kind = Tracker, Batches
        plain = Batches.__next__
        told_of = module.watched_next(plain, self.told, self.passes, Rare)
        Batches.__next__ = wraps(plain)(told_of)  # type: ignore[method-assign]

    def one_in(self, count: int) -> bool:
        return self.chance.randrange(count) == 0

    def hear(self, *what: object) -> None:
        """Note it; then go on, fail, or have others be told."""
        self.heard.append((*what, handled()))
        came = self.chance.randrange(40)
        if came < 2:
            raise [Fault, KeyboardInterrupt][came](what[0])
        if came == 2:
            self.told.clear()
        elif came == 3:
            self.tell()
        elif came == 4:
            self.passes.clear()

    def tell(self) -> None:
        self.told[threading.get_ident()] = ("watch", self.chance.randrange(3))

    def batch(self, depth: int) -> object:
        came = self.chance.randrange(12)
        if came < 3:
            raise [StopIteration, ValueError, GeneratorExit][came](depth)
        if came == 3:
            return self.loop(depth)
        if came == 4:
            try:
                raise KeyError(depth)
            except KeyError:
                return self.loop(depth)
        return b"batch"

    def loop(self, depth: int = 0) -> list[object]:
        """Get some batches, in several ways; all that is seen of them."""
        seen: list[object] = [b"begun"]
        if depth > DEEPEST:
            return seen
        iterator = self.kind()
        iterator.depth = depth
        self.kept.append(iterator)  # an identity is of one alone
        if not self.one_in(4):
            at = self.passes[id(iterator)] = self.tracker()
            at.due = self.chance.randrange(3)
        for _ in range(self.chance.randrange(5)):
            try:
                seen += self.some(iterator)
            except BaseException as error:
                seen.append((repr(error), repr(error.__context__)))
        return seen

    def some(self, iterator: Any) -> Iterator[object]:
        how = self.chance.randrange(4)
        if how == 0:
            yield next(iterator)
        elif how == 1:
            yield iterator.__next__()
        elif how == 2:
            yield type(iterator).__next__(*[iterator], **{})
        else:
            one = generator(iterator)
            try:
                raise OSError
            except OSError:
                yield [next(one, None), next(one, None), handled()]
            yield [next(one, None), handled()]


def generator(iterator: Any) -> Iterator[object]:
    while True:
        try:
            yield next(iterator), handled()
        except (ValueError, StopIteration) as error:
            yield repr(error), handled()
        yield handled()


@pytest.mark.parametrize("seed", range(60))
def test_a_world_of_c_is_that_of_python(seed: int) -> None:
    ours, reference = World(fast_path, seed), World(fast_path_python, seed)
    for _ in range(40):
        ours.tell()
        reference.tell()
        assert ours.loop() == reference.loop()
    assert ours.heard == reference.heard
    assert len(reference.heard) > 40
