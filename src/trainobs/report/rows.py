"""Rows of the report's tables, and lines that fit its width."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from trainobs.core.text import duration, percent, size

WIDTH = 100
LABEL = 38
COLUMN = 11

FORMATS: Mapping[str, Callable[[float], str]] = {
    "ns": duration,
    "bytes": size,
    "ratio": percent,
    "MHz": "{:.0f} MHz".format,
    "W": "{:.0f} W".format,
    "degrees Celsius": "{:.0f} C".format,
}
"""Unit of a metric -> how it is shown."""

_TIE = "\x00"
"""Stands for a blank at which no line ends."""

_CODE = re.compile(r"(?<!\S)(?:[^\s`]*`[^`]*`)+[^\s`]*")
"""With what is written close to it, as a comma."""

_UNIT = re.compile(r"(?<=\d) (?=(%|[num]?s|h|min|[kMGT]?B|[KMG]iB|[kMG]|times)(?![^\W\d_]))")
"""The blank before one."""


_BARRED = re.compile(r"(.*\S {2,})(#+)")
_BEFORE = re.compile(r".* {2,}|")
"""What is before the last column of a line, or before its text."""


def row(label: str, *columns: str, width: int = LABEL) -> str:
    """A row of a table, whose label takes `width` characters; columns never touch."""
    return f"{label:<{width}}" + "".join(f" {column:>{COLUMN - 1}}" for column in columns)


def or_unknown(form: Callable[[float], str], value: float | None) -> str:
    """A number in its form, or a dash for one that is unknown."""
    return "-" if value is None else form(value)


def paragraph(
    text: str, first: str = "", others: str = "  ", most: int | None = None, width: int = WIDTH
) -> list[str]:
    """Text as lines, the first and the others with their indents, and at most so many.

    No number is parted from its unit. No `code` is broken, unless it is longer than a line, with
    what is written close to it.
    """
    room = width - max(len(first), len(others))

    def tied(found: re.Match[str]) -> str:
        return found[0].replace(" ", _TIE) if len(found[0]) <= room else found[0]

    lines = textwrap.wrap(
        _UNIT.sub(_TIE, _CODE.sub(tied, text)),
        width,
        initial_indent=first,
        subsequent_indent=others,
        max_lines=most,
        placeholder="...",
        break_on_hyphens=False,
    )
    return [line.replace(_TIE, " ") for line in lines]


def statement(line: str, most: int = 2) -> list[str]:
    """A sentence of clauses as lines, at most so many.

    What has no room is left out by whole clauses from the end, and never within one: there the
    numbers are. Only where the first one is too long is the rest of it cut off, behind a word.

    Args:
        line: text, with the indent of its first line.
        most: lines.
    """
    text = line.lstrip(" ")
    first = line[: len(line) - len(text)]
    ends = [found.start() for found in re.finditer(r"[;,] ", text)]
    ends = [at for at in ends if text.count("(", 0, at) == text.count(")", 0, at)]
    for told in (text, *(f"{text[: at + 1]} ..." for at in reversed(ends))):
        lines = paragraph(told, first, f"{first}  ")
        if len(lines) <= most:
            return lines
    return paragraph(text, first, f"{first}  ", most)


def fitted(text: str, width: int | None = None) -> str:
    """A report with bars and sentences as wide as the terminal, where that is narrower than it.

    Args:
        text: lines of at most `WIDTH`.
        width: of the terminal; None: that of standard output, if it is one.
    """
    if width is None:
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        width = shutil.get_terminal_size().columns if is_terminal else WIDTH
    if width >= WIDTH:
        return text
    return "\n".join(fit for line in text.split("\n") for fit in _fit(line, width))


def _fit(line: str, width: int) -> list[str]:
    if bar := _BARRED.fullmatch(line):
        room, usual = width - len(bar[1]), max(1, WIDTH - len(bar[1]))
        return [
            f"{bar[1]}{'#' * max(1, len(bar[2]) * room // usual)}" if room > 0 else bar[1].rstrip()
        ]
    if len(line) <= width:
        return [line]
    found = _BEFORE.match(line)
    begin = found[0] if found else ""
    text = line[len(begin) :]
    if not begin.strip():
        return paragraph(text, begin, f"{begin}  ", width=width)
    fits = len(begin) < width // 2 and text.count(" ") > 1  # else it is a number
    return paragraph(text, begin, " " * len(begin), width=width) if fits else [line]


def cut(line: str, width: int = WIDTH) -> str:
    """A line that is no wider than that; what is cut off, behind a word, shows as dots."""
    if len(line) <= width:
        return line
    kept = line[: width - 3]
    at = kept.rfind(" ")
    return f"{kept[:at] if at > width // 2 else kept}..."


def cut_path(path: str, width: int) -> str:
    """A path that is no wider than that, or than 20; its end tells more than its begin."""
    width = max(width, 20)
    return path if len(path) <= width else f"...{path[3 - width :]}"


def cut_names(names: Sequence[str], width: int) -> dict[str, str]:
    """Different names that are no wider than that, or than 20, and differ still.

    Their ends tell more than their begins; where these are the same, the begins tell, too.
    """
    width = max(width, 20)
    shown = {name: cut_path(name, width) for name in names}
    same = {label for label, count in Counter(shown.values()).items() if count > 1}
    for name in (name for name in names if shown[name] in same):
        shown[name] = f"{name[: width // 2 - 3]}...{name[-(width - width // 2) :]}"
    counts = Counter(shown.values())
    for number, name in enumerate((name for name in names if counts[shown[name]] > 1), 1):
        end = f"...{number}"
        shown[name] = shown[name][: width - len(end)] + end
    return shown
