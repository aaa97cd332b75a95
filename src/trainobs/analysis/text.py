"""Numbers as people read them, what the report uses of `core.text`; and rows of its tables."""

from __future__ import annotations

from collections.abc import Callable

from trainobs.core.text import bar, duration, percent, printable, quantity, size

__all__ = ["bar", "duration", "or_unknown", "percent", "printable", "quantity", "row", "size"]

LABEL = 38
COLUMN = 11


def row(label: str, *columns: str) -> str:
    """A row of a table."""
    return f"{label:<{LABEL}}" + "".join(f"{column:>{COLUMN}}" for column in columns)


def or_unknown(form: Callable[[float], str], value: float | None) -> str:
    """A number in its form, or a dash for one that is unknown."""
    return "-" if value is None else form(value)
