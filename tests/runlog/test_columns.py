"""The list of columns: what one more does to files that were written without it."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.architecture.rooms import ROOT
from trainobs.core.abi import UNTABLED, Op
from trainobs.core.records import UNKNOWN
from trainobs.runlog import columns
from trainobs.runlog.columns import AXES, NAN, TABLES, Column, tables_of_run
from trainobs.runlog.parquet import _are_among, values_of, why_unreadable
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES, EMBEDDINGS, KERNEL, STEPS


def with_one_more(monkeypatch, table, column):
    monkeypatch.setitem(columns.TABLES, table, (*TABLES[table], column))


def test_a_new_column_is_unknown_in_older_files(write_run, monkeypatch):
    path = write_run()
    with_one_more(monkeypatch, STEPS, Column("io/not_yet_ns", missing=NAN, is_new=True))
    run = RunLog.open(path)
    assert run.unreadable == {}
    np.testing.assert_array_equal(run.ranks[0].metric("io/not_yet_ns"), [NAN] * 5)


def test_a_null_among_unsigned_numbers_is_unknown():
    found = pa.chunked_array([pa.array([7, None], pa.uint64())])
    assert values_of(Column("read_bytes", missing=UNKNOWN), found).tolist() == [7, UNKNOWN]


def test_a_column_that_is_not_new_must_be_there(write_run, monkeypatch):
    path = write_run()
    with_one_more(monkeypatch, KERNEL, Column("colour", missing=UNKNOWN))
    (reason,) = RunLog.open(path).unreadable.values()
    assert reason == "without the columns colour"


def test_a_number_below_the_least_is_damage(write_run, monkeypatch):
    path = write_run()
    higher = tuple(
        replace(one, least=3 * 10**9) if one.name == "start_ns" else one for one in TABLES[STEPS]
    )
    monkeypatch.setitem(columns.TABLES, STEPS, higher)
    (reason,) = RunLog.open(path).unreadable.values()
    assert reason == "with unusable values in start_ns"


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("used", "reason"), [("ab", None), ("ax", "with unusable values in role")])
def test_a_word_that_means_nothing_is_damage(tmp_path, packed, used, reason):
    part = tmp_path / "part.parquet"
    pq.write_table(pa.table({"role": list(used)}), part, use_dictionary=packed)
    assert why_unreadable(part, (Column("role", words=("a", "b")),)) == reason


@pytest.mark.parametrize(("used", "whole"), [([0, 0], True), ([-1, 0], False), ([0, 1], False)])
def test_an_index_that_has_no_word_is_damage(used, whole):
    """pyarrow refuses to read one, as far as is known."""
    chunk = pa.DictionaryArray.from_arrays(pa.array(used, pa.int32()), pa.array(["a"]), safe=False)
    assert _are_among(("a",), pa.chunked_array([chunk])) == whole


def test_every_table_has_columns_of_different_names():
    for table, listed in TABLES.items():
        names = [column.name for column in listed]
        assert len(set(names)) == len(names), table


@pytest.mark.parametrize("names", [[], ["user", "item"]])
def test_the_words_of_a_table_column_are_the_tables_of_the_run(names):
    (column,) = (one for one in tables_of_run(names)[EMBEDDINGS] if one.name == "table")
    assert column.words == tuple(names)
    assert tables_of_run(names)[BATCHES] is TABLES[BATCHES]


def test_the_page_of_the_run_log_tells_of_each_op_class_and_role():
    page = (ROOT / "docs" / "run-log.md").read_text()
    kernel = page.split("\n## kernel\n")[1].split("\n## ")[0]
    _, columns_told, ops_told = kernel.split("|---|---|\n")
    ops = re.findall(r"`(\w+)`", "".join(re.findall(r"^\|(.*?)\|", ops_told, re.MULTILINE)))
    assert sorted(ops) == sorted({op.name.lower() for op in Op if op not in UNTABLED})
    for axis in ("class", "role"):
        (told,) = re.findall(rf"^\| `{axis}` \|(.*)\|$", columns_told, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", told)) == {word.name.lower() for word in AXES[axis]}
