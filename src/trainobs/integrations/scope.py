"""What `step` and `phase` of a plain loop give: the context of a stretch of time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol


class Scope(Protocol):
    """A context manager that yields nothing and swallows no exception."""

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


@dataclass(eq=False, slots=True)
class Between:
    """A step or phase, whose two ends a clock is told of, whatever becomes of that."""

    begin: Callable[[Any], object]
    what: int | None
    end: Callable[[], object]
    on_fault: Callable[[], None]

    def __enter__(self) -> None:
        try:
            self.begin(self.what)
        except Exception:
            self.on_fault()

    def __exit__(self, *exception: object) -> None:
        try:
            self.end()
        except Exception:
            self.on_fault()


NOTHING = nullcontext()
"""A step or phase of which nothing is wanted."""
