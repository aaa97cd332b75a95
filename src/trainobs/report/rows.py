"""Rows of the report's tables."""

from __future__ import annotations

from collections.abc import Callable

LABEL = 38
COLUMN = 11


def row(label: str, *columns: str, width: int = LABEL) -> str:
    """A row of a table, whose label takes `width` characters."""
    return f"{label:<{width}}" + "".join(f"{column:>{COLUMN}}" for column in columns)


def or_unknown(form: Callable[[float], str], value: float | None) -> str:
    """A number in its form, or a dash for one that is unknown."""
    return "-" if value is None else form(value)
