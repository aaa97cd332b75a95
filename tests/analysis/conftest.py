"""A run log whose every number can be worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.samples import NO_LATENCY, batch, cells, info
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.records import SETUP
from trainobs.runlog.writer import RunLogSink

READ = (Op.READ, FileClass.DATA, Role.WORKER)
CACHE_READ = (Op.CACHE_READ, FileClass.DATA, Role.WORKER)
CACHE_MISS = (Op.CACHE_MISS, FileClass.DATA, Role.WORKER)


@pytest.fixture
def write_run(tmp_path) -> Callable[..., Path]:
    """Writes one rank of a run with four steps of 1, 2, 3 and 4 ms, and something before them."""

    def write(name: str = "run", rank: int = 0, summary=None, wall_ns: int = 1, **facts) -> Path:
        path = tmp_path / name
        facts = info(rank=rank, **{"host": {"hostname": "node7", "kernel": "6.18"}, **facts})
        facts.clock = {"monotonic_ns": 0, "wall_ns": wall_ns}
        sink = RunLogSink(path, rank)
        sink.begin(facts)
        sink.write(_steps())
        buckets = NO_LATENCY.copy()
        buckets[Op.BLOCK_READ, FileClass.DATA, Role.WORKER, 17] = 3
        buckets[Op.BLOCK_READ, FileClass.OTHER, Role.KERNEL, 19] = 1
        sink.latency(buckets)
        sink.flush() if summary is None else sink.end(summary)
        return path

    return write


def _steps():
    rows = cells(
        5,
        (0, *CACHE_READ, {"count": 1, "bytes": 1000}),
        (0, *CACHE_MISS, {"count": 1, "bytes": 1000}),
        (1, *CACHE_READ, {"count": 1, "bytes": 3000}),
        (3, *CACHE_READ, {"count": 1, "bytes": 1000}),
        (3, *CACHE_MISS, {"count": 1, "bytes": 1000}),
        (2, *READ, {"count": 2, "bytes": 3000, "ns": 500}),
    )
    return batch(
        [SETUP, 0, 1, 2, 3],
        cells=rows,
        step__duration_ns=[7e6, 1e6, 2e6, 3e6, 4e6],
        loader__wait_ns=[0, 0.5e6, 0.5e6, 0.5e6, 0.5e6],
        phase__forward_ns=[0, 0.5e6, 1.5e6, 2.5e6, 3.5e6],
        io__data_read_bytes=[1000, 10_000, 20_000, 30_000, 40_000],
        cache__hit_ratio=[0.0, 1.0, float("nan"), 0.25, float("nan")],
        block__read_p99_ns=[float("nan"), 1e5, 2e5, 3e5, 4e5],
        obs__cpu_ns=[0, 1000, 1000, 1000, 1000],
        obs__lost_count=[0, 0, 2, 0, 0],
    )
