"""Tables that TorchRec shards: every type that runs on a CPU, in one rank and two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_two_ranks_count_what_they_ask_for_however_tables_are_sharded(tmp_path):
    from tests.embeddings.ranks import CASES

    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.embeddings.ranks", str(rank), str(tmp_path / "store")],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        told = [rank.communicate()[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for rank, text in zip(ranks, told, strict=True):
        assert rank.returncode == 0, text[-4000:]
        done = [line for line in text.splitlines() if line.startswith("ok ")]
        assert len([line for line in done if "both" in line]) == len(CASES) * 2
