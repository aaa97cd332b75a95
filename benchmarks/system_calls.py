"""System calls a step, counted one by one with strace: `python benchmarks/system_calls.py MODE`.

A light plain loop of so many steps, bare or observed, between two calls that nobody else makes.
Counts of the training thread do not depend on what else the machine does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

STEPS = 2000
MARK = 0x7777
"""A process group that nobody has."""

MODES = ("bare", "observed", "off")
LINE = re.compile(r"(\d+) +(\w+)\(")


def measure(*, quick: bool) -> dict[str, Any]:
    """By mode, calls of the training thread a step, and those of other threads altogether."""
    if shutil.which("strace") is None:
        return {"not_counted": "no strace"}
    return {mode: _counted(mode, 200 if quick else STEPS) for mode in MODES}


def _counted(mode: str, steps: int) -> dict[str, Any]:
    with tempfile.NamedTemporaryFile("r") as trace:
        command = ["strace", "-f", "-qq", "-e", "signal=none", "-o", trace.name]
        command += [sys.executable, "-W", "ignore", __file__, mode, str(steps)]
        subprocess.run(command, check=True)
        lines = trace.read().splitlines()
    # Without the closing bracket: where another thread comes between, strace writes it later.
    marks = [i for i, line in enumerate(lines) if f"getpgid({MARK}" in line]
    main = lines[marks[0]].split()[0]
    between = map(LINE.match, lines[marks[0] + 1 : marks[1]])
    calls = [found.groups() for found in between if found]
    ours = Counter(name for tid, name in calls if tid == main)
    return {
        "training_thread_per_step": round(sum(ours.values()) / steps, 3),
        "by_name": dict(ours.most_common()),
        "other_threads": len(calls) - sum(ours.values()),
    }


def main() -> None:
    """The loop."""
    import torch
    from light import BATCH, FEATURES, model

    from trainobs import observe

    torch.set_num_threads(1)
    mode, steps = sys.argv[1], int(sys.argv[2])
    batches = torch.utils.data.DataLoader(torch.rand(BATCH * (steps + 100), FEATURES), BATCH)
    trained = model()
    optimizer = torch.optim.SGD(trained.parameters(), 1e-3)
    with tempfile.TemporaryDirectory() as folder:
        probes = "off" if mode == "off" else "auto"
        run = Path(folder, "run")
        bare = mode == "bare"
        with nullcontext() if bare else observe(run_dir=run, probes=probes, quiet=True) as obs:
            for number, batch in enumerate(obs.loader(batches) if obs else batches):
                if number in (100, 100 + steps - 1):
                    _mark()
                with obs.step() if obs else nullcontext():
                    optimizer.zero_grad()
                    trained(batch).square().mean().backward()
                    optimizer.step()


def _mark() -> None:
    with suppress(ProcessLookupError):
        os.getpgid(MARK)


if __name__ == "__main__":
    main()
