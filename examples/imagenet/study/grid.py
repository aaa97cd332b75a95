"""The grid of a study: its cells, the order of their runs, and what is kept of each run."""

from __future__ import annotations

import itertools
import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from example import EPOCH, FORMATS, check_checkpoints, stop

COLD, WARM = "cold", "warm"
CACHES = (COLD, WARM)
STUDY, RESULT, OUTPUT, RUN_LOG = "study.json", "result.json", "output.txt", "run"


@dataclass(frozen=True, order=True)
class Cell:
    """What is varied.

    Attributes:
        format: one of ``FORMATS``.
        cache: what the page cache holds of the data set when training begins; one of ``CACHES``.
        workers: of the loader.
        checkpoints: when one is saved, as train.py takes it.
    """

    format: str
    cache: str
    workers: int
    checkpoints: str = EPOCH

    def __str__(self) -> str:
        when = {"epoch": "each epoch", "never": "never"}
        saved = when.get(self.checkpoints, f"every {self.checkpoints} steps")
        return f"{self.format}, {self.cache}, {self.workers} workers, checkpoint {saved}"

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.format}-{self.cache}-{self.workers}w-{self.checkpoints}"


@dataclass(frozen=True)
class Run:
    """One of the runs of a cell.

    Attributes:
        cell: its cell.
        repeat: its number, from 1.
        folder: where it is kept.
    """

    cell: Cell
    repeat: int
    folder: Path

    def result(self) -> dict[str, Any] | None:
        """What is kept of it; None if it has not ended."""
        try:
            return dict(json.loads((self.folder / RESULT).read_text()))
        except FileNotFoundError:
            return None

    @property
    def is_done(self) -> bool:
        """Whether it ended well."""
        result = self.result()
        return result is not None and result["outcome"] == "ok"


@dataclass(frozen=True)
class Grid:
    """Cells, and how often each is run."""

    cells: tuple[Cell, ...]
    repeats: int

    @classmethod
    def product(
        cls,
        formats: Sequence[str],
        caches: Sequence[str],
        workers: Sequence[str],
        checkpoints: Sequence[str],
        repeats: int,
    ) -> Grid:
        """All combinations of values as the command line gives them."""
        axes = {"formats": formats, "cache": caches, "workers": workers, "checkpoints": checkpoints}
        for name, values in axes.items():
            if not values:
                refuse(f"--{name} without a value", "give one or more, with commas between")
        for name, values, known in (("formats", formats, FORMATS), ("cache", caches, CACHES)):
            for value in values:
                if value not in known:
                    refuse(f"--{name} {value}", f"choose of {', '.join(known)}")
        for value in workers:
            if not value.isdecimal():
                refuse(f"--workers {value}", "give numbers, as in --workers 0,1,2,4")
        for value in checkpoints:
            check_checkpoints(value)
        if repeats < 1:
            refuse(f"--repeats {repeats}", "give 1 or more; three show a spread")
        numbers = [int(value) for value in workers]
        cells = itertools.product(formats, caches, numbers, checkpoints)
        return cls(tuple(dict.fromkeys(itertools.starmap(Cell, cells))), repeats)

    def runs(self, out: Path) -> Iterator[Run]:
        """All runs, in an order in which a machine that changes meanwhile is nobody's advantage.

        Each round has every cell once, in an order of its own, which is the same each time.
        """
        for repeat in range(1, self.repeats + 1):
            cells = list(self.cells)
            random.Random(repeat).shuffle(cells)
            for cell in cells:
                yield Run(cell, repeat, out / "runs" / cell.name / str(repeat))


def refuse(found: str, do: str) -> None:
    """End the program: the grid cannot be as it was asked for."""
    stop("cannot run the grid", found, do)


def claim(out: Path, settings: dict[str, Any], grid: Grid) -> None:
    """Begin a study in a folder, or go on with the one that is there, with more cells perhaps.

    Args:
        out: the folder, which is there.
        settings: what is the same in all cells.
        grid: its cells go into the file of the study, so that nobody takes what is missing for
            what was never asked for.
    """
    known = read_study(out)
    if known is None:
        if any(out.iterdir()):
            refuse(f"files in {out} that belong to no study", "name another --out")
        known = {"settings": settings, "cells": []}
    for name, value in settings.items():
        if known["settings"].get(name) != value:
            found = f"{out} was made with {name} {known['settings'].get(name)}, now it is {value}"
            refuse(found, "name another --out, or ask for the same")
    repeats = asked_for(known)
    for cell in grid.cells:
        repeats[cell] = max(repeats.get(cell, 0), grid.repeats)
    cells = [{**asdict(cell), "repeats": count} for cell, count in repeats.items()]
    write_json(out / STUDY, {"settings": settings, "cells": cells})


def asked_for(study: dict[str, Any]) -> dict[Cell, int]:
    """How often each cell of a study is to be run; a study as ``read_study`` returns it."""
    found = {}
    for kept in study["cells"]:
        values = dict(kept)
        repeats = values.pop("repeats")
        found[Cell(**values)] = repeats
    return found


def read_study(out: Path) -> dict[str, Any] | None:
    """Return what is kept of a study; None where there is none."""
    try:
        return dict(json.loads((out / STUDY).read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        stop(f"cannot read the study in {out}", f"{STUDY}: {error}", "name another folder")


def write_json(path: Path, value: object) -> None:
    """Write a file, which appears when it is whole."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(value, indent=2) + "\n")
    os.replace(part, path)
