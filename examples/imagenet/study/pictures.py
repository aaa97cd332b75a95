"""The figures of a study. What was not measured is not drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")  # draws files, needs no display

import matplotlib.pyplot as plt  # noqa: E402
import numpy as np  # noqa: E402
from example import EPOCH, FORMATS, NEVER  # noqa: E402
from grid import CACHES, Cell  # noqa: E402
from measured import BUSY, DISK, HIT, READ, TRAIN_STEP, UNKNOWN_WAIT, Spread, Study  # noqa: E402

from trainobs.verdict.record import (  # noqa: E402
    CHECKPOINT,
    COMPUTE,
    LOADER,
    LOGGING,
    OTHER,
    SPLIT,
    STEP,
    TRANSFER,
    VALIDATION,
)

MS, MB = 1e-6, 1e-6
COLUMN_IN, PAGE_IN = 3.4, 7.0  # a column of a paper with two, and its width

# Okabe and Ito's colours, which are told apart by the colour-blind too; marks and hatches say the
# same on a printer without colours.
OF_FORMAT = {"files": ("#0072B2", "o"), "tar": ("#E69F00", "s"), "memmap": ("#009E73", "^")}
Part = tuple[str, str, str]
"""Name of a number, its colour and its hatch; by what a legend calls it."""
WAITS: dict[str, Part] = {
    "data: from the disk": (SPLIT[0], "#D55E00", ""),
    "data: loader has no CPU": (SPLIT[1], "#F0E442", "//"),
    "data: loader computes": (SPLIT[2], "#E69F00", ""),
    "data: loader asleep": (SPLIT[3], "#8C510A", ".."),
    "data: hand-over": (SPLIT[4], "#F6C9A0", ""),
}
UNKNOWN = "data: cause not measured"
WAIT: dict[str, Part] = {UNKNOWN: (LOADER, "#CC79A7", "xx")}
WAITS[UNKNOWN] = (UNKNOWN_WAIT, *WAIT[UNKNOWN][1:])
WORK: dict[str, Part] = {
    "forward": (COMPUTE[0], "#56B4E9", ""),
    "backward": (COMPUTE[1], "#0072B2", ""),
    "optimizer": (COMPUTE[2], "#009E73", "\\\\"),
    "transfer": (TRANSFER, "#7F3C8D", ""),
    "checkpoint": (CHECKPOINT, "#000000", ""),
    "validation": (VALIDATION, "#8C8C8C", ""),
    "logging": (LOGGING, "#B2ABD2", ""),
    "everything else": (OTHER, "#D9D9D9", ""),
    "in no phase": ("rest", "#F2F2F2", ".."),
}
OF_WORKERS: dict[str, Part] = {
    "computes": (BUSY[0], "#E69F00", ""),
    "waits for a CPU": (BUSY[3], "#F0E442", "//"),
    "waits for the disk": (BUSY[1], "#D55E00", ""),
    "asleep": (BUSY[2], "#8C510A", ".."),
}
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


def draw(study: Study, folder: Path) -> dict[str, list[Path]]:
    """Draw all figures that the study has numbers for, as PDF and PNG; return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with plt.rc_context(STYLE):
        for name, picture in PICTURES.items():
            figure = picture(study)
            if figure is None:
                continue
            drawn[name] = [folder / f"{name}.{suffix}" for suffix in ("pdf", "png")]
            for path in drawn[name]:
                dated = {"CreationDate": None} if path.suffix == ".pdf" else {}
                figure.savefig(path, metadata=dated)
            plt.close(figure)
    return drawn


def usual(study: Study) -> list[Cell]:
    """Cells that differ in nothing but format, cache and workers: of the commonest checkpoints."""
    cells = study.drawn()
    saved = [cell.checkpoints for cell in cells]
    most = EPOCH if EPOCH in saved else max(saved, key=saved.count)
    return [cell for cell in cells if cell.checkpoints == most]


