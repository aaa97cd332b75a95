"""What `step` and `phase` of a plain loop give: the context of a stretch of time."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol


class Scope(Protocol):
    """A context manager that yields nothing and swallows no exception."""

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


NOTHING = nullcontext()
"""A step or phase of which nothing is wanted."""
