"""Contexts of steps and phases of a plain loop, and the number that a step is given."""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import nullcontext
from typing import Protocol, SupportsIndex

from trainobs.core.errors import shown
from trainobs.integrations.user_warnings import warn_once
from trainobs.steps.clock import LAST_STEP


class Scope(Protocol):
    """A context manager that yields nothing and swallows no exception."""

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


NOTHING = nullcontext()
"""A step or phase of which nothing is wanted."""


class FirstUse:
    """A scope that tells whether it was entered: a word may be called, and no `with` be there.

    Args:
        scope: what is entered.
        entered: called before `scope` is entered, each time.

    Attributes:
        was_entered: whether it was.
    """

    __slots__ = ("_entered", "_scope", "was_entered")

    def __init__(self, scope: Scope, entered: Callable[[], object]) -> None:
        self._scope, self._entered, self.was_entered = scope, entered, False

    def __enter__(self) -> None:
        self.was_entered = True
        self._entered()
        self._scope.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._scope.__exit__(*exception)


def step_number(value: SupportsIndex | None) -> int | None:
    """A number that the record cannot hold gives way to the next number in turn."""
    try:
        number = -1 if value is None else operator.index(value)
    except Exception:  # of what somebody calls a number
        number = -1
    if 0 <= number <= LAST_STEP:
        return number
    if value is not None:
        do = f"give a whole number from 0 to {LAST_STEP}"
        warn_once("trainobs takes no notice of a bad step number", shown(value), do)
    return None
