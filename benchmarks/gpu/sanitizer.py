"""Some cases of `tests.gpu.parity` under CUDA's compute-sanitizer, where that is installed."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

FOUND = 9
"""Exit status that compute-sanitizer is told to give for an error of memory."""
CASES, SECONDS = 12, 200


def main() -> int:
    """Run the cases, and write down what the sanitizer said."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    tool = shutil.which("compute-sanitizer") if arguments.device == "cuda" else None
    if tool is None:
        found: dict[str, object] = {"left_out": "no compute-sanitizer, or no GPU"}
        code = 0
    else:
        cases = ["--cases", str(CASES), "--seconds", str(SECONDS)]
        sanitizer = [tool, "--tool", "memcheck", "--error-exitcode", str(FOUND)]
        done = subprocess.run(
            [*sanitizer, sys.executable, "-m", "tests.gpu.parity", *cases],
            capture_output=True,
            text=True,
        )
        said = [line for line in done.stdout.splitlines() if line.startswith("=========")]
        found = {"status": done.returncode, "said": said[-60:]}
        code = done.returncode
    text = json.dumps(found, indent=2)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
