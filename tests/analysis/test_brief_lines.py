"""How the report of 25 lines makes room: by whole statements, never within one."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.analysis.runs import (
    RUNS,
    damaged,
    loader_bound,
    of_64_ranks,
    with_names_of_any_kind,
    with_tables,
    write,
)
from tests.samples import batch, cells
from trainobs.analysis.summary import summarize
from trainobs.analysis.view import RunView
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.records import SETUP
from trainobs.report import brief, full, pieces
from trainobs.report.brief_lines import LIBAIO
from trainobs.report.rows import WIDTH, cut, paragraph, statement
from trainobs.runlog.reader import RunLog

LOADER = (
    "Loader: 2 workers made 19,936 batches; 19,900 of known steps, 103 ms each: "
    "computing 77 %, asleep for a device 20 %"
)


def rendered(summary) -> list[str]:
    return brief.render(summary, 0).splitlines()


def summary_of(make, tmp_path):
    return summarize(RunLog.open(make(tmp_path / "r")))


def test_a_statement_that_is_too_wide_is_wrapped_with_all_its_numbers():
    lines = statement(f"  {LOADER}")
    assert " ".join(map(str.strip, lines)) == LOADER
    assert [line[:4].strip() == "" for line in lines] == [False, True]


def test_where_there_is_one_line_whole_clauses_are_left_out():
    (line,) = statement(LOADER, 1)
    assert line == LOADER.replace("asleep for a device 20 %", "...")
    (line,) = statement(LOADER.replace("batches", "batches of images" * 2), 1)
    assert line.endswith("of known steps, ...")


def test_a_clause_in_brackets_stays_whole():
    (line,) = statement("a" * 60 + "; b (c, " + "d" * 40 + ", e)", 1)
    assert line == "a" * 60 + "; ..."


def test_what_has_no_clauses_is_cut_behind_a_word():
    assert statement("word " * 40, 1) == [("word " * 19).strip() + "..."]
    assert cut("word " * 40) == ("word " * 19).strip() + "..."
    assert len(cut("x" * 101)) == WIDTH


@pytest.mark.parametrize("make", [run for run in RUNS if run is not with_names_of_any_kind])
def test_no_line_ends_within_a_statement(tmp_path, make):
    cut_off = [
        line for line in rendered(summary_of(make, tmp_path)) if re.search(r"\w\.\.\.", line)
    ]
    # The message of another program may be longer than there is room for.
    assert [line for line in cut_off if make is not damaged] == []


@pytest.mark.parametrize("outcome", ["interpreter exit, after KeyboardInterrupt", "ok"])
def test_how_a_run_ended_is_told_to_its_end(tmp_path, outcome):
    summary = summary_of(loader_bound, tmp_path) | {"outcome": outcome, "run": "deep/" * 30}
    text = "\n".join(rendered(summary))
    assert f"ended: {outcome}\n" in text
    assert "200 steps in 6.06 s" in text


def test_by_what_a_run_was_observed_is_told_to_its_end(tmp_path):
    summary = summary_of(of_64_ranks, tmp_path) | {"level": "attached"}
    summary["host"] |= {"kernel": "6.18.44-from-a-vendor-657"}
    summary["own_cpu_ratio"] = 0.05
    text = " ".join(line.strip() for line in rendered(summary))
    assert "rank 0 of 64; observed by eBPF, from outside, which took 5 % of a CPU" in text


def test_what_may_be_said_of_ranks_fits_a_line(tmp_path):
    summary = summary_of(of_64_ranks, tmp_path)
    summary["straggler"] |= {"known": True, "rank": None, "by": "arrival"}
    told = "none makes the others wait for a tenth of the step in two thirds of the steps"
    assert f"  no straggler: {told}" in rendered(summary)


def test_long_lines_have_a_second_one_where_there_is_room(tmp_path):
    summary = summary_of(loader_bound, tmp_path)
    latency = {"count": 93_612, "p99_ns": 1.26e9}
    summary["latency"]["latency/block_read"] = latency
    summary["metrics"]["cache/read_stall_ratio"]["mean"] = 0.77
    text = " ".join(line.strip() for line in rendered(summary))
    assert "; p99 of 93,612 reads in the run 1.26 s" in text


def test_a_change_that_takes_two_lines_is_told_whole_or_not_at_all(tmp_path):
    summary = summary_of(loader_bound, tmp_path)
    long = {"change": "x", "values": {"x": 1}, "means": "so " * 40 + "far", "gain": [1.1, 1.2]}
    summary["would_help"]["changes"] = [*summary["would_help"]["changes"], long]
    text = " ".join(" ".join(rendered(summary)).split())
    assert "x: so so" not in text or text.count("so so far") == 1


def test_the_reason_why_a_probe_is_off_keeps_its_end(tmp_path):
    summary = summary_of(loader_bound, tmp_path)
    summary["capabilities"] = {"tobs_uring": "no such thing " * 30, "other": "off"}
    text = "\n".join(rendered(summary))
    assert "..., and 1 more" not in text
    assert re.search(
        r"thing\.\.\.\), and 1 more|such\.\.\.\), and 1 more|no\.\.\.\), and 1 more", text
    )


@pytest.mark.parametrize(
    ("lost", "told"),
    [
        ({"requests": 28}, "28 block requests (missing from what block devices read and wrote)"),
        ({"tasks": 1}, "1 task that was not followed (and counted in no number)"),
        ({"something": 2}, "2 something"),
    ],
)
def test_what_is_lost_is_told_with_what_lacks_it(tmp_path, lost, told):
    summary = summary_of(loader_bound, tmp_path)
    summary["lost"]["kernel"] = lost
    assert f"Lost: {told}" in rendered(summary)


@pytest.mark.parametrize(("gain", "blanks"), [([1.37, 1.66], 2), ([1.74, None], 2), ([2, 2], 11)])
def test_a_gain_is_apart_from_the_change_that_brings_it(tmp_path, gain, blanks):
    summary = summary_of(loader_bound, tmp_path)
    advice = summary["verdict"]["run"]["advice"]
    summary["verdict"]["run"]["advice"] = advice | {"text": "look at rank 1", "gain": gain}
    (line,) = (line for line in rendered(summary) if "look at rank 1" in line)
    assert line.endswith(f" times as fast{' ' * blanks}look at rank 1")


def test_what_devices_did_is_no_second_heading(tmp_path):
    summary = summary_of(loader_bound, tmp_path)
    for name in ("io/data_read_bytes", "cache/read_stall_ratio"):
        summary["metrics"][name] = {"mean": 0.0}
    for filled in (None, 3e6):
        summary["metrics"]["cache/hint_bytes"] = filled and {"mean": filled}
        (line,) = (line for line in rendered(summary) if line.startswith("Storage"))
        assert line.count(":") == 1
    assert line.endswith(": read-ahead hints brought 3 MB into the page cache a step")


def storage(path, *values: tuple, **columns: float) -> str:
    """What the report says of storage; each value is (op, class, {field: number}) of step 1."""
    metrics = ("io/data_read_bytes", "io/data_direct_read_bytes", "io/data_mmap_bytes")
    metrics += ("io/data_fault_count", "cache/miss_bytes", "cache/fault_fill_bytes")
    known = {name.replace("/", "__"): 0.0 for name in metrics} | columns
    rows = cells(4, *((1, op, kind, Role.MAIN, fields) for op, kind, fields in values))
    table = batch([SETUP, 0, 1, 2], rows, **{name: [value] * 4 for name, value in known.items()})
    lines = rendered(summarize(RunLog.open(write(path, table))))
    (at,) = (at for at, line in enumerate(lines) if line.startswith("Storage"))
    end = next(i for i, line in enumerate(lines[at + 1 :], at + 1) if line[:1] != " ")
    return " ".join(map(str.strip, lines[at:end])).partition(": ")[2]


READ = "66 kB of data read a step"


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"cache__miss_bytes": 84e3}, f"{READ}; reads brought 84 kB into the page cache"),
        ({"cache__miss_bytes": 0}, f"{READ}; reads brought nothing into the page cache"),
        ({"cache__miss_bytes": np.nan}, READ),
        ({"io__data_direct_read_bytes": 66e3}, f"{READ}, all of it past the page cache"),
        (
            {"io__data_direct_read_bytes": 6e3, "cache__miss_bytes": 60e3},
            f"{READ}, 6 kB of it past the page cache; reads brought 60 kB into the page cache",
        ),
    ],
)
def test_what_is_read_stands_beside_what_that_brought_in_and_no_share_of_it(
    columns, told, tmp_path
):
    """Small reads ask for a page again and again: 96 % of such pages may be in memory, and yet all
    bytes come from a device."""
    asked = (Op.CACHE_READ, FileClass.DATA, {"count": 500, "bytes": 2_048_000})
    columns = {"io__data_read_bytes": 66e3, "cache__hit_ratio": 0.96} | columns
    assert storage(tmp_path / "r", asked, **columns) == told


MAPPED = "data is mapped; faults or madvise brought in 410 kB a step; what is read of a mapping is"


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ({"io__data_read_bytes": 8.6, "io__data_mmap_bytes": 1e9}, f"{MAPPED} unknown"),
        ({}, f"{MAPPED} unknown"),  # a mapping that is older than the run
        (
            {"io__data_mmap_bytes": 1e9, "cache__fault_fill_bytes": 0},
            "data is mapped; faults or madvise brought in nothing; what is read of a mapping is "
            "unknown",
        ),
        (
            {"io__data_mmap_bytes": 1e9, "io__data_read_bytes": 66e3},
            f"{MAPPED} unknown 66 kB of data read by calls a step; reads brought 8 B into the page "
            "cache",
        ),
        (
            {"io__data_read_bytes": 1e6},
            "1 MB of data read a step; reads brought 8 B into the page cache some "
            f"{MAPPED} unknown reads of data slept 73 % of their time",
        ),
        (  # next to nothing
            {"io__data_read_bytes": 1e9},
            "1 GB of data read a step; reads brought 8 B into the page cache reads of data slept "
            "73 % of their time",
        ),
    ],
)
def test_mapped_data_is_told_first_unless_calls_read_more(columns, told, tmp_path):
    known = {"cache__miss_bytes": 8, "cache__fault_fill_bytes": 410e3} | columns
    slept = (Op.READ, FileClass.DATA, {"ns": 100, "wait_ns": 73})
    assert storage(tmp_path / "r", slept, cache__read_stall_ratio=0.73, **known) == told


def test_reports_say_that_libaio_was_used(tmp_path):
    call = (Op.AIO, FileClass.OTHER, {"count": 3})
    unknown = dict.fromkeys(("io__data_read_bytes", "cache__miss_bytes"), np.nan)
    assert storage(tmp_path / "r", call, **unknown) == LIBAIO
    summary = summarize(RunLog.open(tmp_path / "r"))
    assert LIBAIO in full.render(summary)
    assert pieces.piece(RunView.open(tmp_path / "r"), "summary")["unseen"] == LIBAIO
    assert LIBAIO not in full.render(summary_of(loader_bound, tmp_path / "other"))


def test_a_budget_that_serves_next_to_nothing_is_passed_over(tmp_path):
    summary = summary_of(with_tables, tmp_path)
    serving = {64: 0.0, 128: 0.009, 1024: 0.2, 4096: 0.9}
    budgets = [
        {"budget_bytes": size, "lookup_ratio": share, "holds_rows": True}
        for size, share in serving.items()
    ]
    summary["embeddings"]["skew"] = {"budgets": budgets}
    assert "the hottest 1.02 kB serve 20 %" in " ".join(rendered(summary))
    summary["embeddings"]["skew"] = {"budgets": budgets[:2]}
    assert "the hottest" not in " ".join(rendered(summary))


@pytest.mark.parametrize(
    "whole",
    [
        *("99 %", "1.31 ms", "2 min", "4.10 kB", "1 h", "23 k", "5 G", "1.20 M", "3 times"),
        *("`report --rank 1`", f"(`trainobs report {'--rank 1 ' * 8}`)", "`a b`/`c d`"),
    ],
)
def test_no_line_parts_a_number_from_its_unit_or_breaks_code(whole):
    for length in range(60, WIDTH + 4):
        lines = paragraph(f"{'x' * length} {whole}, and more")
        assert any(whole in line for line in lines)
        assert all(len(line) <= WIDTH for line in lines)


@pytest.mark.parametrize("indent", ["", "      "])
@pytest.mark.parametrize("end", ["", ",", "):"])
def test_code_that_has_room_in_a_line_is_not_broken(indent, end):
    room = WIDTH - len(indent or "  ")
    for length in range(20, room + 1 - len(end)):
        code = f"`{('word ' * 20)[: length - 3]}.`{end}"
        lines = paragraph(
            f"what comes before is 40 letters, or more {code} 3 s", indent, indent or "  "
        )
        assert any(code in line for line in lines)
        assert all(len(line) <= WIDTH for line in lines)


def test_what_is_longer_than_a_line_is_broken_all_the_same():
    lines = paragraph(f"`{'word ' * 40}` 3 steps")
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) == 3


def test_requests_that_were_lost_make_a_least_of_what_devices_read(tmp_path):
    summary = summary_of(loader_bound, tmp_path)
    summary["lost"]["kernel"] = {"requests": 1}
    told = "  at least 1 MB read from and 4 kB written to block devices a step"
    assert told in rendered(summary)
