"""Numbers as people read them."""

from __future__ import annotations

import re

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_COUNTS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def duration(ns: float) -> str:
    """Nanoseconds, with three digits; above two minutes as hours, minutes and seconds."""
    seconds = round(ns / 1e9)
    if seconds <= 120:
        return _scaled(ns, _TIMES, "ns")
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"


def size(count: float) -> str:
    """Bytes, in powers of 1000 as storage is sold."""
    return _scaled(count, _BYTES, "B")


def quantity(count: float) -> str:
    """A count of things."""
    return _scaled(count, _COUNTS, "").rstrip()


def counted(count: int, one: str, many: str = "") -> str:
    """A count of things with their name, as in "1 step" and "2,000 steps"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def percent(share: float) -> str:
    """A share of one; what is nearly nothing or nearly all keeps a digit that tells so."""
    near = _near(100 * share)
    if 0 < near < 0.01:
        return "<0.01 %"
    if near >= 99.5 and share < 1 - 1e-6:
        return f"{near:.1f} %" if near < 99.95 else ">99.9 %"
    return f"{near:{'.2g' if 0 < share < 0.1 else '.0f'}} %"


def measured(value: float, unit: str) -> str:
    """A value of a metric with its unit."""
    form = {"ns": duration, "bytes": size, "ratio": percent}.get(unit, quantity)
    return form(value)


def times(factor: float) -> str:
    """A speed-up, as in "1.52 times as fast"."""
    return f"{_near(factor):.2f}" if factor < 2 else f"{_near(factor):.1f}"


def gained(low: float, high: float | None) -> str:
    """A predicted speed-up, from the least to the most; None: nobody knows the most."""
    if high is None:
        return f"at least {times(low)} times as fast"
    between = times(low) if times(low) == times(high) else f"{times(low)} to {times(high)}"
    return f"{between} times as fast"


def bar(share: float, width: int) -> str:
    """A bar of at most `width` characters; anything above zero shows."""
    length = round(min(share, 1.0) * width)
    return "#" * max(length, 1 if share > 0 else 0)


def printable(line: str) -> str:
    """A line in which nothing steers the terminal, and nothing fails to be encoded.

    Names come from files that others may have written; control characters, changes of direction
    and the lone surrogates of undecodable bytes are shown as Python's escapes.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in line
    )


def encodable(text: str) -> str:
    """A text that UTF-8 can say: lone surrogates are Python's escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def in_a_file_name(text: str) -> str:
    """What of a text may stand in the name of a file that every tool opens."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)


def _scaled(value: float, units: tuple[tuple[float, str], ...], base: str) -> str:
    factor, unit = next(((f, u) for f, u in units if value >= 0.9995 * f), (1.0, base))
    return f"{_three_digits(value / factor)} {unit}"


def _three_digits(value: float) -> str:
    rounded = float(f"{value:.6g}")
    if rounded == int(rounded) and rounded < 1000:
        return str(int(rounded))
    value = _near(value)
    if 0 < value < 0.005:
        return "<0.01"  # no zero: something was there
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"


def _near(value: float) -> float:
    """A number that rounds up if it is half-way, as far as 32 bits tell.

    The page has numbers of 32 bits, and a language that rounds halves up: what is half-way would
    be told as 92 % there, and as 91 % here.
    """
    return float(f"{value:.6g}") * (1 + 1e-9)
