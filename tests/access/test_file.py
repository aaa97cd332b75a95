"""What was saved comes back, and nothing else is taken for it."""

from __future__ import annotations

import gc
import json
import os
import pickle
import resource

import numpy as np
import pytest

from tests.access.brute_force import Truth, check
from trainobs.access import AccessCounts, file
from trainobs.core.errors import AccessCountsError, SettingError

TABLES = {"exact": 500, "in/a pool": 10**9, "Übergröße": 3}
BUDGET = 20_000


def counted(seed: int, tables=TABLES):
    counts, truth = AccessCounts(tables, budget_bytes=BUDGET, seed=seed), Truth(tables)
    random = np.random.default_rng(seed)
    for _ in range(20):
        for name, rows in tables.items():
            ids = (random.pareto(0.5, 200) * 30).astype(np.int64) % (rows + 1)
            counts.add(name, ids)
            truth.add(name, ids)
        lengths = random.integers(0, 3, (3, 40))
        ids = random.integers(0, 3, lengths.sum())
        counts.add_inputs(list(tables)[:3], ids, lengths, epoch=seed % 2)
    return counts, truth


@pytest.fixture
def saved(tmp_path):
    counts, _ = counted(1)
    path = tmp_path / "counts.npz"
    counts.save(path)
    return path


def assert_same(one: AccessCounts, two: AccessCounts) -> None:
    for name in one.tables:
        assert one.error(name) == two.error(name)
        for block, same in zip(one.blocks(name), two.blocks(name), strict=True):
            assert [part.tolist() for part in block] == [part.tolist() for part in same]
    assert one.samples().keys() == two.samples().keys()
    for epoch, (sample, threshold) in one.samples().items():
        again, same_threshold = two.samples()[epoch]
        assert (threshold, sample.seen) == (same_threshold, again.seen)
        for column in file.SAMPLE_COLUMNS:
            assert getattr(sample, column).tolist() == getattr(again, column).tolist()


def test_a_file_comes_back_as_it_was_written(tmp_path):
    counts, truth = counted(1)
    assert counts.error("in/a pool") > 0
    counts.save(tmp_path / "counts.npz")
    again = AccessCounts.load(tmp_path / "counts.npz")
    check(again, truth)
    assert_same(counts, again)
    again.add("exact", np.array([7]))
    truth.add("exact", np.array([7]))
    check(again, truth)


@pytest.mark.parametrize("count", [2**31, 2**40])
def test_counts_above_32_bits_come_back(tmp_path, count):
    counts = AccessCounts({"t": 3, "u": 4})
    for _ in range(2):
        counts._dense["t"].put(np.array([0, 2]), np.array([count, 1], np.uint64))
        counts._dense["u"].put(np.array([1]), np.array([count], np.uint64))
    counts._totals.update(t=2 * (count + 1), u=2 * count)
    counts.save(tmp_path / "counts.npz")
    again = AccessCounts.load(tmp_path / "counts.npz")
    assert again.counts("t").tolist() == [2 * count, 0, 2]
    assert again.counts("u").tolist() == [0, 2 * count, 0, 0]


@pytest.mark.parametrize("inside_run", [True, False])
def test_a_directory_is_the_sum_of_its_ranks(tmp_path, inside_run):
    folder = tmp_path / "access-counts" if inside_run else tmp_path
    folder.mkdir(exist_ok=True)
    first, truth = counted(1)
    second, second_truth = counted(2, {**TABLES, "of rank 10 only": 20})
    first.save(folder / "rank=0.npz")
    second.save(folder / "rank=10.npz")
    (folder / ".rank=3.npz.tmp").write_bytes(b"half")
    truth.merge(second_truth)
    merged = AccessCounts.load(tmp_path)
    check(merged, truth)
    assert {epoch: sample.seen for epoch, sample in merged.inputs().items()} == {0: 800, 1: 800}


def test_numpy_reads_it_without_pickle(saved):
    with np.load(saved, allow_pickle=False) as archive:
        meta = json.loads(archive["meta"].tobytes())
        assert [table["name"] for table in meta["tables"]] == list(TABLES)
        assert archive["counts-0"].dtype == np.uint32
        assert {archive[name].dtype.kind for name in archive.files} <= set("iuf")


def refuses(path, found: str) -> None:
    with pytest.raises(AccessCountsError) as caught:
        AccessCounts.load(path)
    failed, line, do = str(caught.value).split("\n", 2)
    assert failed.startswith("cannot ")
    assert line.startswith("  found: ")
    assert found in line
    assert do.startswith("  do:    ")


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(saved, share):
    data = saved.read_bytes()
    saved.write_bytes(data[: int(len(data) * share)])
    refuses(saved, "damaged")


def test_a_byte_that_changed_anywhere_never_changes_a_count(saved):
    data = saved.read_bytes()
    original = AccessCounts.load(saved)
    refused = 0
    for at in np.random.default_rng(0).integers(0, len(data), 150).tolist():
        saved.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        try:
            again = AccessCounts.load(saved)
        except AccessCountsError:
            refused += 1
        else:  # a byte that says nothing: a date, a comment
            assert_same(original, again)
    assert refused > 100


