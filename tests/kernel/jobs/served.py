"""A user without capabilities that is observed through the service.

usage: served.py '{"socket": PATH, "data": DIR}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.kernel.ground_truth import read_whole
from tests.kernel.privileges import become_nobody
from tests.service.service import Observed, data_of
from trainobs.core.abi import FileClass, Op


def main(socket: str, data: str) -> None:
    become_nobody()
    observed = Observed(Path(socket))
    files = sorted(Path(data).iterdir())
    got = data_of(observed, Path(data), lambda: [read_whole(path) for path in files])
    print(f"process {os.getpid()} read {got.bytes(Op.READ, FileClass.DATA)}")
    observed.stop()


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
