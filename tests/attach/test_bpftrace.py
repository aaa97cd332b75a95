"""What a script of bpftrace prints is joined with the steps of a run by the lines of the docs."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.attach.target import PATIENCE_S, ROOT, Target, attached
from tests.attach.test_own import PLACED
from tests.kernel.own import Marked, source

pytestmark = [
    pytest.mark.needs_bpf,
    pytest.mark.skipif(shutil.which("bpftrace") is None, reason="no bpftrace"),
]

PAGE = ROOT / "docs" / "own-probes.md"


def recipe() -> tuple[str, str]:
    """The script and the lines of Python of the docs."""
    _, section = PAGE.read_text().split("## Scripts of bpftrace, joined by time\n")
    blocks = [block.partition("\n")[2] for block in section.split("```")[1::2]]
    return blocks[0], blocks[2]


def joined(lines: str, run: Path, output: Path) -> Any:
    """The table of steps that the lines make."""
    text = lines.replace('"runs/syncs"', repr(str(run))).replace('"syncs.json"', repr(str(output)))
    names: dict[str, Any] = {}
    exec(text, names)
    return names["steps"]


@contextmanager
def printing(place: Path) -> Iterator[Path]:
    """Run the script of the docs, on a function of the marked library, to a file."""
    library, output = Marked(place).path, place / "syncs.json"
    script, _ = recipe()
    text = re.sub(r"uprobe:\S+", f"uprobe:{library}:tobs_called", script)
    assert str(library) in text
    (place / "syncs.bt").write_text(text)
    process = subprocess.Popen(
        ["bpftrace", "-f", "json", "-o", str(output), str(place / "syncs.bt")]
    )
    try:
        while not (output.exists() and '"printf"' in output.read_text()):
            assert process.poll() is None
            time.sleep(0.05)
        yield output
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)


def test_each_step_has_what_a_script_counted_in_it(
    start: Callable[..., Target], tmp_path: Path
) -> None:
    Marked(tmp_path)
    pid = start("marked", 600).pid()
    words = ["--probe", str(source(tmp_path, PLACED)), "--for", "3"]
    with printing(tmp_path) as calls:
        done = attached(pid, tmp_path / "run", *words)
        assert done.returncode == 0, done.stderr
        time.sleep(1.5)  # until the script has printed after the last step
    lines = recipe()[1]
    steps = joined(lines, tmp_path / "run", calls)
    known = steps["syncs"].notna()
    assert known.sum() > 100
    assert known.mean() > 0.9
    assert (steps["syncs"] == steps["probe/called"])[known].all()
    early = tmp_path / "early.json"
    printed = calls.read_text().splitlines()
    early.write_text("\n".join(line for line in printed if _ns(line) < _middle(steps)))
    half = joined(lines, tmp_path / "run", early)["syncs"]
    assert half[: len(half) // 3].notna().any()
    assert half[-len(half) // 3 :].isna().all()
    early.write_text('{"type": "lost_events", "data": {"events": 3}}\n' + calls.read_text())
    with pytest.raises(AssertionError, match="bpftrace has lost some"):
        joined(lines, tmp_path / "run", early)


def _ns(line: str) -> int:
    """When it was printed, on a machine that was never suspended; 0 of other lines."""
    told = json.loads(line or "{}")
    return int(told["data"].split()[0]) if told.get("type") == "printf" else 0


def _middle(steps: Any) -> int:
    return int(np.median(steps["start_ns"]))
