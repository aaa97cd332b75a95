"""Who is told of a fetch, and what comes of an exception, in C and in Python."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Iterator
from functools import wraps
from typing import Any

import pytest

from trainobs.steps import fast_path, fast_path_python

MODULES = {"C": fast_path, "Python": fast_path_python}


class Numbers:
    """Gives 1, 2, an exception, 4 and 5."""

    def __init__(self) -> None:
        self.count = 0

    def __next__(self) -> int:
        self.count += 1
        if self.count == 3:
            raise ValueError("three")
        if self.count > 5:
            raise StopIteration
        return self.count


class Watched:
    """A class of such iterators, whose fetches somebody is told of; `log` says what was told."""

    def __init__(self, module: Any) -> None:
        self.log: list[Any] = []
        self.told = {threading.get_ident(): ("somebody",)}
        self.passes: dict[int, Any] = {}
        log = self.log

        class Tracker(module.PassTracker):  # type: ignore[misc]
            def _tell(self, watches: object) -> None:
                self.watches = watches

            def _note(self, iterator: Numbers, batch: object) -> None:
                log.append(("note", iterator.count, batch))
                self.due = 0

        class Rare:
            unseen = Tracker

            @staticmethod
            def without(at: Any, watches: object, listeners: object, error: Exception) -> None:
                assert sys.exc_info()[1] is error
                log.append(("without", at.number, watches, listeners, type(error)))

            @staticmethod
            def fault(watches: object) -> None:
                log.append(("fault", watches, sys.exc_info()[0]))

        class Wrapped(Numbers):
            pass

        self.tracker, self.rare = Tracker, Rare
        self.original = Numbers.__next__
        wrapper = module.watched_next(self.original, self.told, self.passes, Rare)
        Wrapped.__next__ = wraps(self.original)(wrapper)  # type: ignore[method-assign]
        self.kind = Wrapped

    def loop(self, iterator: Numbers) -> list[object]:
        got: list[object] = []
        while True:
            try:
                got.append(next(iterator))
            except ValueError as error:
                got.append((str(error), error.__context__))
            except StopIteration:
                return got

    def iterator(self, **members: Any) -> Numbers:
        """One that is in a pass, whose tracker has these members or methods."""
        made = self.kind()
        kind = type("Special", (self.tracker,), {k: v for k, v in members.items() if callable(v)})
        self.passes[id(made)] = at = kind()
        at.due = members.get("due", 0)
        return made


ALL = [1, 2, ("three", None), 4, 5]


@pytest.fixture(params=MODULES)
def watched(request: pytest.FixtureRequest) -> Watched:
    return Watched(MODULES[request.param])


def fail(*_: object) -> None:
    raise RuntimeError("ours")


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_pass_hears_of_batches_and_of_exceptions(watched: Watched) -> None:
    iterator = watched.iterator(due=2)
    assert watched.loop(iterator) == ALL
    watches = ("somebody",)
    assert watched.log == [
        ("note", 2, 2),
        ("without", 2, watches, (), ValueError),
        ("without", 4, watches, (), StopIteration),
    ]
    assert watched.passes[id(iterator)].watches is watched.told[threading.get_ident()]


def test_it_is_a_method_as_the_one_that_it_stands_for(watched: Watched) -> None:
    iterator = watched.iterator()
    method = watched.kind.__next__
    assert (method.__name__, method.__wrapped__) == ("__next__", watched.original)  # type: ignore[attr-defined]
    assert (iterator.__next__(), watched.kind.__next__(iterator)) == (1, 2)
    with pytest.raises(TypeError, match="argument"):
        iterator.__next__(1)  # type: ignore[call-arg]
    assert method is watched.kind.__next__


def test_who_wraps_it_may_call_it_with_no_keywords(watched: Watched) -> None:
    ours = watched.kind.__next__
    theirs = lambda *args, **named: ours(*args, **named)  # noqa: E731
    watched.kind.__next__ = theirs  # type: ignore[method-assign]
    assert watched.loop(watched.iterator(due=1)) == ALL
    assert [told[0] for told in watched.log] == ["note", "without", "without"]


def test_a_copy_is_itself_and_none_is_unfinished(watched: Watched) -> None:
    method = watched.kind.__next__
    assert copy.copy(method) is copy.deepcopy(method) is method
    with pytest.raises(TypeError):
        type(method).__new__(type(method))


def test_an_iterator_that_nobody_saw_begin_is_told_of_as_well(watched: Watched) -> None:
    assert watched.loop(watched.kind()) == ALL
    assert [told[0] for told in watched.log] == ["without", "without"]


def test_where_nobody_watches_nobody_is_told(watched: Watched) -> None:
    got: list[object] = []
    thread = threading.Thread(target=lambda: got.append(watched.loop(watched.iterator(_tell=fail))))
    thread.start()
    thread.join()
    watched.told.clear()
    assert [*got, watched.loop(watched.iterator(_tell=fail))] == [ALL, ALL]
    assert watched.log == []


@pytest.mark.parametrize("where", ["_tell", "_note"])
def test_a_fault_of_ours_is_told_and_the_loop_gets_its_batch(watched: Watched, where: str) -> None:
    iterator = watched.iterator(due=1, **{where: fail})
    assert next(iterator) == 1
    assert watched.log[0] == ("fault", ("somebody",), RuntimeError)
    assert sys.exc_info() == (None, None, None)


@pytest.mark.parametrize("where", ["_tell", "_note"])
def test_what_ends_a_training_reaches_it(watched: Watched, where: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        next(watched.iterator(due=1, **{where: interrupt}))
    assert watched.log == []


def test_so_does_what_comes_as_an_exception_is_told_of(watched: Watched) -> None:
    watched.rare.without = staticmethod(interrupt)  # type: ignore[assignment]
    iterator = watched.iterator()
    assert (next(iterator), next(iterator)) == (1, 2)
    with pytest.raises(KeyboardInterrupt) as caught:
        next(iterator)
    assert isinstance(caught.value.__context__, ValueError)


def test_a_generator_handles_nothing_of_who_goes_on_with_it(watched: Watched) -> None:
    def handled() -> Iterator[type[BaseException] | None]:
        watched.loop(watched.iterator())
        yield sys.exc_info()[0]
        yield sys.exc_info()[0]

    both = handled()
    got = []
    try:
        raise KeyError
    except KeyError:
        got.append(next(both))
    assert [*got, next(both)] == [KeyError, None]


def test_an_exception_that_was_handled_is_handled_again(watched: Watched) -> None:
    handled = []
    try:
        raise KeyError
    except KeyError:
        watched.loop(watched.iterator())
        handled.append(sys.exc_info()[0])
    assert [*handled, sys.exc_info()[0]] == [KeyError, None]
