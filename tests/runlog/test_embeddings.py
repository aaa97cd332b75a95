"""The table of embedding lookups: what is in its files, number by number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.samples import ITEM, USER, batch, info, lookup_rows
from trainobs.core.embedding_table import LOOKUP_FIELDS, LOOKUP_ROW
from trainobs.core.records import SETUP
from trainobs.runlog.embeddings import EmbeddingsSink
from trainobs.runlog.writer import RunLogSink

TABLES = {"tables": (USER, ITEM)}


@pytest.fixture
def sink(tmp_path):
    sink = EmbeddingsSink(tmp_path, 0)
    sink.begin(info(**TABLES))
    return sink


def table(tmp_path, part=0) -> pa.Table:
    path = tmp_path / "rank=0" / f"embeddings-{part:05d}.parquet"
    return pq.read_table(path, partitioning=None)


def steps(rows):
    return replace(batch(np.unique(rows["step"])), lookups=rows)


def test_a_row_is_a_step_and_a_table_and_what_is_unknown_is_null(sink, tmp_path):
    known = {"lookup_count": 4096, "bytes": 2**41, "unique_rows": 17}
    rows = lookup_rows((SETUP, 0, {"lookup_count": 1}), (7, 1, known), (7, 0, {"lookup_count": 2}))
    sink.write(steps(rows))
    sink.flush()
    read = table(tmp_path)
    assert read.column_names == ["step", "epoch", "table", "sampled", *LOOKUP_FIELDS]
    first, second, third = read.to_pylist()
    nothing = dict.fromkeys(LOOKUP_FIELDS)
    plain = {"epoch": 0, "sampled": False, **nothing}
    assert first == {"step": None, "table": "user", **plain, "lookup_count": 1}
    assert second == {"step": 7, "table": "user", **plain, "lookup_count": 2}
    assert third == {"step": 7, "table": "item", **plain, **known, "sampled": True}


def test_a_run_without_lookups_writes_nothing(sink, tmp_path):
    sink.write(batch([0, 1]))
    sink.write(replace(batch([2]), lookups=np.empty(0, LOOKUP_ROW)))
    sink.flush()
    sink.end({})
    assert list(tmp_path.iterdir()) == []


def test_the_run_log_of_a_run_without_tables_has_no_word_of_them(tmp_path):
    log = RunLogSink(tmp_path / "run")
    log.begin(info())
    log.write(batch([0]))
    log.end({})
    assert "tables" not in (tmp_path / "run" / "run.json").read_text()
    assert [file.name for file in (tmp_path / "run" / "rank=0").iterdir()] == [
        "steps-00000.parquet"
    ]


def test_rows_across_sealed_parts_are_all_there_once(sink, tmp_path, monkeypatch):
    monkeypatch.setattr(EmbeddingsSink, "seal_rows", 100)
    whole = lookup_rows(*((n // 2, n % 2, {"lookup_count": n}) for n in range(250)))
    for first in range(0, 250, 14):
        sink.write(steps(whole[first : first + 14]))
        sink.flush()
    parts = [table(tmp_path, part) for part in range(3)]
    assert [len(part) for part in parts] == [100, 100, 50]
    assert sorted(pa.concat_tables(parts)["lookup_count"].to_pylist()) == list(range(250))


def test_a_step_of_26_tables_is_small(sink, tmp_path):
    """What a model of 26 tables adds to the record of a step, one step in 17 sampled."""
    random = np.random.default_rng(0)
    count = 2000
    rows = np.zeros(26 * count, LOOKUP_ROW)
    rows["step"], rows["table"] = np.repeat(np.arange(count), 26), np.tile(np.arange(26) % 2, count)
    rows["lookup_count"] = rows["bag_count"] = 2048
    rows["bytes"] = rows["host_bytes"] = 2048 * 64
    rows["sampled"] = rows["step"] % 17 == 0
    for field in ("unique_rows", "hottest_1pct_count", "hottest_10pct_count", "gradient_rows"):
        rows[field] = np.where(rows["sampled"], random.integers(300, 900, len(rows)), np.nan)
    for field in ("gradient_bytes", "sparse_allreduce_bytes"):
        rows[field] = rows["gradient_rows"] * 64
    sink.write(steps(rows))
    sink.end({})
    files = (tmp_path / "rank=0").iterdir()
    size = sum(file.stat().st_size for file in files)
    assert size / count <= 40


def test_a_full_disk_loses_no_row_until_memory_is_full_and_counts_the_rest(disk, monkeypatch):
    monkeypatch.setattr(EmbeddingsSink, "held_rows", 40)
    small = disk("size=16k")
    sink = EmbeddingsSink(small / "run", 0)
    sink.begin(info(**TABLES))
    (small / "filler").write_bytes(bytes(15 << 10))
    for step in range(60):
        sink.write(steps(lookup_rows((step, 0, {"lookup_count": step}))))
        with pytest.raises(OSError, match="No space left"):
            sink.flush()
    assert sink.lost_steps == 20
    (small / "filler").unlink()
    sink.flush()
    assert table(small / "run")["lookup_count"].to_pylist() == list(range(40))


def test_a_removed_directory_is_made_again(sink, tmp_path):
    sink.write(steps(lookup_rows((0, 0, {"lookup_count": 1}))))
    sink.flush()
    (tmp_path / "rank=0" / "embeddings-00000.parquet").unlink()
    (tmp_path / "rank=0").rmdir()
    sink.write(steps(lookup_rows((1, 0, {"lookup_count": 2}))))
    sink.flush()
    assert table(tmp_path)["lookup_count"].to_pylist() == [1, 2]
