"""The figures of a study. What was not measured is not drawn: a word says so in its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from drawing import (
    GREY,
    OF_FORMAT,
    PAGE_IN,
    STYLE,
    Part,
    bounds,
    formats,
    label_bars,
    line,
    panels,
    places,
    plt,
    stack,
    with_legend,
    word,
)
from example import EPOCH, NEVER
from grid import Cell
from measured import (
    BUSY,
    DISK,
    HIT,
    READ,
    TRAIN_STEP,
    UNKNOWN_WAIT,
    Numbers,
    Spread,
    Study,
)

from trainobs.verdict.metric_names import (
    CHECKPOINT,
    COMPUTE,
    HANDOVER,
    LOADER,
    LOADER_COMPUTE,
    LOADER_CPU_WAIT,
    LOADER_DEVICE,
    LOADER_SLEEP,
    LOGGING,
    OTHER,
    STEP,
    TRANSFER,
    VALIDATION,
)

MS, MB, PERCENT = 1e-6, 1e-6, 100

WAITS: dict[str, Part] = {
    "data: from the disk": (LOADER_DEVICE, "#D55E00", ""),
    "data: loader has no CPU": (LOADER_CPU_WAIT, "#F0E442", "//"),
    "data: loader computes": (LOADER_COMPUTE, "#E69F00", ""),
    "data: loader asleep": (LOADER_SLEEP, "#8C510A", ".."),
    "data: hand-over": (HANDOVER, "#F6C9A0", ""),
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


def draw(study: Study, folder: Path) -> dict[str, list[Path]]:
    """Draw all figures that the study has numbers for, as PDF and PNG; return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = {}
    with plt.rc_context(STYLE):
        for name, picture in PICTURES.items():
            figure = picture(study)
            if figure is None:
                continue
            note = study.disturbed() if name != "page-cache" else None  # bytes are nobody else's
            if note:
                figure.supxlabel(f"Note: {note}.", fontsize=6, color=GREY, x=0.01, ha="left")
            drawn[name] = [folder / f"{name}.{suffix}" for suffix in ("pdf", "png")]
            for path in drawn[name]:
                dated = {"CreationDate": None} if path.suffix == ".pdf" else {}
                figure.savefig(path, metadata=dated)
            plt.close(figure)
    return drawn


def usual(study: Study) -> list[Cell]:
    """Cells that differ in nothing but format, cache and workers: of the commonest checkpoints."""
    saved = [cell.checkpoints for cell in study.drawn()]
    most = EPOCH if EPOCH in saved else max(saved, key=saved.count)
    return [cell for cell in study.asked() if cell.checkpoints == most]


def step_time(study: Study) -> Any:
    """Time of a training step in the first epoch, by workers and format."""
    cells = usual(study)
    figure, axes = panels(cells, 2.5)
    workers = sorted({cell.workers for cell in cells})
    middle = (len(formats(cells)) - 1) / 2
    handles = {}
    for cache, panel in axes.items():
        for number, form in enumerate(formats(cells)):
            at = [place + (number - middle) * 0.08 for place in range(len(workers))]
            own = {c.workers: c for c in cells if (c.cache, c.format) == (cache, form)}
            spreads = {count: study.of_epoch(cell, 0, TRAIN_STEP) for count, cell in own.items()}
            line(panel, at, [scaled(spreads.get(count), MS) for count in workers], form)
            for x, count in zip(at, workers, strict=True):
                if count in own and not spreads[count]:
                    word(panel, x, study.why_none(own[count]), OF_FORMAT[form][0])
        panel.set(title=f"{cache} page cache", xlabel="loader workers")
        panel.set_xticks(range(len(workers)), list(map(str, workers)))
        found, names = panel.get_legend_handles_labels()
        handles |= dict(zip(names, found, strict=True))
    if not handles:
        plt.close(figure)
        return None
    first = next(iter(axes.values()))
    first.set(ylabel="training step, epoch 1 (ms)", ylim=(0, first.get_ylim()[1] * 1.05))
    figure.legend(handles.values(), handles, loc="outside upper left", ncols=3)
    return figure


def scaled(spread: Spread | None, scale: float) -> Spread | None:
    """A spread in another unit."""
    return spread and Spread(*(value * scale for value in spread[:3]), spread.count)


