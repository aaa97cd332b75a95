"""The page of a long run: what it takes to make the file, to open it, and to show it in the tab.

    python benchmarks/long_page.py DIR [STEPS]   # writes DIR/run and DIR/page.html

Steps are those of `tests.samples.busy_run`, a million of them unless STEPS says otherwise.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from scripts.chromium import chromium
from tests.samples import busy_run, info
from trainobs.runlog.writer import SEAL_STEPS, RunLogSink

CLOCKS = ("begin_ns", "end_ns", "fetch_begin_ns", "fetch_end_ns")
LOOKS = """
import json, sys, time
from pathlib import Path
from trainobs.report.page_data import page_json
run, found = Path(sys.argv[1]), {}
def look(name, *paths):
    begin = time.process_time()
    answers = [page_json(run, {"path": path}) for path in paths]
    found[name] = round(time.process_time() - begin, 1)
    return answers
every = json.loads(look("head", "head")[0])["levels"][-1]
look("steps", f"steps/parts/{every}/0")
(run / "run.json").touch()
look("again", "head", f"steps/parts/{every}/0")
print(json.dumps(found))
"""


def main() -> None:
    """Write the run if it is not there, and print what was measured."""
    folder = Path(sys.argv[1])
    run, file = folder / "run", folder / "page.html"
    if not run.exists():
        write(run, int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000)
    time.sleep(1)  # until its files are older than what `runlog.remembered` trusts
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    command = [sys.executable, "-m", "trainobs", "report", str(run), "--html", str(file)]
    subprocess.run(command, check=True)
    html_s = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    looks = subprocess.run([sys.executable, "-c", LOOKS, str(run)], check=True, capture_output=True)
    found = {
        "load": os.getloadavg()[0],
        "html_s": round(html_s, 1),
        "html_cpu_s": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "html_peak_mb": after.ru_maxrss // 1000,
        "html_mb": round(file.stat().st_size / 1e6, 2),
        "open_s": opened_s(file),
        "tab_cpu_s": json.loads(looks.stdout),
    }
    print(json.dumps(found, indent=2))


def write(run_dir: Path, steps: int) -> None:
    """A run as a training writes it; each part of it has the same steps."""
    part = busy_run(SEAL_STEPS)
    lasts = int(part.columns["step/duration_ns"].sum())
    sink = RunLogSink(run_dir)
    sink.begin(info(settings={"loader_workers": 4}))
    for first in range(0, steps, SEAL_STEPS):
        after = first // SEAL_STEPS * lasts
        batches = part.batches.copy()
        for name in ("step", "for_step"):
            batches[name] += first
        for name in CLOCKS:
            batches[name] += after
        step, start_ns = part.step + first, part.start_ns + after
        sink.write(replace(part, step=step, start_ns=start_ns, batches=batches))
    sink.end({"outcome": "ok"})


def opened_s(file: Path) -> float:
    """Seconds until Chromium has drawn the page."""
    with chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        begin = time.monotonic()
        page.goto(file.resolve().as_uri())
        page.wait_for_selector("[data-state=done]", timeout=600_000)
        return round(time.monotonic() - begin, 1)


if __name__ == "__main__":
    main()
