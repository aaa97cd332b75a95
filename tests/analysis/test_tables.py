"""Embedding tables in the report: numbers worked out by hand, and the page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.samples import ITEM, USER, batch, info, lookup_rows
from trainobs.access import AccessCounts
from trainobs.analysis.summary import summarize
from trainobs.core.catalogue.embeddings import EMBEDDINGS
from trainobs.core.errors import RunLogError
from trainobs.core.records import SETUP
from trainobs.report.full import render
from trainobs.report.rows import cut_names
from trainobs.runlog.embeddings import EmbeddingsSink
from trainobs.runlog.rank import RankLog
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import counts_file
from trainobs.runlog.writer import RunLogSink

ROWS = (
    (SETUP, 0, {"lookup_count": 1000, "bytes": 64_000, "unique_rows": 10}),
    (0, 0, {"lookup_count": 100, "bag_count": 50, "bytes": 6400, "unique_rows": 40}),
    (0, 1, {"lookup_count": 8, "bag_count": 8, "bytes": 256}),
    (1, 0, {"lookup_count": 300, "bag_count": 50, "bytes": 19200}),
    (3, 0, {"lookup_count": 200, "bag_count": 100, "bytes": 12800, "unique_rows": 140}),
)


def write_run(path, rows=ROWS, tables=(USER, ITEM), counts=None, steps=(4, 4), **columns):
    """A run of four steps; `steps`: how many looked rows up, and were counted."""
    columns = columns or {"step__duration_ns": [1e9] * 5}
    facts = info(tables=tables, capabilities={"embeddings": "on"})
    numbers = [SETUP, *range(len(next(iter(columns.values()))) - 1)]
    record = replace(batch(numbers, **columns), lookups=lookup_rows(*rows))
    for sink in (RunLogSink(path, 0), EmbeddingsSink(path, 0)):
        sink.begin(facts)
        sink.write(record)
        sink.end({"outcome": "ok"})
    if counts:
        if steps:
            counts.pass_steps(*steps)
        counts_file(path, 0).parent.mkdir()
        counts.save(counts_file(path, 0))
    return path


def summary_of(path):
    return summarize(RunLog.open(path))


@pytest.fixture
def metrics(tmp_path):
    return summary_of(write_run(tmp_path / "run"))["metrics"]


def test_metrics_are_read_together_as_far_as_memory_allows(tmp_path, metrics, monkeypatch):
    passes, read = [], RankLog.lookups

    def lookups(rank, columns):
        passes.append(columns)
        return read(rank, columns)

    monkeypatch.setattr(RankLog, "lookups", lookups)
    path = write_run(tmp_path / "again")
    summary_of(path)
    together = len(passes)
    assert together <= 3  # sums, values, time by bytes
    monkeypatch.setattr("trainobs.analysis.tables.lookups.HELD_VALUES", 1)
    assert summary_of(path)["metrics"] == metrics
    assert len(passes) > 2 * together + len(EMBEDDINGS) - 2


def test_an_amount_that_is_known_in_every_step_has_a_sum(metrics):
    assert metrics["embedding/lookup_count{table=user}"] == {
        "unit": "lookups",
        "sum": 600,
        "mean": 150,  # of four steps, one of which served nothing
        "p50": 200.0,
        "p95": pytest.approx(290),
        "max": 300.0,
    }


def test_what_only_sampled_steps_tell_has_none_and_its_mean_allows_for_the_others(metrics):
    unique = metrics["embedding/unique_rows{table=user}"]
    assert unique["sum"] is None
    assert unique["mean"] == 90 * 3 / 4  # in three of four steps
    assert (unique["p50"], unique["max"]) == (90.0, 140.0)


def test_a_ratio_is_formed_from_sums_of_what_belongs_together(metrics):
    assert metrics["embedding/pooling_ratio{table=user}"]["mean"] == 3
    assert metrics["embedding/pooling_ratio{table=user}"]["max"] == 6
    repeated = metrics["embedding/duplicate_ratio{table=user}"]
    assert repeated["mean"] == pytest.approx(1 - 180 / 300)
    assert repeated["max"] == pytest.approx(0.6)


def test_what_was_never_known_is_null_and_not_listed_as_missing(tmp_path):
    summary = summary_of(write_run(tmp_path / "run"))
    nothing = dict.fromkeys(("sum", "mean", "p50", "p95", "max"))
    hottest = summary["metrics"]["embedding/hottest_1pct_ratio{table=item}"]
    assert hottest == {"unit": "ratio", **nothing}
    assert "embedding:" not in render(summary)


def test_a_run_without_tables_has_neither_metrics_nor_a_section(tmp_path):
    summary = summary_of(write_run(tmp_path / "run", rows=(), tables=()))
    assert summary["embeddings"] is None
    assert not [name for name in summary["metrics"] if name.startswith("embedding")]
    assert "mbedding" not in render(summary)


def raw_section(summary) -> list[str]:
    parts = render(summary).split("\n\n")
    return next(part for part in parts if part.startswith("Embedding lookups")).splitlines()


def section(summary) -> list[str]:
    return [" ".join(line.split()) for line in raw_section(summary)]


def test_the_section_shows_the_tables_that_read_most_first(tmp_path):
    summary = summary_of(write_run(tmp_path / "run"))
    assert section(summary) == [
        "Embedding lookups in a step lookups bytes of all repeated hot 1 % hot 10 %",
        "user 150 9.60 kB 99 % 40 % - -",
        "item 2 64 B 0.66 % - - -",
        "2 tables, 1.10 k rows, 67.2 kB: hbm, host",
        "repeated and hot rows, and all below: from the ids of 2 of 4 steps",
        "share of the step that grows with the bytes they read: not known:",
        "fewer than 100 steps of which time and bytes are known",
    ]
    assert max(map(len, raw_section(summary))) <= 100


def test_what_grows_with_the_bytes_is_not_said_to_be_theirs(tmp_path):
    summary = summary_of(write_run(tmp_path / "run"))
    found = {"known": True, "ratio": 0.6, "low_ratio": 0.5555, "high_ratio": 0.6444, "steps": 600}
    summary["embeddings"]["time"]["by_bytes"] = found
    assert section(summary)[-1] == (
        "share of the step that grows with the bytes they read, lookups or not: 60 % (56 % to 64 %)"
    )
    assert max(map(len, raw_section(summary))) <= 100


def test_tables_with_names_of_any_length_keep_the_page_in_its_width(tmp_path):
    long = replace(USER, name="a." * 100)
    summary = summary_of(write_run(tmp_path / "run", tables=(long, ITEM)))
    assert max(map(len, raw_section(summary))) <= 100


def test_long_names_of_tables_are_cut_where_they_are_the_same():
    begins = [f"linear_model.embedding_dict.feature_{number}.weight" for number in range(12)]
    ends = [f"{tower}.tower.of.the.model.embedding_dict.item_id" for tower in ("user", "item")]
    middles = [f"the.model.has.a.{number}.and.a.long.end.in.all.of.its.names" for number in "ab"]
    names = ["user", *begins, *ends, *middles]
    shown = cut_names(names, 31)
    assert len(set(shown.values())) == len(names)
    assert all(len(label) <= 31 for label in shown.values())
    assert shown["user"] == "user"
    assert [shown[name][-10:] for name in begins] == [name[-10:] for name in begins]
    assert [shown[name][:4] for name in ends] == ["user", "item"]


@pytest.fixture
def counts():
    """Row r of the users was looked up 1000 - r times; inputs of one user each."""
    counts = AccessCounts({"user": 1000, "item": 100}, seed=0)
    ids = np.repeat(np.arange(1000), 1000 - np.arange(1000))
    counts.add("user", ids)
    for epoch in (0, 1):
        counts.add_inputs(["user"], ids, np.ones((1, len(ids)), np.int64), epoch=epoch)
    return counts


def test_skew_is_that_of_the_counts(tmp_path, counts):
    skew = summary_of(write_run(tmp_path / "run", counts=counts))["embeddings"]["skew"]
    user = skew["tables"]["user"]
    total = 1000 * 1001 // 2
    assert (user["lookup_count"], user["error_count"]) == (total, 0)
    top = sum(range(901, 1001)) / total
    assert user["served"]["0.1"] == {"low": pytest.approx(top), "high": pytest.approx(top)}
    half = np.searchsorted(np.cumsum(np.arange(1000, 0, -1)), total / 2) + 1
    assert user["working_set"]["0.5"] == half
    assert skew["tables"]["item"]["lookup_count"] == 0
    assert skew["tables"]["item"]["zipf"]["exponent"] is None


def test_a_budget_says_what_its_rows_serve_and_which_inputs_they_serve_whole(tmp_path, counts):
    skew = summary_of(write_run(tmp_path / "run", counts=counts))["embeddings"]["skew"]
    budgets = {one["table_ratio"]: one for one in skew["budgets"]}
    all_bytes = 1000 * 64 + 100 * 32
    tenth = budgets[0.1]
    assert tenth["budget_bytes"] == all_bytes // 10
    rows = tenth["budget_bytes"] // 64
    share = sum(range(1001 - rows, 1001)) / (1000 * 1001 / 2)
    assert tenth["lookup_ratio"] == pytest.approx(share)
    # An input here is one lookup, so both shares are the same.
    assert tenth["all_hot"]["low"] <= share <= tenth["all_hot"]["high"]
    assert tenth["all_hot"]["inputs"] > 1000


def test_epochs_that_are_alike_have_no_drift(tmp_path):
    counts = AccessCounts({"user": 1000, "item": 100}, seed=0)
    for epoch in (0, 1):
        ids = np.random.default_rng(epoch).zipf(1.5, 20_000) % 1000
        counts.add("user", ids)
        counts.add_inputs(["user"], ids, np.full((1, 4000), 5), epoch=epoch)
    path = write_run(tmp_path / "run", counts=counts)
    (drift,) = summary_of(path)["embeddings"]["skew"]["drift"]
    assert (drift["from"], drift["to"]) == (0, 1)
    assert drift["low"] <= 0 <= drift["high"]
    assert "of the hot rows, no drift is seen from epoch 0 to 1" in "\n".join(page_of(path))


def test_another_set_of_rows_in_the_next_epoch_is_drift(tmp_path):
    counts = AccessCounts({"user": 1000, "item": 100}, seed=0)
    for epoch in (0, 1):
        ids = np.random.default_rng(epoch).zipf(1.5, 20_000) % 500 + 500 * epoch
        counts.add("user", ids)
        counts.add_inputs(["user"], ids, np.ones((1, len(ids)), np.int64), epoch=epoch)
    path = write_run(tmp_path / "run", counts=counts)
    (drift,) = summary_of(path)["embeddings"]["skew"]["drift"]
    assert drift["low"] > 0.3
    (line,) = (line for line in page_of(path) if "hot rows of epoch" in line)
    value, low, high = (f"{100 * drift[key]:.2g}" for key in ("value", "low", "high"))
    points = f"{value} ({low} to {high})"  # of all lookups, not of those that its own serve
    expected = f"of 100 lookups of epoch 1, hot rows of epoch 0 serve {points} fewer than its own"
    assert line.strip() == expected


def page_of(path) -> list[str]:
    return render(summary_of(path)).splitlines()


def test_the_page_shows_skew_and_budgets(tmp_path, counts):
    page = [" ".join(line.split()) for line in page_of(write_run(tmp_path / "r", counts=counts))]
    assert "Skew of lookups Zipf from to rows: 50 % 90 % in bytes" in page
    assert "Hottest rows that fit of tables lookups from to inputs from to" in page


@pytest.mark.parametrize("steps", [None, (4, 2)])
def test_of_some_steps_that_say_nothing_of_themselves_nothing_is_told(tmp_path, counts, steps):
    """Counts of an older trainobs, in a run of which two steps of four are sampled."""
    path = write_run(tmp_path / "run", counts=counts, steps=steps)
    skew = summary_of(path)["embeddings"]["skew"]
    assert skew["of_some_steps"]
    assert {one["lookup_ratio"] for one in skew["budgets"]} == {None}
    assert {one["all_hot"]["value"] for one in skew["budgets"]} == {None}
    assert (skew["drift"], skew["tables"]["user"]["zipf"]["exponent"]) == ([], None)
    page = " ".join("\n".join(page_of(path)).split())
    assert "rows, and their bytes: at least, since other steps look up others" in page
    assert "not known: no whole inputs are known, with which steps could be compared" in page
    assert "Zipf not known: too few steps were counted, or no whole inputs are known" in page


def test_damaged_counts_are_told_and_the_rest_is_read(tmp_path, counts):
    path = write_run(tmp_path / "run", counts=counts)
    counts_file(path, 0).write_bytes(counts_file(path, 0).read_bytes()[:-100])
    summary = summary_of(path)
    assert summary["embeddings"]["skew"] is None
    assert summary["metrics"]["embedding/lookup_count{table=user}"]["sum"] == 600
    assert [name for name in summary["lost"]["files"] if "access-counts" in name]


def test_a_damaged_part_is_left_out_and_told(tmp_path):
    path = write_run(tmp_path / "run")
    part = path / "rank=0" / "embeddings-00000.parquet"
    part.write_bytes(part.read_bytes()[:-10])
    summary = summary_of(path)
    assert str(part) in summary["lost"]["files"]
    assert not [name for name in summary["metrics"] if name.startswith("embedding")]
    assert summary["embeddings"]["steps"] == 0, "of what nobody can read nothing is known"


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ('"row_count": "many"', "tables.0.row_count in run.json is not an integer"),
        ('"rows": 1', "a table in run.json has no row_count"),
    ],
)
def test_a_table_that_makes_no_sense_is_refused(tmp_path, change, found):
    path = write_run(tmp_path / "run")
    text = (path / "run.json").read_text()
    (path / "run.json").write_text(text.replace('"row_count": 1000', change))
    with pytest.raises(RunLogError, match=found):
        RunLog.open(path)


def test_host_memory_is_shown_beside_tables_that_are_in_it(tmp_path):
    seen = {"memory__major_fault_count": [0, 0, 4, 0, 6], "memory__reclaim_ns": [0.0] * 5}
    path = write_run(tmp_path / "run", step__duration_ns=[1e9] * 5, **seen)
    page = [" ".join(line.split()) for line in page_of(path)]
    at = page.index("Host memory, where tables are, in a step")
    assert page[at + 1] == "page faults that read from a device 2.5"
    assert not page[at + 2].startswith("freeing memory")
    device = replace(USER, placement="hbm")
    path = write_run(tmp_path / "gpu", tables=(device, ITEM), step__duration_ns=[1e9] * 5, **seen)
    assert "Host memory, where tables are, in a step" not in page_of(path)


def test_the_time_of_forwards_is_that_of_sampled_steps(tmp_path):
    fields = {"lookup_count": 1, "bytes": 64}
    rows = [(step, 0, dict(fields)) for step in range(4)]
    rows[1][2].update(unique_rows=1, forward_ns=2e8)
    rows[3][2].update(unique_rows=1, forward_ns=4e8)
    rows.append((1, 1, {**fields, "unique_rows": 1, "forward_ns": 1e8}))
    summary = summary_of(write_run(tmp_path / "run", rows=rows))
    time = summary["embeddings"]["time"]
    assert time["forward_ns"] == 3e8 + 1e8 / 4  # the second table served one step of four
    assert time["forward_ratio"] == pytest.approx(0.325)
    assert summary["metrics"]["embedding/forward_ns{table=user}"]["mean"] == 3e8
    wanted = "forward of the modules that look up: 325 ms, 33 % of the step; backward and optimizer"
    assert [line for line in section(summary) if line.startswith(wanted)]


def test_a_slow_first_step_counts_once_in_the_time_of_forwards(tmp_path):
    fields = {"lookup_count": 1, "bytes": 64, "unique_rows": 1}
    rows = [(step, 0, {"lookup_count": 1, "bytes": 64}) for step in range(4)]
    rows[0][2].update(fields, forward_ns=9e8)
    rows[2][2].update(fields, forward_ns=1e8)
    time = summary_of(write_run(tmp_path / "run", rows=rows))["embeddings"]["time"]
    assert time["forward_ns"] == (9e8 + 3 * 1e8) / 4  # and not 5e8, the mean of the two
    time = summary_of(write_run(tmp_path / "first", rows=rows[:1]))["embeddings"]["time"]
    assert time["forward_ns"] == 9e8


def test_a_table_without_columns_takes_no_part_in_a_budget(tmp_path, counts):
    path = write_run(tmp_path / "run", tables=(USER, replace(ITEM, row_bytes=0)), counts=counts)
    skew = summary_of(path)["embeddings"]["skew"]
    assert skew["tables"]["item"]["lookup_count"] == 0
    assert [one["budget_bytes"] for one in skew["budgets"]] == [64, 640, 6400, 32_000]
    assert skew["drift"] == []
