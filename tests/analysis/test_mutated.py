"""Run logs that were changed at random, in every way that there is: no reader fails, none waits."""

from __future__ import annotations

import random
import shutil

import pytest

from benchmarks.storms.mutations import mutate
from benchmarks.storms.readers import READERS, readings
from tests.analysis import runs
from tests.samples import busy_run

COUNT, SEEDS = 10, range(2611, 2661, 10)
"""Run logs of each kind, from each seed on; `make storm` tries thousands."""

MOST_S, MOST_BYTES = 60.0, 600 << 20
"""Of one reader, on a machine that does other things as well."""


def busy(path):
    """A run with every table but that of lookups; a short one, for speed."""
    facts = {"settings": {"loader_workers": 4}, "loaders": [runs.LOADER | {"workers": 4}]}
    return runs.write(path, busy_run(24), end={"outcome": "ok", "losses": {"tasks": 1}}, **facts)


KINDS = (busy, runs.with_tables, runs.with_gpu, runs.without_steps)


@pytest.mark.parametrize("first", SEEDS)
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
def test_no_reader_fails_on_run_logs_that_were_changed_at_random(tmp_path, make, first):
    base, run = make(tmp_path / "base"), tmp_path / "run"
    for seed in range(first, first + COUNT):
        draw = random.Random(seed)
        shutil.copytree(base, run)
        done = mutate(run, draw)
        for reading in readings(run, base, tmp_path, draw.sample(READERS, 1)):
            about = f"seed {seed}: {done}: {reading.reader}"
            assert not reading.trouble, f"{about}\n{reading.trouble}"
            assert reading.seconds < MOST_S, about
            assert reading.peak_bytes < MOST_BYTES, about
        shutil.rmtree(run)
