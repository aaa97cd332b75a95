"""Where bytes come from, which steps are sampled, and what waits for a device."""

from __future__ import annotations

import random
import threading
import tracemalloc

import numpy as np
import pytest
import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import RecordCacheMetrics
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor

from tests.embeddings.brute import Steps, same
from tests.embeddings.test_jagged import bag_collection, make_jagged
from trainobs.access import AccessCounts
from trainobs.core.embedding_table import EmbeddingTable
from trainobs.core.hot_rows import ServedBy
from trainobs.embeddings import buffer
from trainobs.embeddings.buffer import CallIds, LookupBuffer, LookupCall, LookupCapture
from trainobs.embeddings.caches import caches
from trainobs.embeddings.model_lookups import ModelLookups
from trainobs.embeddings.sampling import DENSEST, SPARSEST, SamplingInterval
from trainobs.embeddings.sites import ModelEmbeddings, Site, SiteKind
from trainobs.embeddings.step_lookups import CapturedStep
from trainobs.embeddings.table import TIERS, Gradient, TablePart, WatchedTable, reads
from trainobs.embeddings.totals import LookupTotals
from trainobs.steps.clock import StepClock
from trainobs.steps.closed_step import ClosedStep

ROWS, ROW_BYTES = 100, 16


def tally_of(parts, row_count=ROWS, world_size=1, gradient=Gradient.FUSED, module=None, near=""):
    """A totals of one table whose parts lie there, seen from rank 0."""
    info = EmbeddingTable("t", row_count, 4, ROW_BYTES, "m")
    found = ModelEmbeddings()
    site = Site(module or nn.Identity(), SiteKind.EMBEDDING, "m", features={"": [0]}, near=near)
    found.add(site, [WatchedTable(info, reads(parts, row_count, 0), gradient)])
    return LookupTotals(found, AccessCounts({"t": row_count}), world_size), site


def row_of(totals, site, ids, sampled=True, key=""):
    capture = LookupCapture(1, sampled)
    values = np.array(ids, dtype=np.int64)
    copied = CallIds(values, 1, ends=False) if sampled else None
    capture.calls.append(LookupCall(site, (key,), (len(ids),), len(ids), True, copied))
    return totals.rows([CapturedStep(0, 0, capture, measured=True)], 0)[0]


def whole(memory, rank=0):
    return [TablePart(rank, memory, 0, ROWS, ROW_BYTES)]


NONE = {"hbm": 0, "host": 0, "uvm_hit": 0, "uvm_miss": 0, "remote": 0}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (whole("hbm"), NONE | {"hbm": 64}),
        (whole("host"), NONE | {"host": 64}),
        (whole("uvm"), NONE | {"uvm_miss": 64}),
        (whole("uvm_caching"), NONE | {"uvm_hit": np.nan, "uvm_miss": np.nan}),
        (whole("hbm", rank=1), NONE | {"remote": 64}),
        (whole("key_value"), dict.fromkeys(NONE, np.nan) | {"remote": 0}),
        (
            [TablePart(0, "hbm", 0, ROWS, 4), TablePart(1, "hbm", 0, ROWS, 12)],
            NONE | {"hbm": 16, "remote": 48},
        ),
        (
            [TablePart(0, "hbm", 0, 50, ROW_BYTES), TablePart(0, "hbm", 50, ROWS, ROW_BYTES)],
            NONE | {"hbm": 64},
        ),
    ],
)
@pytest.mark.parametrize("sampled", [False, True])
def test_where_bytes_come_from_when_it_is_the_same_for_all_rows(parts, expected, sampled):
    row = row_of(*tally_of(parts), [1, 2, 98, 2], sampled)
    assert row["bytes"] == 64
    assert all(same(row[f"{tier}_bytes"], amount) for tier, amount in expected.items())


def test_where_bytes_come_from_when_rows_are_split_takes_the_ids():
    parts = [TablePart(rank, "host", rank * 50, rank * 50 + 50, ROW_BYTES) for rank in range(2)]
    row = row_of(*tally_of(parts), [1, 2, 98, 2, 100])
    assert (row["host_bytes"], row["remote_bytes"]) == (48, 16)  # there is no row 100
    row = row_of(*tally_of(parts), [1, 2, 98, 2], sampled=False)
    assert np.isnan([row["host_bytes"], row["remote_bytes"]]).all()
    assert (row["hbm_bytes"], row["uvm_hit_bytes"], row["uvm_miss_bytes"]) == (0, 0, 0)


class OfOwners(nn.Module):
    """Keeps each fourth row on the device of the rank that has it."""

    def slots_of_key(self, key):
        return "", np.arange(0, ROWS, 4), ServedBy.OWNER


