"""The share of a step that grows with its lookups: found where it is so, and only there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.samples import USER, batch, info
from trainobs.analysis.tables.lookup_time import explained
from trainobs.core.embedding_table import LOOKUP_FIELDS, LOOKUP_ROW
from trainobs.runlog.embeddings import EmbeddingsSink
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink

STEPS = 400
BAGS = 256.0
MS = 1e6


@pytest.fixture
def told(tmp_path):
    """What is told of steps with these bytes, bags and times; other columns by name."""

    def tell(volume, bags, forward_ns, **columns):
        count = len(volume)
        rows = np.empty(count, LOOKUP_ROW)
        for name in LOOKUP_FIELDS:
            rows[name] = np.nan
        rows["step"], rows["epoch"], rows["table"] = np.arange(count), 0, 0
        rows["sampled"], rows["bytes"], rows["bag_count"] = False, volume, bags
        columns.setdefault("step__duration_ns", forward_ns + 5 * MS)
        steps = batch(range(count), phase__forward_ns=forward_ns, **columns)
        for sink in (RunLogSink(tmp_path / "run", 0), EmbeddingsSink(tmp_path / "run", 0)):
            sink.begin(info(tables=(USER,)))
            sink.write(replace(steps, lookups=rows))
            sink.end({})
        return explained(RunLog.open(tmp_path / "run").ranks[0])

    return tell


@pytest.fixture
def random():
    return np.random.default_rng(1)


def jagged(random) -> np.ndarray:
    """Bytes of steps whose bags have between none and many ids."""
    return np.rint(1e6 * random.lognormal(0, 0.3, STEPS))


def noise(random) -> np.ndarray:
    return MS * random.normal(0, 0.3, STEPS)


def test_a_share_that_is_there_is_found_inside_its_bounds(told, random):
    volume = jagged(random)
    forward = 10 * MS + 4 * volume + noise(random)  # 4 ns a byte: 4 of 19 ms
    found = told(volume, BAGS, forward)
    truth = 4 * volume.mean() / (forward.mean() + 5 * MS)
    assert found["low_ratio"] < truth < found["high_ratio"]
    assert found["high_ratio"] - found["low_ratio"] < 0.06
    assert found["steps"] == STEPS


def test_batches_of_other_sizes_explain_nothing(told, random):
    bags = random.integers(128, 512, STEPS).astype(float)
    volume = bags * 64  # one id a bag: bytes say nothing that the size does not
    found = told(volume, bags, 40_000 * bags + noise(random))
    assert found == {
        "known": False,
        "why": "steps with equally many bags read equally many bytes",
    }


def test_the_part_of_the_batch_size_is_told_from_that_of_the_bytes(told, random):
    bags = random.integers(128, 512, STEPS).astype(float)
    volume = bags * 64 * random.lognormal(0, 0.3, STEPS)
    forward = 40_000 * bags + 100 * volume + noise(random)
    found = told(volume, bags, forward)
    truth = 100 * volume.mean() / (forward.mean() + 5 * MS)
    assert found["low_ratio"] < truth < found["high_ratio"] < 2 * truth


def test_bytes_that_cost_nothing_explain_nothing(told, random):
    found = told(jagged(random), BAGS, 10 * MS + noise(random))
    assert found["why"] == (
        "whether steps that read more bytes take longer cannot be told from chance"
    )


def test_stalls_are_not_taken_for_lookups(told, random):
    volume = jagged(random)
    forward = 10 * MS + noise(random)
    forward[volume > np.quantile(volume, 0.97)] += 500 * MS
    assert not told(volume, BAGS, forward)["known"]


def test_without_marked_phases_it_is_the_step_less_what_is_something_else(told, random):
    volume = jagged(random)
    step = 20 * MS + 4 * volume + noise(random)
    wait = MS * random.uniform(0, 10, STEPS)
    found = told(
        volume,
        BAGS,
        np.full(STEPS, np.nan),
        step__duration_ns=step + wait,
        loader__wait_ns=wait,
    )
    truth = 4 * volume.mean() / (step + wait).mean()
    assert found["low_ratio"] < truth < found["high_ratio"]


def test_few_steps_or_unmeasured_ones_tell_nothing(told, random):
    volume = jagged(random)
    volume[90:] = np.nan
    found = told(volume, BAGS, 10 * MS + 4 * np.nan_to_num(volume))
    assert found["why"].startswith("fewer than 100 steps")


def test_claims_on_noise_are_as_rare_as_they_should_be(random):
    """The interval holds at 99 %: of chance alone, less than one in a hundred is above zero."""
    from trainobs.analysis.tables.lookup_time import Z99, _slope

    claims = 0
    for _ in range(1000):
        columns = np.stack([np.ones(120), random.lognormal(0, 0.3, 120)], axis=1)
        slope, error = _slope(columns, random.standard_t(5, 120))
        claims += slope - Z99 * error > 0
    assert claims <= 15