def panels(cells: Sequence[Cell], height: float) -> tuple[Any, dict[str, Any]]:
    """A panel for each state of the page cache; the axes by that."""
    caches = [cache for cache in CACHES if any(cell.cache == cache for cell in cells)]
    figure, axes = plt.subplots(
        1, len(caches), figsize=(PAGE_IN, height), sharey=True, squeeze=False, layout="constrained"
    )
    return figure, dict(zip(caches, axes[0], strict=True))


def step_time(study: Study) -> Any:
    """Time of a training step in the first epoch, by workers and format."""
    cells = usual(study)
    figure, axes = panels(cells, 2.5)
    workers = sorted({cell.workers for cell in cells})
    middle = (len(formats(cells)) - 1) / 2
    for cache, panel in axes.items():
        for number, form in enumerate(formats(cells)):
            own = [cell for cell in cells if (cell.cache, cell.format) == (cache, form)]
            spreads = {cell.workers: study.of_epoch(cell, 0, TRAIN_STEP) for cell in own}
            points = [(w, spread) for w, spread in spreads.items() if spread]
            at = [workers.index(w) + (number - middle) * 0.08 for w, _ in points]
            line(panel, at, [spread for _, spread in points], form)
        panel.set(title=f"{cache} page cache", xlabel="loader workers")
        panel.set_xticks(range(len(workers)), list(map(str, workers)))
    first = next(iter(axes.values()))
    first.set(ylabel="training step, epoch 1 (ms)", ylim=(0, first.get_ylim()[1] * 1.05))
    figure.legend(*first.get_legend_handles_labels(), loc="outside upper left", ncols=3)
    return figure if any(panel.lines for panel in axes.values()) else None


def line(panel: Any, at: Sequence[float], spreads: Sequence[Spread], form: str) -> None:
    """Medians, with lines from the least to the most."""
    colour, mark = OF_FORMAT[form]
    if not spreads:
        return
    middle = np.array([one.median for one in spreads]) * MS
    error = np.array([reach(one, MS) for one in spreads]).T
    panel.errorbar(
        at, middle, error, color=colour, marker=mark, ms=4, lw=1.2, capsize=2, label=form
    )


def reach(spread: Spread, scale: float) -> tuple[float, float]:
    """How far the least and the most lie from the median."""
    return (spread.median - spread.low) * scale, (spread.high - spread.median) * scale


def bounds(panel: Any, at: float, spread: Spread | None, scale: float) -> None:
    """A line from the least to the most, on a bar."""
    if spread and spread.low < spread.high:
        error = np.array([reach(spread, scale)]).T
        panel.errorbar(at, spread.median * scale, error, color="black", lw=0.8, capsize=1.5)


def formats(cells: Sequence[Cell]) -> list[str]:
    """Formats of cells, as they are listed."""
    return [form for form in FORMATS if any(cell.format == form for cell in cells)]


def step_parts(study: Study) -> Any:
    """Where the time of a step goes in the first epoch."""
    cells = usual(study)
    figure, axes = panels(cells, 3.2)
    for cache, panel in axes.items():
        own = [cell for cell in cells if cell.cache == cache]
        for at, cell in zip(places(own), own, strict=True):
            waits = WAITS if study.of_epoch(cell, 0, SPLIT[0]) else WAIT
            stack(panel, at, parts(study, cell, {**waits, **WORK}), MS)
            bounds(panel, at, study.of_epoch(cell, 0, STEP), MS)
        label_bars(panel, own, [str(cell.workers) for cell in own], "loader workers")
        panel.set(title=f"{cache} page cache")
    next(iter(axes.values())).set_ylabel("step, epoch 1 (ms)")
    return with_legend(figure, {**WAITS, **WORK}, axes.values())


def parts(study: Study, cell: Cell, names: dict[str, Part]) -> dict[Part, float]:
    """Medians of parts in the first epoch; what was not measured is not there."""
    found = {}
    for part in names.values():
        spread = study.of_epoch(cell, 0, part[0])
        if spread:
            found[part] = spread.median
    return found