def test_copies_of_rows_are_read_from_the_devices_of_their_ranks():
    split = [TablePart(rank, "uvm", rank * 48, rank * 52 + 48, ROW_BYTES) for rank in range(2)]
    totals = tally_of(split, module=OfOwners(), near="hbm")
    row = row_of(*totals, [0, 1, 12], key="hot")  # rows 0, 4 and 48
    assert (row["hbm_bytes"], row["uvm_miss_bytes"], row["remote_bytes"]) == (32, 0, 16)
    row = row_of(*totals, [0, 1, 12], sampled=False, key="hot")
    assert np.isnan([row["hbm_bytes"], row["remote_bytes"]]).all()
    for rank, expected in ((0, (48, 0, 0)), (1, (0, 0, 48))):
        totals = tally_of(whole("uvm", rank), module=OfOwners(), near="hbm")
        row = row_of(*totals, [0, 1, 12], sampled=False, key="hot")
        assert (row["hbm_bytes"], row["uvm_miss_bytes"], row["remote_bytes"]) == expected


def test_a_grid_of_parts_is_read_cell_by_cell():
    parts = [
        TablePart(r * 2 + c, "hbm", r * 50, r * 50 + 50, 8) for r in range(2) for c in range(2)
    ]
    cells = reads(parts, ROWS, 0)
    assert cells.starts.tolist() == [0, 50]
    assert cells.bytes[:, TIERS.index("hbm")].tolist() == [8, 0]
    assert cells.bytes[:, TIERS.index("remote")].tolist() == [8, 16]


@pytest.mark.parametrize("every", [1, 3, 17])
def test_one_step_of_each_stride_is_sampled_and_any_as_often(every):
    interval = SamplingInterval(every)
    chosen = np.array([interval.choose() for _ in range(1000 * every)]).reshape(1000, every)
    assert (chosen.sum(axis=1) == 1).all()
    expected = 1000 / every
    assert (np.abs(chosen.sum(axis=0) - expected) <= 4 * np.sqrt(expected)).all()
    interval.stepped(1e6)
    interval.sampled(1e9)
    assert interval.every == every


def test_sampling_is_the_same_each_time_and_another_on_each_rank():
    torch.manual_seed(0), np.random.seed(0), random.seed(0)
    before = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    runs = [SamplingInterval(17, rank) for rank in (0, 0, 1)]
    first, again, other = ([one.choose() for _ in range(500)] for one in runs)
    assert first == again != other
    after = torch.random.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


@pytest.mark.parametrize("period", [2, 8, 17, 34])
def test_a_kind_of_batch_that_comes_at_each_so_many_steps_is_sampled_as_often(period):
    interval = SamplingInterval(17)
    kinds = [step % period == 0 for step in range(17 * 2000) if interval.choose()]
    assert np.mean(kinds) == pytest.approx(1 / period, abs=4 * np.sqrt(1 / period / 2000))


@pytest.mark.parametrize("ranks", [1, 8])
@pytest.mark.parametrize(
    ("cost_ns", "every"), [(1e3, DENSEST), (10e6, 50), (1e6 * 999, SPARSEST), (1e12, SPARSEST)]
)
def test_automatic_sampling_keeps_to_its_budget_on_all_ranks_together(cost_ns, every, ranks):
    interval = SamplingInterval(None, 0, ranks)
    every *= ranks if every > DENSEST else 1
    for _ in range(100):
        interval.stepped(10e6)
        interval.sampled(cost_ns)
    assert interval.every == every
    assert ranks * cost_ns / every <= 0.02 * 10e6 or every == SPARSEST * ranks


class Stream:
    """Stands in for a stream of CUDA, whose events pass when told."""

    passed = False

    def record_event(self):
        return self

    def query(self):
        return self.passed


def test_a_step_waits_for_its_copies_and_nobody_for_the_device():
    serial = [1]
    taken = LookupBuffer(lambda: serial[0], SamplingInterval(1))
    stream = Stream()
    capture = taken.enter()
    capture.streams.add(stream)
    capture.arrived = False
    serial[0] = 2
    taken.enter()
    assert not taken.ready(1)
    assert taken.ready(2)
    stream.passed = True
    assert not taken.ready(1)  # only the training thread asks CUDA
    taken.enter()
    assert taken.ready(1)


def test_what_never_arrives_is_unmeasured():
    steps, model = Steps(), nn.Sequential(nn.Embedding(10, 2))
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    steps.begin()
    model(torch.tensor([1, 2]))
    capture = lookups._buffer._current
    capture.streams.add(Stream())
    capture.arrived = False
    lookups.close()
    rows = lookups.rows(steps.closed())
    assert len(rows) == 1
    assert np.isnan(rows["lookup_count"][0])


def test_what_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(buffer, "MAX_SAMPLE_BYTES", 100)
    monkeypatch.setattr(buffer, "MAX_CAPTURES", 4)
    steps, model = Steps(), nn.Sequential(nn.Embedding(10, 2))
    lookups = ModelLookups(model, lambda: steps.serial, every=1)
    for _ in range(6):
        steps.begin()
        model(torch.arange(8))
    lookups.close()
    rows = lookups.rows(steps.closed())
    assert rows["step"].tolist() == [2, 3, 4, 5]
    assert rows["sampled"].tolist() == [False, False, False, True]  # there is room again