def step_parts(study: Study) -> Any:
    """Where the time of a step goes in the first epoch."""
    cells = usual(study)
    figure, axes = panels(cells, 3.2)
    for cache, panel in axes.items():
        own = [cell for cell in cells if cell.cache == cache]
        for at, cell in zip(places(own), own, strict=True):
            row = study.middle_epoch(cell, 0, STEP)
            waits = WAITS if LOADER_DEVICE in row else WAIT
            stack(panel, at, parts(row, {**waits, **WORK}, MS), study.why_none(cell))
            bounds(panel, at, scaled(study.of_epoch(cell, 0, STEP), MS))
        label_bars(panel, own, [str(cell.workers) for cell in own], "loader workers")
        panel.set(title=f"{cache} page cache")
    next(iter(axes.values())).set_ylabel("step, epoch 1 (ms)")
    return with_legend(figure, {**WAITS, **WORK}, axes.values())


def parts(row: Numbers, names: dict[str, Part], scale: float) -> dict[Part, float]:
    """Parts of one run, which add up; what was not measured is not there."""
    return {part: row[part[0]] * scale for part in names.values() if part[0] in row}


BYTES = ("#56B4E9", "#D55E00")
OF_BYTES: dict[str, Part] = {
    "returned by read calls": (READ, BYTES[0], ""),
    "from the disk": (DISK, BYTES[1], ""),
}