def stack(panel: Any, at: float, values: dict[Part, float], scale: float) -> None:
    """One bar, of parts from below."""
    bottom = 0.0
    for (_, colour, hatch), value in values.items():
        edge = {"edgecolor": "#555555", "hatch": hatch} if hatch else {}
        if value:
            panel.bar(at, value * scale, 0.8, bottom * scale, color=colour, lw=0, **edge)
        bottom += value


def places(cells: Sequence[Cell]) -> list[float]:
    """Where bars stand: those of a format side by side, then a gap."""
    return [at + 0.7 * formats(cells).index(cell.format) for at, cell in enumerate(cells)]


def label_bars(panel: Any, cells: Sequence[Cell], numbers: Sequence[str], what: str) -> None:
    """Below each bar its number, and below those of a format its name."""
    at = places(cells)
    panel.set_xticks(at, numbers)
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


def with_legend(figure: Any, names: dict[str, Part], axes: Any, dashed: str = "") -> Any:
    """The figure with a legend of what it shows; None where it shows nothing."""
    bars = [bar for panel in axes for bar in panel.patches]
    shown = {matplotlib.colors.to_hex(bar.get_facecolor()).upper() for bar in bars}
    if not shown:
        return None
    handles = [
        matplotlib.patches.Patch(
            facecolor=colour,
            hatch=hatch,
            edgecolor="#555555" if hatch else colour,
            label=name,
            lw=0,
        )
        for name, (_, colour, hatch) in names.items()
        if colour in shown
    ]
    if dashed:
        handles.append(plt.Line2D([], [], color=WHOLE, lw=0.8, ls="--", label=dashed))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=4, handlelength=1.2, columnspacing=1.2
    )
    return figure


def page_cache(study: Study) -> Any:
    """Bytes that read calls gave and bytes from the disk, in each epoch, by format."""
    cells = usual(study)
    most = max(cell.workers for cell in cells)
    cells = [cell for cell in cells if cell.workers == most]
    figure, axes = panels(cells, 2.6)
    epochs = list(range(study.settings["epochs"]))
    for cache, panel in axes.items():
        own = [cell for cell in cells if cell.cache == cache]
        bars = [cell for cell in own for _ in epochs]
        for at, cell, epoch in zip(places(bars), bars, epochs * len(own), strict=True):
            spreads = [study.of_epoch(cell, epoch, name) for name in (READ, DISK, HIT)]
            bars_of_bytes(panel, at, spreads)
        label_bars(panel, bars, [str(epoch + 1) for epoch in epochs] * len(own), "epoch")
        panel.margins(y=0.15)
        panel.set(title=f"{cache} page cache, {most} workers")
        if study.settings["limit_batches"] is None:
            whole = sum(study.settings["bytes"].values()) * MB
            panel.axhline(whole, color=WHOLE, lw=0.8, ls="--", zorder=0.5)
    next(iter(axes.values())).set_ylabel("data in an epoch (MB)")
    names = {"returned by read calls": ("", BYTES[0], ""), "from the disk": ("", BYTES[1], "")}
    dashed = "all images of the data set" if study.settings["limit_batches"] is None else ""
    return with_legend(figure, names, axes.values(), dashed)


BYTES = ("#56B4E9", "#D55E00")
WHOLE = "#555555"


def bars_of_bytes(panel: Any, at: float, spreads: Sequence[Spread | None]) -> None:
    """Two bars, and above them which share of the pages was in memory."""
    read, disk, hit = spreads
    for shift, spread, colour in ((-0.2, read, BYTES[0]), (0.2, disk, BYTES[1])):
        if spread:
            panel.bar(at + shift, spread.median * MB, 0.38, color=colour)
            bounds(panel, at + shift, spread, MB)
    top = max([one.high for one in (read, disk) if one], default=0.0) * MB
    text = f"{hit.median:.0%} hit" if hit else "mapped" if disk and not read else ""
    panel.annotate(text, (at, top), (0, 2), textcoords="offset points", ha="center", fontsize=7)


