"""Rows of the report's tables, and lines that fit its width."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

WIDTH = 100
LABEL = 38
COLUMN = 11


def row(label: str, *columns: str, width: int = LABEL) -> str:
    """A row of a table, whose label takes `width` characters; columns never touch."""
    return f"{label:<{width}}" + "".join(f" {column:>{COLUMN - 1}}" for column in columns)


def or_unknown(form: Callable[[float], str], value: float | None) -> str:
    """A number in its form, or a dash for one that is unknown."""
    return "-" if value is None else form(value)


def paragraph(text: str, first: str = "", others: str = "  ", most: int | None = None) -> list[str]:
    """Text as lines, the first and the others with their indents, and at most so many."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        max_lines=most,
        placeholder="...",
        break_on_hyphens=False,
    )


def cut(line: str, width: int = WIDTH) -> str:
    """A line that is no wider than that; what is cut off shows as dots."""
    return line if len(line) <= width else f"{line[: width - 3]}..."


def cut_path(path: str, width: int) -> str:
    """A path that is no wider than that, or than 20; its end tells more than its begin."""
    width = max(width, 20)
    return path if len(path) <= width else f"...{path[3 - width :]}"
