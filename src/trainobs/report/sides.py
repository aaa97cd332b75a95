"""The words of `trainobs compare`: which runs are on which side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trainobs.core.errors import TrainobsError
from trainobs.core.text import counted

_BETWEEN = "\0"
"""Stands for `--` between two sides; no path can hold it."""


def runs_last(words: Sequence[str]) -> list[str]:
    """The words of a comparison with its runs last, and what argparse keeps in place of `--`.

    argparse drops `--`, and takes no run after an option that stands behind another run.

    Raises:
        TrainobsError: the file of the page is forgotten; argparse would take the first run for it.
    """
    options: list[str] = []
    runs: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word == "--" or not word.startswith("-"):
            runs.append(_BETWEEN if word == "--" else word)
        else:
            options.append(word)
            if word.startswith("--ht") and "=" not in word:  # --html FILE
                options.append(_file_of_page(next(rest, "")))
    return [*words[:1], *options, *runs]


def _file_of_page(word: str) -> str:
    if word.startswith("-") or not word:
        raise TrainobsError(
            failed="The page cannot be written.",
            found=f"{word or 'nothing'} behind --html",
            do="give the file of the page there: --html FILE",
        )
    return word


def sides_of(runs: Sequence[Path]) -> list[list[Path]]:
    """The runs of A and those of B, of what argparse makes of `runs_last`.

    Raises:
        TrainobsError: there are not two sides.
    """
    sides: list[list[Path]] = [[]]
    for run in runs:
        if run == Path(_BETWEEN):
            sides.append([])
        else:
            sides[-1].append(run)
    if len(sides) == 1 and len(sides[0]) == 2:
        sides = [sides[0][:1], sides[0][1:]]
    if len(sides) != 2 or not all(sides):
        counts = ", then ".join(counted(len(side), "run") for side in sides)
        raise TrainobsError(
            failed="It is not clear which runs to compare with which.",
            found=f"{counts} without `--`" if len(sides) == 1 else f"between each `--`: {counts}",
            do="give two runs, or `--` between those of A and those of B",
        )
    return sides
