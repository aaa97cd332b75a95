"""Take the pictures of the docs from a real run, in Chromium: `make pictures`.

Usage::

    python scripts/pictures.py RUN
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from chromium import chromium  # type: ignore[import-not-found] # beside this script
from playwright.sync_api import Page

from trainobs.analysis.view import RunView
from trainobs.report.html import page as html_of

IMAGES = Path(__file__).parent.parent / "docs" / "images"
SIZE, TALL = {"width": 1280, "height": 900}, {"width": 1280, "height": 1500}
STARTS_WITHIN_S = 60
DRAWN = """() => document.querySelector("line-chart canvas")
  && !document.querySelector("card-view mat-spinner")"""
"""Whether TensorBoard has its curves."""


def main() -> None:
    """Take every picture."""
    view = RunView.open(Path(sys.argv[1]).resolve().relative_to(Path.cwd()))
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        file = Path(folder) / "page.html"
        file.write_text(html_of(view))
        for scheme, name in (("light", "page.png"), ("dark", "page-dark.png")):
            opened = browser.new_page(viewport=TALL, color_scheme=scheme)
            opened.goto(file.as_uri())
            _ready(opened)
            opened.screenshot(path=IMAGES / name)
        with board(view.run.path) as address:
            opened = browser.new_page(viewport=SIZE)
            opened.goto(f"{address}#timeseries")
            opened.wait_for_function(DRAWN, timeout=60_000)
            (IMAGES / "tensorboard.png").write_bytes(_at_rest(opened))


def _ready(opened: Page) -> None:
    opened.wait_for_selector("[data-state=done]", timeout=60_000)


def _at_rest(opened: Page) -> bytes:
    """A picture once nothing has changed for 2 s: a worker draws the curves, and tells nobody."""
    shots: list[bytes] = []
    while len(shots) < 5 or (len(set(shots[-5:])) > 1 and len(shots) < 60):
        shots.append(opened.screenshot())
        opened.wait_for_timeout(500)
    return shots[-1]


@contextmanager
def board(logs: Path) -> Iterator[str]:
    """A TensorBoard on some logs; gives its address."""
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logs), "--port=0"]
    with tempfile.NamedTemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + STARTS_WITHIN_S
            while not (found := re.search(r"http://\S+:\d+/", Path(output.name).read_text())):
                if process.poll() is not None or time.monotonic() > deadline:
                    sys.exit(f"TensorBoard did not start: {Path(output.name).read_text()}")
                time.sleep(0.1)
            yield found[0]
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
