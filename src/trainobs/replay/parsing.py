"""Changes as they are written on the command line of `trainobs whatif`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf

from trainobs.core.errors import TrainobsError
from trainobs.replay.changes import KNOWN, Change

_ARGUMENTS = {kind.argument: name for name, kind in KNOWN.items() if kind.argument}


def examples() -> Iterator[tuple[str, str]]:
    """For each change an example, by the name of torch's argument if it has one; what it tells."""
    for name, kind in KNOWN.items():
        if kind.argument:
            yield _example(kind.argument, name), f"{kind.tells}; or {_example(name, name)}"
        else:
            yield _example(name, name), kind.tells


def _example(word: str, name: str) -> str:
    """A change with a value, if it has one, by either name."""
    kind = KNOWN[name]
    if kind.is_switch:
        return f"{word}=True" if word in _ARGUMENTS else word
    return f"{word}={kind.example or ('0.5x' if kind.is_factor else '4')}"


def parse(words: Iterable[str]) -> tuple[Change, ...]:
    """Changes as people write them, such as "num_workers=4", or "workers=4".

    Raises:
        TrainobsError: one is not known, or its value is of no use.
    """
    return tuple(map(_parse, words))


def parse_together(words: Sequence[str]) -> tuple[Change, ...]:
    """The same of changes that are made at once.

    Raises:
        TrainobsError: as `parse`; or two are of the same.
    """
    changes = parse(words)
    names = [change.name for change in changes]
    for word, name in zip(words, names, strict=True):
        if names.count(name) > 1:
            raise _refused(word, f"{name} is given {names.count(name)} times", "it once")
    return changes


def _parse(word: str) -> Change:
    given, _, text = word.partition("=")
    name = _ARGUMENTS.get(given, given)
    kind = KNOWN.get(name)
    if kind is None:
        names = ", ".join(kind.argument or name for name, kind in KNOWN.items())
        raise _refused(word, f"{given!r} is no change that can be replayed", f"one of {names}")
    example = _example(given, name)
    if kind.is_switch:
        if text and example != word:
            only = "takes no value" if given == name else "can only be True"
            raise _refused(word, f"{given} {only}", example)
        return Change(name, 0.0)
    if not text:
        raise _refused(word, f"{given} needs a value", f"one, such as {example}")
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = -1.0
    if not kind.least <= value < inf or (kind.is_count and value != int(value)):
        raise _refused(word, f"{given} cannot be {text!r}", f"for example {example}")
    if why := kind.refused(value):
        raise _refused(word, why, f"for example {example}")
    return Change(name, value)


def _refused(word: str, found: str, do: str) -> TrainobsError:
    return TrainobsError(failed=f"{word!r} cannot be predicted.", found=found, do=f"give {do}")
