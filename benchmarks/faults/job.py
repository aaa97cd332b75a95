"""One training in a process of its own: `python -m faults.job TRAINING FOLDER RUN_DIR TIMES`.

TRAINING are fields of `Training` as JSON, FOLDER is for its files, and TIMES is the file that it
writes how long it took to.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from faults.groups import join_groups
from faults.training import Training


def main(fields: str, folder: Path, run_dir: Path, times: Path) -> None:
    """Train in the groups that the environment names."""
    join_groups()
    training = Training(**json.loads(fields))
    if training.loop == "Lightning":
        from faults.fit import fit as run  # plain loops do without Lightning
    else:
        from faults.plain import train as run
    ended = run(training, folder, run_dir)
    if os.environ.get("RANK", "0") == "0":
        times.write_text(json.dumps(measured(ended)))


def measured(ended: list[int]) -> dict[str, float]:
    """Milliseconds a step, over all steps and over the middle half of them.

    Args:
        ended: when training began and when each step ended, in ns.
    """
    steps = len(ended) - 1
    first, last = steps // 4, steps - steps // 4
    return {
        "steps": steps,
        "wall_s": (ended[-1] - ended[0]) / 1e9,
        "step_ms": (ended[-1] - ended[0]) / 1e6 / steps,
        "middle_ms": (ended[last] - ended[first]) / 1e6 / max(last - first, 1),
    }


if __name__ == "__main__":
    main(sys.argv[1], *map(Path, sys.argv[2:]))