def page_cache(study: Study) -> Any:
    """Bytes that read calls gave and bytes from the disk, in each epoch, by format."""
    cells = usual(study)
    most = max(cell.workers for cell in cells)
    cells = [cell for cell in cells if cell.workers == most]
    figure, axes = panels(cells, 2.6)
    epochs = list(range(study.settings["epochs"]))
    more = [plt.Line2D([], [], color=GREY, ls="", marker="$\\%$", label="found in the page cache")]
    whole = None if study.settings["limit_batches"] else sum(study.settings["bytes"].values()) * MB
    for cache, panel in axes.items():
        bars = [cell for cell in cells if cell.cache == cache for _ in epochs]
        numbers = epochs * (len(bars) // len(epochs))
        for at, cell, epoch in zip(places(bars), bars, numbers, strict=True):
            bars_of_bytes(panel, at, study, cell, epoch)
        label_bars(panel, bars, [str(epoch + 1) for epoch in numbers], "epoch")
        panel.margins(y=0.15)
        panel.set(title=f"{cache} page cache, {most} workers")
        if whole:
            panel.axhline(whole, color=GREY, lw=0.8, ls="--", zorder=0.5)
    if whole:
        name = "all images of the data set"
        more.append(plt.Line2D([], [], color=GREY, lw=0.8, ls="--", label=name))
    next(iter(axes.values())).set_ylabel("data in an epoch (MB)")
    return with_legend(figure, OF_BYTES, axes.values(), *more)


def bars_of_bytes(panel: Any, at: float, study: Study, cell: Cell, epoch: int) -> None:
    """Two bars, and above them which share of the pages was in memory."""
    top = 0.0
    for shift, name, colour in ((-0.2, READ, BYTES[0]), (0.2, DISK, BYTES[1])):
        spread = scaled(study.of_epoch(cell, epoch, name), MB)
        if spread:
            panel.bar(at + shift, spread.median, 0.38, color=colour)
            bounds(panel, at + shift, spread)
            top = max(top, spread.high)
        else:
            is_mapped = name == READ and cell.format == "memmap" and study.count(cell)
            word(panel, at + shift, "mapped" if is_mapped else study.why_none(cell))
    hit = study.of_epoch(cell, epoch, HIT)
    if hit:
        offset = {"textcoords": "offset points", "ha": "center", "fontsize": 6}
        panel.annotate(f"{hit.median:.0%}", (at, top), (0, 2), **offset)


def workers(study: Study) -> Any:
    """What loader workers did, as shares of their time, in the first epoch."""
    cells = [cell for cell in usual(study) if cell.workers]
    if not cells:
        return None
    figure, axes = panels(cells, 2.6)
    for cache, panel in axes.items():
        own = [cell for cell in cells if cell.cache == cache]
        for at, cell in zip(places(own), own, strict=True):
            row = study.middle_epoch(cell, 0, BUSY[0])
            stack(panel, at, parts(row, OF_WORKERS, PERCENT), study.why_none(cell))
        label_bars(panel, own, [str(cell.workers) for cell in own], "loader workers")
        panel.set(title=f"{cache} page cache", ylim=(0, 100))
    next(iter(axes.values())).set_ylabel("time of workers (%)")
    return with_legend(figure, OF_WORKERS, axes.values())


BLOCKING = "blocking_ns"
IN_CALLS: dict[str, Part] = {
    "in write calls": ("write_ns", "#D55E00", ""),
    "in fsync": ("fsync_ns", "#000000", ""),
}
SERIALIZING: Part = (BLOCKING, "#56B4E9", "")
NO_PARTS: Part = (BLOCKING, "#8C510A", "xx")
STEP_PART: Part = (TRAIN_STEP, "#BBBBBB", "")
SAVE_PART: Part = (CHECKPOINT, "#CC79A7", "")
OF_CHECKPOINT: dict[str, Part] = {
    **IN_CALLS,
    "serializing, and the rest": SERIALIZING,
    "a checkpoint, parts not measured": NO_PARTS,
    "training step": STEP_PART,
    "checkpoints": SAVE_PART,
}


def checkpoint_cost(study: Study) -> Any:
    """What a checkpoint blocks the training for, and what that is of a step."""
    cells = compared(study)
    if not any(study.of_run(cell, BLOCKING) for cell in cells):
        return None
    figure, (one, spread_out) = plt.subplots(1, 2, figsize=(PAGE_IN, 2.4), layout="constrained")
    for at, cell in enumerate(cells):
        is_never = cell.checkpoints == NEVER and study.count(cell)
        none = "none saved" if is_never else study.why_none(cell)
        stack(one, at, saving(study.middle_run(cell, BLOCKING)), none)
        bounds(one, at, scaled(study.of_run(cell, BLOCKING), MS))
        last = study.middle_epoch(cell, -1, TRAIN_STEP)
        shares = parts(last, {"": STEP_PART, "checkpoints": SAVE_PART}, MS)
        stack(spread_out, at, shares, study.why_none(cell))
        bounds(spread_out, at, scaled(study.of_epoch(cell, -1, TRAIN_STEP), MS))
    for panel in (one, spread_out):
        panel.set_xticks(range(len(cells)), list(map(named, cells)))
        panel.tick_params(axis="x", length=0)
        panel.set_xlim(-0.7, max(1.7, len(cells) - 0.3))
    cell = cells[0]
    one.set(ylabel="ms a checkpoint", title=f"{cell.format}, {cell.cache}, {cell.workers} workers")
    spread_out.set(ylabel="ms a step, last epoch", title="spread over the steps")
    return with_legend(figure, OF_CHECKPOINT, (one, spread_out))


def compared(study: Study) -> list[Cell]:
    """Cells that differ in nothing but checkpoints: those of which most were measured."""
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in study.asked():
        groups.setdefault((cell.format, cell.cache, cell.workers), []).append(cell)
    return max(groups.values(), key=lambda cells: sum(study.count(cell) > 0 for cell in cells))


def named(cell: Cell) -> str:
    """When a cell saves checkpoints."""
    words = {EPOCH: "each epoch", NEVER: "never"}
    return words.get(cell.checkpoints, f"every {cell.checkpoints} steps")


def saving(row: Numbers) -> dict[Part, float]:
    """The parts of a checkpoint; the rest is what is left of the time that it blocks."""
    if BLOCKING not in row:
        return {}
    in_calls = parts(row, IN_CALLS, MS)
    if len(in_calls) < len(IN_CALLS):
        return {NO_PARTS: row[BLOCKING] * MS}
    return {**in_calls, SERIALIZING: row[BLOCKING] * MS - sum(in_calls.values())}


PICTURES: dict[str, Callable[[Study], Any]] = {
    "step-time": step_time,
    "step-parts": step_parts,
    "page-cache": page_cache,
    "workers": workers,
    "checkpoints": checkpoint_cost,
}