def rewrite(path, change) -> None:
    """Change the arrays of a file, with right checksums."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    meta = json.loads(arrays["meta"].tobytes())
    change(meta, arrays)
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    with open(path, "wb") as out:
        np.savez(out, **arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda meta, arrays: meta["tables"][0].update(rows=501),
        lambda meta, arrays: meta["tables"][0].update(total=3),
        lambda meta, arrays: meta["tables"][0].update(total=10**9),
        lambda meta, arrays: meta["tables"][1].update(error=-1),
        lambda meta, arrays: meta["tables"][0].pop("outside"),
        lambda meta, arrays: meta.update(tables=None),
        lambda meta, arrays: arrays["rows-1"].__setitem__(0, 10**9),
        lambda meta, arrays: arrays["rows-1"].__setitem__(0, -1),
        lambda meta, arrays: arrays["rows-1"].__setitem__(1, arrays["rows-1"][0]),
        lambda meta, arrays: (
            arrays["rows-1"].sort() or arrays.update({"rows-1": arrays["rows-1"][::-1]})
        ),
        lambda meta, arrays: arrays.pop("counts-2"),
        lambda meta, arrays: arrays["inputs-0-tables"].__setitem__(0, 3),
        lambda meta, arrays: arrays["inputs-0-sizes"].__setitem__(0, 99),
        lambda meta, arrays: meta["epochs"][0].update(seen=1),
        lambda meta, arrays: arrays.update({"counts-0": arrays["counts-0"].astype(np.float64)}),
        lambda meta, arrays: arrays.update({"inputs-0-draws": arrays["inputs-0-draws"] + 1}),
        lambda meta, arrays: arrays.update({"rows-1": arrays["rows-1"].astype(np.float64)}),
        lambda meta, arrays: arrays.update({"inputs-0-ids": arrays["inputs-0-ids"] + 0.0}),
        lambda meta, arrays: meta["tables"][0].update(rows=500.0),
        lambda meta, arrays: meta["tables"][0].update(outside="0"),
        lambda meta, arrays: meta.update(budget_bytes=10**30),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(saved, change):
    rewrite(saved, change)
    refuses(saved, "damaged")


def test_a_compressed_file_is_refused(saved):
    """A few bytes of it could stand for any number of rows."""
    with np.load(saved) as archive:
        members = dict(archive)
    np.savez_compressed(saved, **members)
    refuses(saved, "it is compressed")


def test_a_budget_beyond_the_machine_is_refused(saved):
    def ask(meta, arrays):
        meta.update(budget_bytes=1 << 60)
        meta["tables"][1].update(rows=10**15)

    rewrite(saved, ask)
    refuses(saved, "which this machine does not give")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_neither_waited_for_nor_read_without_end(tmp_path, make):
    make(tmp_path / "counts.npz")
    refuses(tmp_path / "counts.npz", "not a regular file")


def test_a_file_that_is_only_written_anew_is_accepted(saved):
    original = AccessCounts.load(saved)
    rewrite(saved, lambda meta, arrays: None)
    assert_same(original, AccessCounts.load(saved))


def test_a_newer_file_is_refused(saved):
    rewrite(saved, lambda meta, arrays: meta.update(schema=2))
    refuses(saved, "schema 2, written by a newer trainobs; this one reads up to 1")


class Bomb:
    def __reduce__(self):
        return (os.mkdir, ("exploded",))


def test_a_pickle_is_not_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "counts.npz"
    np.savez(path, meta=np.array([Bomb()], object))
    refuses(path, "damaged")
    path.write_bytes(pickle.dumps(Bomb()))
    refuses(path, "damaged")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("data", [b"user,3\n", b"\x93NUMPY", b""])
def test_a_file_of_another_kind_is_refused(tmp_path, data):
    (tmp_path / "counts.npz").write_bytes(data)
    refuses(tmp_path / "counts.npz", "of another kind (ValueError: it is no npz)")


def test_what_is_missing_is_named(tmp_path):
    refuses(tmp_path / "nothing.npz", "nothing.npz")
    refuses(tmp_path, "no file rank=N.npz in it")


def test_ranks_of_different_models_are_refused(tmp_path):
    AccessCounts({"t": 3}).save(tmp_path / "rank=0.npz")
    AccessCounts({"t": 4}).save(tmp_path / "rank=1.npz")
    refuses(tmp_path, "3 rows here, 4 there")


@pytest.mark.parametrize("room_bytes", [0, 100, 5000])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(saved, room_bytes):
    before = saved.read_bytes()
    counts, _ = counted(2)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room_bytes, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            counts.save(saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    gc.collect()  # what is left half open would complain now
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_a_missing_directory_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        AccessCounts({"t": 3}).save(tmp_path / "gone" / "counts.npz")


def test_a_small_budget_given_to_load_keeps_the_bound(tmp_path):
    large, truth = AccessCounts({"t": 10**9}), Truth({"t": 10**9})
    ids = (np.random.default_rng(0).pareto(0.5, 5000) * 10).astype(np.int64) % 10**9
    large.add("t", ids)
    truth.add("t", ids)
    large.save(tmp_path / "counts.npz")
    small = AccessCounts.load(tmp_path / "counts.npz", budget_bytes=BUDGET)
    assert small.error("t") > 0 == large.error("t")
    check(small, truth)


def test_a_budget_of_nothing_is_refused_and_not_taken_for_the_usual_one(tmp_path):
    AccessCounts({"user": 9}).save(tmp_path / "rank=0.npz")
    with pytest.raises(SettingError, match=r"in 0 bytes"):
        AccessCounts.load(tmp_path, budget_bytes=0)
