"""Lines, bars, words and legends, of which the figures of a study are made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws files, needs no display

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from example import FORMATS  # noqa: E402
from grid import CACHES, Cell  # noqa: E402
from measured import Spread  # noqa: E402

PAGE_IN = 7.0  # width of a page
GREY = "#555555"
# Okabe and Ito's colours, which are told apart by the colour-blind too; marks and hatches say the
# same on a printer without colours.
OF_FORMAT = {"files": ("#0072B2", "o"), "tar": ("#E69F00", "s"), "memmap": ("#009E73", "^")}
STYLE = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 9,
    "font.size": 8,
    "grid.color": "#E5E5E5",
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # letters stay letters
    "savefig.bbox": "tight",
    "savefig.dpi": 200,
}

Part = tuple[str, str, str]
"""Name of a number, its colour and its hatch; by what a legend calls it."""


def panels(cells: Sequence[Cell], height: float) -> tuple[Any, dict[str, Any]]:
    """A panel for each state of the page cache; the axes by that."""
    caches = [cache for cache in CACHES if any(cell.cache == cache for cell in cells)]
    figure, axes = plt.subplots(
        1, len(caches), figsize=(PAGE_IN, height), sharey=True, squeeze=False, layout="constrained"
    )
    return figure, dict(zip(caches, axes[0], strict=True))


def formats(cells: Sequence[Cell]) -> list[str]:
    """Formats of cells, as they are listed."""
    return [form for form in FORMATS if any(cell.format == form for cell in cells)]


def line(panel: Any, at: Sequence[float], spreads: Sequence[Spread | None], form: str) -> None:
    """Medians, with lines from the least to the most, and a gap where nothing was measured."""
    colour, mark = OF_FORMAT[form]
    if not any(spreads):
        return
    middle = [one.median if one else np.nan for one in spreads]
    # NaN, or a single run gets the caps of a line that has no length.
    error = [reach(one) if one and one.low < one.high else (np.nan, np.nan) for one in spreads]
    panel.errorbar(
        at,
        middle,
        np.array(error).T,
        color=colour,
        marker=mark,
        ms=4,
        lw=1.2,
        capsize=2,
        label=form,
    )


def reach(spread: Spread) -> tuple[float, float]:
    """How far the least and the most lie from the median."""
    return spread.median - spread.low, spread.high - spread.median


def bounds(panel: Any, at: float, spread: Spread | None) -> None:
    """A line from the least to the most, on a bar."""
    if spread and spread.low < spread.high:
        error = np.array([reach(spread)]).T
        panel.errorbar(at, spread.median, error, fmt="none", ecolor="black", lw=0.8, capsize=1.5)


def word(panel: Any, at: float, text: str, colour: str = GREY) -> None:
    """A word in the place of a bar or point that is not there."""
    panel.annotate(
        text,
        (at, 0),
        (0, 3),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        rotation=90,
        ha="center",
        va="bottom",
        fontsize=6,
        color=colour,
    )


def stack(panel: Any, at: float, values: dict[Part, float], instead: str) -> None:
    """One bar, of parts from below; a word instead where there are none."""
    if not values:
        word(panel, at, instead)
    bottom = 0.0
    for (_, colour, hatch), value in values.items():
        edge = {"edgecolor": GREY, "hatch": hatch} if hatch else {}
        if value:
            panel.bar(at, value, 0.8, bottom, color=colour, lw=0, **edge)
        bottom += value


def places(cells: Sequence[Cell]) -> list[float]:
    """Where bars stand: those of a format side by side, then a gap."""
    return [at + 0.7 * formats(cells).index(cell.format) for at, cell in enumerate(cells)]


def label_bars(panel: Any, cells: Sequence[Cell], numbers: Sequence[str], what: str) -> None:
    """Below each bar its number, and below those of a format its name."""
    at = places(cells)
    panel.set_xticks(at, numbers)
    panel.set_xlim(at[0] - 0.7, at[-1] + 0.7)
    panel.tick_params(axis="x", length=0)
    for form in formats(cells):
        own = [x for x, cell in zip(at, cells, strict=True) if cell.format == form]
        panel.annotate(
            form,
            (sum(own) / len(own), 0),
            (0, -16),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            ha="center",
            va="top",
        )
    panel.set_xlabel(f"{what}, by format", labelpad=16)


def with_legend(figure: Any, names: dict[str, Part], axes: Any, *more: Any) -> Any:
    """The figure with a legend of what it shows, and of `more`; None where it shows nothing."""
    bars = [bar for panel in axes for bar in panel.patches]
    shown = {matplotlib.colors.to_hex(bar.get_facecolor()).upper() for bar in bars}
    if not shown:
        plt.close(figure)
        return None
    handles = [
        matplotlib.patches.Patch(
            facecolor=colour, hatch=hatch, edgecolor=GREY if hatch else colour, label=name, lw=0
        )
        for name, (_, colour, hatch) in names.items()
        if colour in shown
    ]
    figure.legend(
        handles=[*handles, *more],
        loc="outside upper left",
        ncols=4,
        handlelength=1.2,
        columnspacing=1.2,
    )
    return figure
