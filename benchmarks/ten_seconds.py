"""Whether a picture of the page tells what is wrong, to somebody who knows neither run nor code.

    python benchmarks/ten_seconds.py KEPT OUT               # OUT/NN.png: their first screens
    python benchmarks/ten_seconds.py KEPT OUT --score FILE  # FILE: lines "NN kind", of a reader

KEPT is what `make faults ARGS="--keep KEPT"` left. Pictures are numbered at random, and have the
same names of runs and hosts. The kinds that a reader chooses from are those of `VerdictKind`, and
`unknown`; `asleep` is what waits inside a phase for something that is not known.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path

from faults.cases import CASES
from faults.judge import FAULT
from faults.runner import kept

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripts.chromium import chromium
from trainobs.analysis.view import RunView
from trainobs.report.html import page
from trainobs.verdict.verdict import VerdictKind

SIZE = {"width": 1280, "height": 900}


def main() -> int:
    """Take the pictures, or score a reader; 1 if fewer than 9 of 10 are right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kept", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--score", type=Path, metavar="FILE")
    options = parser.parse_args()
    names = [name for name in CASES if kept(options.kept / name / FAULT)]
    random.Random(0).shuffle(names)  # the key: the same each time
    if options.score:
        return _score(names, options.score)
    options.out.mkdir(parents=True, exist_ok=True)
    with chromium() as browser, tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            file, run = Path(folder) / "page.html", Path(folder) / f"{number:02}"
            run.symlink_to(kept(options.kept / name / FAULT).run_dir.resolve())  # shows no name
            file.write_text(page(RunView.open(run), 300_000))
            opened = browser.new_page(viewport=SIZE)
            opened.goto(file.as_uri())
            opened.wait_for_selector("[data-state=done]", timeout=60_000)
            opened.screenshot(path=options.out / f"{number:02}.png")
            opened.close()
    return 0


def _score(names: list[str], answers: Path) -> int:
    read = dict(line.split(maxsplit=1) for line in answers.read_text().splitlines() if line.strip())
    came = Counter()
    for number, name in enumerate(names):
        answer = read.get(f"{number:02}", "").strip()
        kinds = [kind and VerdictKind[kind].value for kind, _ in CASES[name].right]
        right = answer in kinds or (answer == "unknown" and None in kinds)
        came[right] += 1
        if not right:
            print(f"{number:02} {name}: read {answer or 'nothing'}, right {kinds}")
    print(f"{came[True]} of {came.total()} right")
    return 0 if came[True] >= 0.9 * came.total() else 1


if __name__ == "__main__":
    sys.exit(main())