def workers(study: Study) -> Any:
    """What loader workers did, as shares of their time, in the first epoch."""
    cells = [cell for cell in usual(study) if cell.workers]
    if not cells:
        return None
    figure, axes = panels(cells, 2.6)
    for cache, panel in axes.items():
        own = [cell for cell in cells if cell.cache == cache]
        for at, cell in zip(places(own), own, strict=True):
            stack(panel, at, parts(study, cell, OF_WORKERS), 100)
        label_bars(panel, own, [str(cell.workers) for cell in own], "loader workers")
        panel.set(title=f"{cache} page cache", ylim=(0, 100))
    next(iter(axes.values())).set_ylabel("of the time of all workers (%)")
    return with_legend(figure, OF_WORKERS, axes.values())


OF_CHECKPOINT: dict[str, Part] = {
    "in write calls": ("write_ns", "#D55E00", ""),
    "in fsync": ("fsync_ns", "#000000", ""),
    "serializing, and the rest": ("blocking_ns", "#56B4E9", ""),
}


def checkpoint_cost(study: Study) -> Any:
    """What a checkpoint blocks the training for, and what that is of a step."""
    cells = compared(study)
    if not any(study.of_run(cell, "blocking_ns") for cell in cells):
        return None
    figure, (one, spread_out) = plt.subplots(1, 2, figsize=(PAGE_IN, 2.4), layout="constrained")
    names = [named(cell) for cell in cells]
    for at, cell in enumerate(cells):
        stack(one, at, saving(study, cell), MS)
        bounds(one, at, study.of_run(cell, "blocking_ns"), MS)
        own = {part: study.of_epoch(cell, -1, part[0]) for part in (STEP_PART, SAVE_PART)}
        stack(spread_out, at, {part: found.median for part, found in own.items() if found}, MS)
    for panel in (one, spread_out):
        panel.set_xticks(range(len(cells)), names)
        panel.tick_params(axis="x", length=0)
        panel.set_xlim(-0.7, max(1.7, len(cells) - 0.3))
    cell = cells[0]
    one.set(ylabel="ms a checkpoint", title=f"{cell.format}, {cell.cache}, {cell.workers} workers")
    spread_out.set(ylabel="ms a step, last epoch", title="spread over the steps")
    legend = {**OF_CHECKPOINT, "training step": STEP_PART, "checkpoints": SAVE_PART}
    return with_legend(figure, legend, (one, spread_out))


STEP_PART: Part = (TRAIN_STEP, "#BBBBBB", "")
SAVE_PART: Part = (CHECKPOINT, "#CC79A7", "")


def compared(study: Study) -> list[Cell]:
    """Cells that differ in nothing but checkpoints: those of which there are most."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in study.drawn():
        groups.setdefault((cell.format, cell.cache, cell.workers), []).append(cell)
    return max(groups.values(), key=len)


def named(cell: Cell) -> str:
    """When a cell saves checkpoints."""
    words = {EPOCH: "each epoch", NEVER: "never"}
    return words.get(cell.checkpoints, f"every {cell.checkpoints} steps")


def saving(study: Study, cell: Cell) -> dict[Part, float]:
    """The parts of a checkpoint; the rest is what is left of the time that it blocks."""
    found = {part: study.of_run(cell, part[0]) for part in OF_CHECKPOINT.values()}
    values = {part: spread.median for part, spread in found.items() if spread}
    whole = OF_CHECKPOINT["serializing, and the rest"]
    if whole in values:
        values[whole] -= sum(value for part, value in values.items() if part != whole)
    return values


PICTURES: dict[str, Callable[[Study], Any]] = {
    "step-time": step_time,
    "step-parts": step_parts,
    "page-cache": page_cache,
    "workers": workers,
    "checkpoints": checkpoint_cost,
}
