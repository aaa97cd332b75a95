"""All that is to be measured on a GPU, piece by piece; the same call goes on where it ended.

    PYTHONPATH=SITE:src python -m benchmarks.gpu --within 540

The exit status is 0 when all pieces have run and passed, 1 when one did not pass, and 3 when some
are still to be run: then call it again, on the same machine or with its results.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.gpu.plan import pieces, run

TO_DO = 3


def main() -> int:
    """Run, and say what is left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--within", type=float, default=1500, help="seconds for this call")
    parser.add_argument("--results", type=Path, default=Path("build/gpu-results"))
    parser.add_argument("--only", action="append", help="this piece, and others so named")
    parser.add_argument("--again", action="append", default=[], help="run it though it has run")
    parser.add_argument("--list", action="store_true", help="name the pieces, and run none")
    arguments = parser.parse_args()
    plan = pieces(arguments.device)
    if arguments.only:
        plan = [piece for piece in plan if piece.name in arguments.only]
    if arguments.list:
        for piece in plan:
            print(
                f"{piece.name:<16} about {piece.about_s:4.0f} s  python {' '.join(piece.command)}"
            )
        return 0
    left = run(plan, arguments.results, arguments.within, arguments.again)
    found = json.loads((arguments.results / "all.json").read_text())
    for name, state in found.items():
        print(f"{name:<16} {state['came']}")
    if left:
        print(f"to do: {', '.join(left)}; call again")
        return TO_DO
    return 0 if all(state["came"] == "passed" for state in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