def test_training_and_counting_go_on_side_by_side():
    model, clock = nn.Sequential(nn.Embedding(50, 2), nn.EmbeddingBag(1, 1)), StepClock([0])
    lookups = ModelLookups(model, lambda: clock.serial, every=1)
    parts, over = [], threading.Event()

    def observe():
        last = False
        while not last:
            last = over.is_set()
            closed = [ClosedStep(clock.closed.popleft()) for _ in range(len(clock.closed))]
            parts.append(lookups.rows(closed))

    observer = threading.Thread(target=observe)
    observer.start()
    expected = np.zeros(50, dtype=np.int64)
    for step in range(300):
        clock.begin_batch()
        ids = torch.randint(0, 50, (step % 7,))
        model[0](ids)
        expected += np.bincount(ids.numpy(), minlength=50)
        clock.end_step()
    clock.finish()
    over.set()
    observer.join()
    lookups.close()
    rows = np.concatenate(parts)
    assert rows["step"].tolist() == list(range(300))
    assert rows["lookup_count"].tolist() == [step % 7 for step in range(300)]
    assert lookups.counts.counts("0").tolist() == expected.tolist()


class WithCopies(EmbeddingBagCollection):
    """Has copies of rows, which it takes under keys of their own."""

    ROWS = np.array([5, 17, 30])

    def slots_of_key(self, key):
        feature, _, mark = key.partition("#")
        return (feature, self.ROWS, ServedBy.DEVICE) if mark else None


def test_lookups_of_copies_count_for_their_rows():
    config = EmbeddingBagConfig(
        name="users", embedding_dim=4, num_embeddings=50, feature_names=["user"]
    )
    module, steps = WithCopies(tables=[config]), Steps()
    lookups = ModelLookups(module, lambda: steps.serial, every=1)
    steps.begin()
    module(
        KeyedJaggedTensor(
            keys=["user", "user#1"],
            values=torch.tensor([1, 2, 0, 2, 2, 9]),
            lengths=torch.tensor([1, 1, 3, 1]),
        )
    )
    row = lookups.rows(steps.closed())[0]
    lookups.close()
    assert (row["lookup_count"], row["bag_count"], row["unique_rows"]) == (6, 2, 4)
    assert row["outside_count"] == 1  # there is no slot 9
    counts = lookups.counts.counts("users")
    assert {int(i): int(counts[i]) for i in np.flatnonzero(counts)} == {1: 1, 2: 1, 5: 1, 30: 2}
    sample = lookups.counts.inputs()[0]
    assert sorted(sample.sizes.tolist()) == [2, 4]


def test_keys_that_the_model_does_not_lookup_cost_nothing():
    module, steps = bag_collection(), Steps()
    lookups = ModelLookups(module, lambda: steps.serial, every=1)
    steps.begin()
    module(make_jagged())
    rows = lookups.rows(steps.closed())
    lookups.close()
    assert set(rows["table"]) <= {0, 1, 2}


def test_memory_is_bounded_for_a_table_of_a_hundred_million_rows():
    row_count = 100_000_000
    parts = [TablePart(0, "host", 0, row_count, ROW_BYTES)]
    tracemalloc.start()
    try:
        totals, site = tally_of(parts, row_count)
        random = np.random.default_rng(0)
        for _ in range(60):
            row_of(totals, site, (row_count ** random.random(20_000)).astype(np.int64) - 1)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 96 << 20


class Counting(nn.Module):
    """Stands in for a kernel with a cache, which takes a GPU: its counters, and nothing else."""

    feature_table_map = (0, 0)
    record_cache_metrics = RecordCacheMetrics(False, True)

    def __init__(self):
        super().__init__()
        self.table_wise_cache_miss = torch.zeros(2, dtype=torch.int64)


def test_misses_of_a_cache_split_the_bytes_of_sampled_steps():
    totals, site = tally_of(whole("uvm_caching"))
    site.module = Counting()
    (cache,) = caches(site)
    assert cache.tables == (0, 0)
    rows = []
    for serial, misses in enumerate([0, 3, None, 5]):
        capture = LookupCapture(serial, misses is not None)
        copied = CallIds(np.arange(10), 1, ends=False) if misses is not None else None
        capture.calls.append(LookupCall(site, ("",), (10,), 10, True, copied))
        if misses is not None:
            capture.misses.append((cache.tables, np.array([misses, 0])))
        rows.append(totals.rows([CapturedStep(serial, 0, capture, measured=True)], 0)[0])
    split = [(row["uvm_hit_bytes"], row["uvm_miss_bytes"]) for row in rows]
    assert np.isnan([split[0], split[2]]).all()
    assert split[1] == (7 * ROW_BYTES, 3 * ROW_BYTES)  # 3 of the 10 lookups before
    assert split[3] == (9 * ROW_BYTES, ROW_BYTES)  # 2 of 20


def test_kernels_that_count_no_misses_are_left_alone():
    totals, site = tally_of(whole("uvm_caching"))
    site.module = Counting()
    site.module.record_cache_metrics = RecordCacheMetrics(False, False)
    assert caches(site) == []
