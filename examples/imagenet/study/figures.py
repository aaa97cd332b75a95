"""Draw the figures and write the tables of a study that run.py made.

Usage::

    python examples/imagenet/study/figures.py DIR [--to FOLDER]

writes into FOLDER (``DIR/figures``)::

    step-time, step-parts, page-cache, workers, checkpoints   as .pdf and .png
    results.md, results.tex                                   medians of each cell
    runs.csv                                                  each epoch of each run, as measured

Medians over the runs of a cell; lines go from the least to the most. What was not measured is not
drawn: in the tables it is "not measured", in the CSV it is empty.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from measured import Study
from tables import write_tables


def main() -> None:
    """Draw and write all."""
    parser = argparse.ArgumentParser(description="Draw the figures and tables of a study.")
    parser.add_argument("study", type=Path, metavar="DIR", help="what run.py got as --out")
    parser.add_argument("--to", type=Path, help="where they go; none: DIR/figures")
    given = parser.parse_args()
    study = Study.from_folder(given.study)
    folder = given.to or given.study / "figures"
    try:
        from pictures import PICTURES, draw
    except ImportError as error:
        from example import stop

        stop("cannot draw the figures", str(error), "pip install matplotlib")
    drawn = draw(study, folder)
    for path in [path for paths in drawn.values() for path in paths] + write_tables(study, folder):
        print(path)
    for name in PICTURES:
        if name not in drawn:
            print(f"{name}: not drawn, no run measured what it shows")
    for told in filter(None, [study.disturbed(), *study.not_counted()]):
        print(told)


if __name__ == "__main__":
    main()
