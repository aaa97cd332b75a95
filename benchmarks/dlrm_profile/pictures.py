"""The pictures of docs/dlrm-profile.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws files, needs no display

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402

# Okabe and Ito's colours, which are told apart by the colour-blind too.
COLOURS = {
    "lookups": "#D55E00",
    "communication": "#CC79A7",
    "input": "#E69F00",
    "interaction": "#009E73",
    "bottom MLP": "#56B4E9",
    "top MLP": "#0072B2",
    "optimizer": "#8C8C8C",
    "other": "#C8C8C8",
}
DARK = ("top MLP", "lookups")
STYLE = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 10,
    "savefig.dpi": 130,
    "svg.hashsalt": "trainobs",
}
LARGE_TABLES = 5


def draw(results: dict[str, Any], folder: Path) -> list[Path]:
    """Draw all pictures; return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    with plt.rc_context(STYLE):
        for name, picture in (("roofs", roofs), ("parts", parts), ("skew", skew)):
            figure = picture(results)
            drawn.append(folder / f"dlrm-{name}.png")
            figure.savefig(drawn[-1], bbox_inches="tight")
            plt.close(figure)
    return drawn


def roofs(results: dict[str, Any]) -> Any:
    """Operations a second over operations a byte, under what the machine can do."""
    limits, step = results["limits"], results["steps"][0]
    figure, axes = plt.subplots(figsize=(6.4, 4))
    intensity = np.geomspace(0.02, 300, 200)
    peak = limits["gflop_per_s"]
    for name, rate, line in (
        ("a copy", limits["copied_gb_per_s"], "-"),
        ("rows in random order", limits["random_rows_gb_per_s"], ":"),
    ):
        roof = np.minimum(peak, rate * intensity)
        axes.plot(intensity, roof, line, color="black", lw=1.2, label=f"{name}: {rate:.1f} GB/s")
    axes.annotate(
        f"{peak:.0f} GFLOP/s", (intensity[-1], peak), (0, 4), textcoords="offset points", ha="right"
    )
    for part, work in results["work"].items():
        x = work["flops"] / work["moved_bytes"]
        y = work["flops"] / step["parts_ms"][part] / 1e6
        axes.plot(x, y, "o", ms=9, color=COLOURS[part])
        left = part == "bottom MLP"  # the top MLP is on its right
        axes.annotate(
            part,
            (x, y),
            (-7, -14) if left else (7, -14),
            textcoords="offset points",
            ha="right" if left else "left",
            color=COLOURS[part],
        )
    axes.legend(frameon=False, loc="lower right")
    axes.set(xscale="log", yscale="log", xlabel="operations per byte", ylabel="GFLOP/s reached")
    axes.set_title("Compute and memory, one rank, forward and backward", loc="left", fontsize=10)
    return figure


def parts(results: dict[str, Any]) -> Any:
    """The time of a step by part, for one and two ranks."""
    steps = results["steps"]
    figure, axes = plt.subplots(figsize=(7.2, 0.9 + 0.6 * len(steps)))
    names = [f"{step['world_size']} rank{'s' * (step['world_size'] > 1)}" for step in steps]
    left = np.zeros(len(steps))
    for part, colour in COLOURS.items():
        widths = np.array([step["parts_ms"].get(part, 0.0) for step in steps])
        axes.barh(names, widths, left=left, color=colour, label=part, height=0.62)
        for at, width in enumerate(widths):
            if width > 0.06 * sum(steps[at]["parts_ms"].values()):
                text = "white" if part in DARK else "black"
                middle = left[at] + width / 2
                axes.text(middle, at, f"{width:.0f}", ha="center", va="center", color=text)
        left += widths
    axes.invert_yaxis()
    axes.set_xlabel("ms of a step")
    axes.legend(ncols=4, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.35))
    axes.set_title(
        f"A step of {results['batch_size']:,} inputs a rank, tables on CPUs",
        loc="left",
        fontsize=10,
    )
    return figure


def skew(results: dict[str, Any]) -> Any:
    """What share of the lookups the hottest rows of each table serve."""
    figure, axes = plt.subplots(figsize=(6.4, 4.2))
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.85, LARGE_TABLES))
    for at, table in reversed(list(enumerate(results["skew"]["tables"]))):
        rows, served = table["curve"]
        if at < LARGE_TABLES:
            label = f"{table['table']}: {table['row_count']:,} rows"
            axes.plot(rows, served, color=colours[at], lw=1.8, label=label)
        else:
            axes.plot(rows, served, color="#BBBBBB", lw=0.8, zorder=1)
    handles, labels = axes.get_legend_handles_labels()
    grey = plt.Line2D([], [], color="#BBBBBB", lw=0.8)
    axes.legend(
        [*reversed(handles), grey], [*reversed(labels), "the other 21 tables"], frameon=False
    )
    axes.set(xscale="log", ylim=(0, 1.02), xlabel="share of the table's rows, the hottest first")
    axes.set_ylabel("share of its lookups")
    axes.set_title("How skewed the lookups of each table are", loc="left", fontsize=10)
    return figure
