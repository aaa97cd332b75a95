"""Latency histograms hold every event that is counted, and no other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.kernel.ground_truth import evict, read_whole
from tests.kernel.observed import ObservedKernel
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.histogram import EDGES_NS

pytestmark = pytest.mark.needs_bpf


@pytest.mark.parametrize(
    ("op", "cls"),
    [
        (Op.READ, FileClass.DATA),
        (Op.OPEN, FileClass.DATA),
        (Op.BLOCK_READ, FileClass.DATA),
        (Op.RUNQUEUE, None),
    ],
)
def test_every_event_is_in_the_histogram_of_the_run_in_its_bucket(
    observed: ObservedKernel, files: list[Path], op: Op, cls: FileClass | None
) -> None:
    before = observed.kernel.histograms.copy()
    got = observed.during(lambda: [read_whole(path) for path in files])
    grown = (observed.kernel.histograms - before)[op, :, Role.MAIN]
    buckets = grown.sum(axis=0) if cls is None else grown[cls]
    assert got.count(op, cls, Role.MAIN) > 0
    if cls is None:  # the thread may have waited for a CPU before and after the step too
        assert buckets.sum() >= got.count(op, cls, Role.MAIN)
        return
    assert buckets.sum() == got.count(op, cls, Role.MAIN)
    low, high = (int(np.dot(buckets, edges)) for edges in (EDGES_NS[:-1], EDGES_NS[1:]))
    assert low <= got.ns(op, cls, Role.MAIN) < high


def test_each_step_has_a_histogram_of_its_block_reads(
    observed: ObservedKernel, files: list[Path]
) -> None:
    for half in (files[:10], files[10:]):
        evict(*files)
        observed.clock.begin_batch()
        for path in half:
            read_whole(path)
        observed.clock.end_step()
    observed.clock.finish()
    observed.collector.collect(settle=False)
    table = observed.collector.table()
    assert table is not None
    assert table.cells is not None
    assert table.latency is not None
    counted = table.cells.rows()["count"][:, Op.BLOCK_READ].sum(axis=(1, 2))
    assert table.latency.sum(axis=1).tolist() == counted.tolist()
    assert counted[-2] >= 10
    assert counted[-1] >= 13
