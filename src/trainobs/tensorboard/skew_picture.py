"""The skew of embedding tables as a picture: what share of lookups the hottest rows serve."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from trainobs.access.skew import access_curve
from trainobs.core.text import percent, printable

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

    from trainobs.access import AccessCounts

WIDTH, HEIGHT = 760, 480
"""Pixels of the picture. It is drawn at `_SCALE` times that, and made smaller for smooth lines."""

_SCALE = 2
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 210, 44, 70
_FONT = 19  # TensorBoard shows it at a third of its size unless asked for more
_INK, _GRID, _PAPER = "#333333", "#dddddd", "#ffffff"
_COLOURS = (
    "#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17becf",
)  # fmt: skip


class Curve(NamedTuple):
    """What the hottest rows of a table serve.

    Attributes:
        name: of the table.
        rows: shares of its rows, ascending, above 0. Shape (n,).
        served: the share of lookups that the hottest of them serve. Shape (n,).
    """

    name: str
    rows: npt.NDArray[np.float64]
    served: npt.NDArray[np.float64]


def curves_of(counts: AccessCounts, tables: Sequence[str]) -> list[Curve]:
    """Curves of some tables; those without a lookup have none."""
    found = []
    for name in tables:
        if counts.total(name):
            rows, shares = access_curve(counts.spectrum(name))
            found.append(Curve(name, rows / counts.tables[name], shares.low))
    return found


def picture(curves: Sequence[Curve]) -> bytes:
    """The curves, on a logarithmic axis of rows, as a PNG of `WIDTH` by `HEIGHT`.

    Raises:
        ImportError: Pillow is missing; newer versions of TensorBoard bring it along.
    """
    from PIL import Image, ImageDraw, ImageFont

    paper = Image.new("RGB", (WIDTH * _SCALE, HEIGHT * _SCALE), _PAPER)
    axes = _Axes(ImageDraw.Draw(paper), ImageFont.load_default(_FONT * _SCALE), _decades(curves))
    axes.draw()
    for index, curve in enumerate(curves[: len(_COLOURS)]):
        axes.line(curve, _COLOURS[index])
        axes.entry(index, curve.name, _COLOURS[index])
    stream = io.BytesIO()
    paper.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS).save(stream, "PNG")
    return stream.getvalue()


def _decades(curves: Sequence[Curve]) -> int:
    """Powers of ten that the axis of rows spans."""
    least = min((float(curve.rows[0]) for curve in curves), default=0.01)
    return int(np.clip(np.ceil(-np.log10(least)), 1, 9))


class _Axes:
    """The drawing area: shares of rows from 10^-decades to 1, shares of lookups from 0 to 1."""

    def __init__(self, draw: ImageDraw, font: FreeTypeFont | ImageFont, decades: int) -> None:
        self._draw = draw
        self._font = font
        self._decades = decades

    def draw(self) -> None:
        """The grid, the words, and where the curve of a table without skew would be."""
        for decade in range(self._decades + 1):
            x = self._x(10.0**-decade)
            self._stroke([(x, self._y(0)), (x, self._y(1))], _GRID)
            if decade % (1 if self._decades <= 4 else 2) == 0:
                self._text(x, self._y(0) + 10, _share(10.0**-decade), "mt")
        for share in (0.0, 0.25, 0.5, 0.75, 1.0):
            self._stroke(
                [(self._x(10.0**-self._decades), self._y(share)), (self._x(1), self._y(share))],
                _GRID,
            )
            self._text(_LEFT - 8, self._y(share), percent(share), "rm")
        even = np.geomspace(10.0**-self._decades, 1, 100)
        self._stroke([(self._x(x), self._y(x)) for x in even.tolist()], _INK)
        self._text(10, 8, "lookups counted that the hottest rows serve", "lt")
        self._text(self._x(1), HEIGHT - 28, "share of the table's rows, hottest first", "rt")
        self._text(WIDTH - _RIGHT + 16, _TOP, "black: no skew", "lm")

    def line(self, curve: Curve, colour: str) -> None:
        """A curve."""
        inside = curve.rows >= 10.0**-self._decades
        points = zip(curve.rows[inside].tolist(), curve.served[inside].tolist(), strict=True)
        self._stroke([(self._x(x), self._y(y)) for x, y in points], colour, 3.0)

    def entry(self, index: int, name: str, colour: str) -> None:
        """A line of the legend."""
        y = _TOP + 32 * (index + 1)
        x = WIDTH - _RIGHT + 16
        self._stroke([(x, y), (x + 20, y)], colour, 4.0)
        name = printable(name)
        shown = name if len(name) <= 16 else f"{name[:6]}..{name[-8:]}"
        self._text(x + 28, y, shown, "lm")

    def _x(self, share: float) -> float:
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * (1 + float(np.log10(share)) / self._decades)

    def _y(self, share: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _TOP - _BOTTOM) * share

    def _stroke(
        self, points: Sequence[tuple[float, float]], colour: str, width: float = 1.0
    ) -> None:
        scaled = [(x * _SCALE, y * _SCALE) for x, y in points]
        self._draw.line(scaled, fill=colour, width=round(width * _SCALE), joint="curve")

    def _text(self, x: float, y: float, text: str, anchor: str) -> None:
        self._draw.text((x * _SCALE, y * _SCALE), text, _INK, self._font, anchor=anchor)


def _share(share: float) -> str:
    return f"{100 * share:g} %".replace("e-0", "e-")
