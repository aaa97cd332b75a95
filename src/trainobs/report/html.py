"""A run, or two sides of runs, as one HTML file: modules of the page, and the pieces that fit.

The file asks nobody for anything. Pieces are JSON, deflated; the page inflates those that it shows.
A long run keeps its coarse levels, and of the finer ones as many as fit.
"""

from __future__ import annotations

import base64
import html
import re
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from trainobs.analysis.comparison.two_sides import Comparison
from trainobs.analysis.view import RunView
from trainobs.core.strict_json import dumps
from trainobs.report import comparison
from trainobs.report.pieces import piece

STATIC = Path(__file__).parent / "static"

BYTES = 4_500_000
"""Of the pieces in a file, at most, before they are written as text."""

_IMPORT = re.compile(r'from "\./([^"]+)"')


def page(view: RunView, most_bytes: int = BYTES) -> str:
    """The page of a run.

    Args:
        view: the run.
        most_bytes: of its pieces.

    Returns:
        A document of HTML. Nothing in it that comes from the run is markup or script.

    Raises:
        RunLogError: a file of the run is damaged.
    """
    return _document(_title(view), "page.js", dict(_fitting(view, most_bytes)))


def comparison_page(found: Comparison) -> str:
    """The page of a comparison, of which the same holds.

    Args:
        found: what `analysis.comparison.two_sides.compare` returns.
    """
    pieces = {"compare": _packed(comparison.piece(found))}
    return _document("trainobs: comparison of runs", "compare.js", pieces)


def as_json(piece: Mapping[str, object]) -> bytes:
    """A piece as JSON; lone surrogates and all that is not ASCII are escapes."""
    return dumps(piece, separators=(",", ":")).encode()


def _fitting(view: RunView, most_bytes: int) -> Iterator[tuple[str, str]]:
    """Pieces, those first that every page needs."""
    left = most_bytes
    for path, must in _wanted(view):
        packed = _packed(piece(view, path))
        left -= len(packed)
        if left < 0 and not must:
            return
        yield path, packed


def _packed(piece: Mapping[str, object]) -> str:
    return base64.b64encode(zlib.compress(as_json(piece), 9)).decode()


def _wanted(view: RunView) -> Iterator[tuple[str, bool]]:
    """Paths in the order in which they are worth their place, and whether they must be there."""
    yield from ((path, True) for path in ("head", "summary"))
    every = view.head()["levels"][::-1]
    ranks = ["ranks"] if len(view.run.ranks) > 1 else []
    for group in (*view.groups(), *ranks):
        yield from ((path, True) for path in view.paths(group, every[0]))
    lanes = view.paths("lanes", 1)
    middle = len(lanes) // 2
    order = sorted(range(len(lanes)), key=lambda n: (n not in (0, len(lanes) - 1), abs(n - middle)))
    yield from ((lanes[number], False) for number in order[:_LANES])
    for level in every[1:]:
        yield from ((path, False) for path in view.paths("parts", level))
    yield from ((lanes[number], False) for number in order[_LANES:])


_LANES = 20
"""Chunks of lanes that come before finer levels."""


def _document(title: str, module: str, pieces: Mapping[str, str]) -> str:
    """A page that the module shows."""
    modules = [[name, _text(name)] for name in _modules(module)]
    styles = "\n".join(_text(name) for name in ("vendor/uPlot.min.css", "page.css"))
    return _DOCUMENT.format(
        title=html.escape(title),
        licence=_text("vendor/LICENSE.uPlot"),
        styles=styles,
        modules=_data("modules", modules),
        pieces=_data("pieces", pieces),
        start=_text("start.js"),
    )


def _title(view: RunView) -> str:
    path = view.run.path
    # Of a Trainer's run it is the directory of its logger that people know; as in page.js.
    name = path.name if path.name != "trainobs" else "/".join(path.parts[-2:])
    return f"trainobs: {name}".encode("ascii", "backslashreplace").decode()


def _modules(name: str, found: tuple[str, ...] = ()) -> tuple[str, ...]:
    """A module and those that it imports, each after what it imports itself."""
    for other in _IMPORT.findall(_text(name)):
        if other not in found:
            found = _modules(other, found)
    return (*found, name)


def _text(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def _data(name: str, value: object) -> str:
    """JSON that cannot end the element it stands in."""
    text = dumps(value, separators=(",", ":")).replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>'


_DOCUMENT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<!-- Charts are drawn by uPlot:

{licence}-->
<style>{styles}</style>
<body class="trainobs"><p>This page is drawn by JavaScript. Where that is off, or not allowed,
the commands trainobs report and trainobs compare say the same as text.</p></body>
{modules}
{pieces}
<script type="module">{start}</script>
</html>
"""
