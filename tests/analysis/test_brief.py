"""The report of 25 lines, of runs of every kind."""

from __future__ import annotations

import copy
import json
import re

import numpy as np
import pytest

from tests.analysis.runs import (
    RUNS,
    busy,
    compute_bound,
    damaged,
    killed,
    loader_bound,
    of_64_ranks,
    on_a_full_disk,
    with_gpu,
    with_names_of_any_kind,
    with_tables,
    without_ebpf,
    write,
)
from tests.samples import batch
from trainobs.analysis.summary import summarize
from trainobs.core.catalogue import METRICS
from trainobs.core.errors import TrainobsError
from trainobs.core.labels import LABELS
from trainobs.core.records import SETUP
from trainobs.report import brief, full, tables
from trainobs.runlog.reader import RunLog
from trainobs.verdict import causes, cpus, evidence
from trainobs.verdict import metric_names as names

MS = 1e6
NOW = 1_700_000_000_000_000_000 + 3600 * 10**9


def summary_of(path):
    return summarize(RunLog.open(path))


def lines_of(summary) -> list[str]:
    return brief.render(summary, NOW).splitlines()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A function that gives a summary of a kind of run, to be changed at will; made once."""
    place = tmp_path_factory.mktemp("runs")
    summaries = {}

    def summary(make):
        if make not in summaries:
            summaries[make] = summary_of(make(place / make.__name__))
        return copy.deepcopy(summaries[make])

    return summary


_UNITS = r"(?:ns|us|ms|s|min|h|B|kB|MB|GB|TB|%)"
_ONE_OF_MANY = re.compile(r"(?<![\d.,-])1 (?!us\b|ms\b|ns\b|s\b)[a-z]+s\b")
_MANY_OF_ONE = re.compile(
    r"(?<![\d.,])(?!1 )[\d,]+ (?:step|worker|batch|table|epoch|file|read|rank|checkpoint)\b"
)


def faults(text: str, longest: int | None = brief.LINES) -> list[str]:
    """What is wrong with a page."""
    lines = text.splitlines()
    found = [f"{len(lines)} lines"] if longest and len(lines) > longest else []
    for line in lines:
        found += [f"wide: {line}"] if len(line) > 100 else []
        found += [f"steers: {line}"] if not line.isprintable() else []
        found += [f"glued: {line}"] if re.search(rf"\d {_UNITS}\d", line) else []
        found += [f"nan: {line}"] if re.search(r"\b(nan|None|inf)\b", line) else []
        found += [f"number: {line}"] if _ONE_OF_MANY.search(line) else []
        found += [f"number: {line}"] if _MANY_OF_ONE.search(line) else []
        shares = [float(share) for share in re.findall(r"([\d.]+) %", line)]
        found += [f"share: {line}"] if max(shares, default=0) > 100 else []
    return found


def test_what_is_wrong_with_a_page_is_seen():
    wrong = ("1 steps", "2 step", "3 us0.1 %", "508 %", "x" * 101, "\x1b", "nan", "a\n" * 26)
    assert [line for line in wrong if not faults(line)] == []
    assert faults("1 step, 1 s, 2 steps, 100 %, 1.1 ms, 1 batch, 2,001 steps") == []


@pytest.mark.parametrize("make", RUNS)
def test_every_kind_of_run_fits_a_screen(made, make):
    summary = made(make)
    assert faults(brief.render(summary, NOW)) == []
    summary["run"] = "/" + "deep/" * 50  # the test's own directory has a length of its own
    assert faults(brief.render(summary, NOW, is_newest=True)) == []


@pytest.mark.parametrize("make", [run for run in RUNS if run is not with_names_of_any_kind])
def test_the_long_page_has_columns_plurals_and_shares_right_as_well(made, make):
    summary = made(make) | {"run": "r"}
    assert faults(full.render(summary), longest=None) == []


@pytest.mark.parametrize("make", [busy, loader_bound, of_64_ranks, with_gpu])
def test_what_a_step_is_and_had_is_told_to_its_end(made, make):
    told, events = "long " * 50 + "rule", {"backward": 1.0, "optimizer": 0.0, "fetch": 1.0}
    seen = {"pid": 1234567, "steps": told, "events_per_step": events}
    text = brief.render(made(make) | {"level": "attached", "attached": seen}, NOW)
    assert faults(text) == []
    assert f"{told}; events a step: backward 1, optimizer 0, fetch 1" in " ".join(text.split())


def test_a_run_with_everything_to_tell_fits_a_screen_and_loses_no_subject(made):
    tables, ranks, gpu, bound = map(made, (with_tables, of_64_ranks, with_gpu, loader_bound))
    summary = made(busy)
    summary |= {"embeddings": tables["embeddings"], "ranks": ranks["ranks"], "gpu": gpu["gpu"]}
    summary |= {"straggler": ranks["straggler"], "capabilities": {"tobs_uring": "off " * 50}}
    summary["verdict"]["run"] = bound["verdict"]["run"]
    summary["verdict"]["run"]["text"][0] *= 3
    summary["would_help"] = bound["would_help"]
    summary["metrics"]["cache/fault_fill_bytes"]["mean"] = 1e6
    summary["metrics"]["cache/hint_bytes"]["mean"] = 1e6
    summary["lost"]["files"] = {"a": "damaged", "b": "damaged"}
    summary["lost"]["steps"] = {"runlog": 7}
    summary["metrics"]["fae/hot_lookup_ratio"] = {"mean": 0.9}
    summary["step"] |= {"first_is_long": True, "first_ns": 5e10, "first_share": 0.89}
    text = brief.render(summary, NOW)
    assert faults(text) == []
    begins = ("Verdict:", "What would help", "A step:", "Loader:", "Storage", "Checkpoints:")
    begins += (
        "Embeddings:",
        "Hot rows:",
        "Ranks:",
        "GPU:",
        "Lost:",
        "Unreadable:",
        "Off:",
        "More:",
    )
    assert [one for one in begins if f"\n{one}" not in text] == []


def edited(summary, random: np.random.Generator):
    """The same run with other numbers, of which any may be unknown, nothing or huge."""
    other = copy.deepcopy(summary)
    for name, values in other["metrics"].items():
        unit = METRICS[name].unit if name in METRICS else "ratio"
        factor = float(random.choice([0, 1e-9, 1e-3, 1, 1e3, 1e9]))
        unknown = random.random() < 0.2
        for key in ("sum", "mean", "p50", "p95", "max"):
            if values[key] is not None:
                value = values[key] * factor
                values[key] = None if unknown else min(1.0, value) if unit == "ratio" else value
    if other["step"]:
        parts = other["step"]["parts"]
        other["step"]["parts"] = {
            n: v * float(random.choice([0, 1e-6, 1])) for n, v in parts.items()
        }
    other["checkpoints"] = [
        {**dict.fromkeys(("written_bytes", "blocking_ns"), 10.0**n), "step": n} for n in range(3)
    ]
    return other


def test_runs_with_any_numbers_fit_a_screen(made):
    random = np.random.default_rng(0)
    summaries = [made(make) for make in RUNS]
    found = [
        fault
        for summary in summaries
        for _ in range(20)
        for fault in faults(brief.render(edited(summary, random), NOW))
    ]
    assert found == []


def test_a_loader_bound_run_word_for_word(made):
    summary = made(loader_bound)
    named = {**summary, "run": "runs/one", "has_curves": True}
    assert brief.render(named, NOW).splitlines() == [
        "trainobs report of runs/one: 200 steps in 6.06 s, ended: ok",
        "  on node7, Linux 6.18; observed by eBPF",
        "",
        "Verdict: loader-bound: 10 ms a step, 33 % of it; cause: the loader's own computation",
        "  wait: loader computes                   8.50 ms       28 %",
        "  wait: loader reads from storage            1 ms      3.3 %",
        "  wait: batches made, not yet received     500 us      1.7 %",
        "",
        "What would help, as predicted",
        "  1.37 to 1.66 times as fast  num_workers=2",
        "  1.37 to 1.66 times as fast  transform=0.5x: half the CPU time of making a batch",
        "",
        "A step: 30 ms, the mean of 199 steps after the first; of these p95 30 ms, slowest 30 ms",
        "  forward                                   20 ms       67 %  ########################",
        "  waiting for data                          10 ms       33 %  ############",
        "",
        "Loader: 1 worker made 200 batches, 29.9 ms each: computing 100 %",
        "  what was waited for: computing 85 %, asleep for a device 10 %",
        "Storage, first step included: 2 MB of data read a step",
        "  1 MB read from and 4 kB written to block devices a step",
        "",
        "More: `trainobs report runs/one --full`, `--html FILE`, `tensorboard --logdir runs/one`",
    ]


def test_shares_of_the_step_are_those_of_the_verdict(made):
    summary = made(loader_bound)
    verdict, step = summary["verdict"]["run"], summary["step"]
    assert step["mean_ns"] == verdict["step_ns"] == 30 * MS, "without the slow first step"
    assert step["parts"]["loader/wait_ns"] == verdict["ns_per_step"] == 10 * MS
    assert sum(step["parts"].values()) == pytest.approx(step["mean_ns"])


def test_a_healthy_run_says_that_nothing_would_help(made):
    page = "\n".join(lines_of(made(compute_bound)))
    assert "Verdict: compute-bound: 100 ms a step" in page
    assert "What would help: not known; no change of the loader" in page


def test_what_is_unknown_without_ebpf_is_said(made):
    lines = lines_of(made(without_ebpf))
    storage = "Storage, first step included: 3 MB read by calls a step, of which files is unknown"
    assert storage in lines
    assert "Loader: waited for 60 ms a step; how its batches were made was not recorded" in lines
    (why,) = (line for line in lines if line.startswith("Not eBPF, because: "))
    assert "Operation not permitted: the process has neither CAP_BPF" in why


def test_why_there_is_no_ebpf_is_told_with_the_remedy(made):
    summary = made(without_ebpf)
    path = f"/home/{'a' * 60}/site-packages/trainobs/probes/objects/trainobs.x86_64.bpf.o"
    error = TrainobsError("cannot load the probes", f"{path} does not exist", "make bpf")
    summary["capabilities"] = {"ebpf": str(error)}
    lines = lines_of(summary)
    at = next(n for n, line in enumerate(lines) if line.startswith("Not eBPF, because: "))
    assert "".join(line.strip() for line in lines[at : at + 2]).endswith("bpf.o does not exist")
    assert "cannot load" not in "".join(lines)
    assert lines[at + 2] == "  To get it: make bpf"
    summary |= {"level": "ebpf", "capabilities": {"io": str(error)}}
    lines = lines_of(summary)
    at = next(n for n, line in enumerate(lines) if line.startswith("Off: io (/home/"))
    assert lines[at + 1].endswith(")")


def test_tables_ranks_and_the_gpu_have_a_line_each(made):
    assert "Embeddings: 13 tables of 15.1 kB, 6.14 kB read a step" in lines_of(made(with_tables))
    lines = lines_of(made(of_64_ranks))
    at = lines.index("Ranks: 64; median steps 100 ms (rank 0) to 106 ms (rank 6)")
    assert lines[at + 1].startswith("  STRAGGLER: rank 3 makes the others wait for 59 ms a step")
    assert any(
        line == "GPU: A board: multiprocessors at work 50 %, 650 W, clocks held down by heat 3 %"
        for line in lines_of(made(with_gpu))
    )


def test_tables_that_read_the_same_are_shown_by_size(made, monkeypatch):
    monkeypatch.setattr(tables, "_SHOWN", 10)
    text = full.render(made(with_tables))
    shown = re.findall(r"^  (\d+)a\.a\.", text, re.MULTILINE)
    assert shown == [str(n) for n in range(11, 1, -1)]
    assert "  and 2 more tables" in text


def test_of_many_ranks_the_long_page_shows_the_straggler_and_the_slowest(made):
    text = full.render(made(of_64_ranks))
    ranks = [int(rank) for rank in re.findall(r"^  rank (\d+) ", text, re.MULTILINE)]
    assert ranks[:4] == [3, 6, 13, 20]
    assert len(ranks) == 16
    assert "  and 48 more ranks" in text


def test_unreadable_files_are_named_with_the_reason(made):
    lines = lines_of(made(damaged))
    at = next(n for n, line in enumerate(lines) if line.startswith("Unreadable"))
    assert "rank=0/kernel-00000.parquet: not a whole Parquet file" in lines[at]
    assert lines[at + 1].endswith(", and 1 more")


def test_a_full_disk_is_told_as_a_full_disk(made):
    lines = lines_of(made(on_a_full_disk))
    assert "Lost: the disk was full: 1 step is not in the run log" in lines


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("EDQUOT: Disk quota exceeded", "a quota was used up: "),
        ("EFBIG: File too large", "files may not be that large (`ulimit -f`): "),
        ("EROFS: Read-only file system", "the disk refused (Read-only file system): "),
        ("ValueError: it broke", "a fault of trainobs (ValueError: it broke): "),
        ("OSError: Writer is closed", "refused (Writer is closed): "),  # no disk
        ("", ""),  # as older versions wrote it
    ],
)
def test_what_lost_steps_is_told_by_its_name(fault, told, tmp_path):
    lost = {"lost_steps": {"runlog": 7}} | ({"lost_because": {"runlog": fault}} if fault else {})
    lines = lines_of(summary_of(loader_bound(tmp_path, end={"outcome": "ok", **lost})))
    assert f"Lost: {told}7 steps are not in the run log" in lines


def test_a_killed_run_on_a_disk_that_is_full_says_that_steps_may_be_missing(made):
    summary = made(killed)
    assert summary["lost"]["free_bytes"] > 0
    summary["lost"]["free_bytes"] = 4096
    told = "Lost: the disk of the run is full (4.10 kB left): its last steps may be missing"
    assert told in brief.render(summary, NOW).splitlines()


def test_a_run_that_has_not_ended_says_how_old_its_newest_step_is(tmp_path):
    path = killed(tmp_path / "r")
    summary = summary_of(path)
    assert summary["newest"]["number"] == 199
    later = summary["newest"]["wall_ns"] + 4 * 10**9
    text = brief.render(summary, later)
    assert "not ended, or killed\n  newest step 4 s ago; on node7" in text
    assert "newest step" not in brief.render(summary, later - 5 * 10**9), "another machine's clock"


@pytest.mark.parametrize(
    ("rows", "end", "why"),
    [
        ({}, None, "The run is still in its first step, was killed in it or"),
        ({}, {"outcome": "ok"}, "No fetch of a batch was seen, and no step was found"),
        ({"loader__wait_ns": [1e9]}, {"outcome": "ok"}, "Batches were fetched, and no step was fo"),
        ({"phase__validation_ns": [2e9]}, {"outcome": "ok"}, "Validation ran for 2 s, and no tra"),
        ({}, {"outcome": "exception: KeyError"}, "a step was complete: exception: KeyError."),
        ({}, {"outcome": "given up: OSError"}, "Observing ended by a fault of trainobs"),
        ({}, {"outcome": "ok", "lost_steps": {"runlog": 9}}, "could not be stored"),
    ],
)
def test_a_run_without_steps_says_why(tmp_path, rows, end, why):
    path = write(tmp_path / "r", batch([SETUP], step__duration_ns=[5e9], **rows), end=end)
    assert why in "\n".join(lines_of(summary_of(path)))


def test_a_run_whose_steps_cannot_be_read_says_so(tmp_path):
    path = compute_bound(tmp_path / "r")
    (path / "rank=0" / "steps-00000.parquet").write_bytes(b"PAR1")
    text = "\n".join(lines_of(summary_of(path)))
    assert "1 file of steps cannot be read; the reason is below." in text
    assert "Unreadable: rank=0/steps-00000.parquet: not a whole Parquet file" in text


def test_the_newest_run_of_a_directory_is_named(tmp_path):
    compute_bound(tmp_path / "a")
    path = compute_bound(tmp_path / "b")
    text = json.loads((path / "run.json").read_text())
    text["clock"]["wall_ns"] += 1
    (path / "run.json").write_text(json.dumps(text))
    assert RunLog.open(tmp_path).path == path
    summary = summary_of(tmp_path) | {"run": "runs/b"}
    first = brief.render(summary, NOW, is_newest=True).splitlines()[0]
    assert first.startswith("trainobs report of runs/b (the newest): 200 steps in ")


def test_everything_that_evidence_may_be_has_a_name_for_people():
    shown = {*evidence.HELD_UP, *evidence.OFF_CPU, names.START}
    shown |= {*names.PHASES, *names.SPLIT, *names.SLEEPS}
    for metrics in (*evidence._METRICS_OF.values(), *evidence._PARTS_OF.values()):
        shown |= {*metrics}
    shown |= {
        *causes._CONTENTION,
        *cpus._WAITING,
        *cpus._USING,
        "sched/main_offcpu_ns",
        "io/fsync_ns",
    }
    shown |= {"io/checkpoint_write_ns", "sched/main_iowait_ns", "sched/worker_iowait_ns"}
    assert sorted(shown - LABELS.keys()) == [names.NAMED]  # which evidence tells one by one


@pytest.mark.parametrize("make", [loader_bound, with_names_of_any_kind])
def test_what_explains_numbers_that_seem_to_contradict_the_verdict_is_told(made, make):
    summary = made(make)
    note = "batches that are made are received late"
    summary["verdict"]["run"]["notes"] = [note]
    lines = lines_of(summary)
    assert f"  {note}" in lines
    assert len(lines) <= brief.LINES


@pytest.mark.parametrize(
    ("metric", "told"),
    [
        ("sched/main_stopped_ns", "Stopped: a signal (SIGSTOP, Ctrl-Z)"),
        ("sched/frozen_ns", "Frozen: the control group of the run"),
    ],
)
def test_how_long_a_run_was_stopped_is_told_where_it_matters(made, metric, told):
    summary, word = made(compute_bound), told.split(":")[0]
    assert not any(word in line for line in lines_of(summary))
    stopped = summary["metrics"][metric]
    stopped["sum"] = 0.005 * summary["training_ns"]
    assert not any(word in line for line in lines_of(summary))
    stopped["sum"] = 3e9 + 0.02 * summary["training_ns"]
    assert told in "\n".join(lines_of(summary))
