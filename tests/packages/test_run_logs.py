"""Where the tab looks for run logs, and where it does not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from trainobs_tensorboard import run_logs
from trainobs_tensorboard.run_logs import RunLogs, directories, version_of


def make_run(path: Path, modified_s: float | None = None) -> Path:
    (path / "rank=0").mkdir(parents=True)
    (path / "run.json").write_text("{}")
    for file in (path / "run.json", path / "rank=0"):
        os.utime(file, None if modified_s is None else (modified_s, modified_s))
    return path


def names(root: Path) -> list[str]:
    return [run.name for run in RunLogs({"": root}).found().runs]


def test_runs_at_any_level_are_found_the_last_changed_first(tmp_path):
    make_run(tmp_path / "old", 100)
    make_run(tmp_path / "a" / "b" / "new", 300)
    make_run(tmp_path / "between", 200)
    assert names(tmp_path) == ["a/b/new", "between", "old"]


def test_a_file_written_into_a_rank_changes_its_run(tmp_path):
    make_run(tmp_path / "begun first", 100)
    make_run(tmp_path / "begun last", 200)
    (tmp_path / "begun first" / "rank=0" / "steps-00000.parquet").touch()
    assert names(tmp_path) == ["begun first", "begun last"]


def test_the_log_directory_itself_may_be_a_run(tmp_path):
    assert names(make_run(tmp_path / "run")) == ["run"]


def test_a_run_json_alone_is_no_run_log(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert names(tmp_path) == []


def test_bounds_leave_out_and_say_so(tmp_path, monkeypatch):
    for number in range(5):
        make_run(tmp_path / str(number))
    assert RunLogs({"": tmp_path}).found().complete
    monkeypatch.setattr(run_logs, "RUNS", 3)
    found = RunLogs({"": tmp_path}).found()
    assert (len(found.runs), found.complete) == (3, False)


def test_a_search_ends_in_time(tmp_path, monkeypatch):
    make_run(tmp_path / "run")
    monkeypatch.setattr(run_logs, "SEARCH_S", 0)
    found = RunLogs({"": tmp_path}).found()
    assert (found.runs, found.complete) == ((), False)


def test_runs_below_the_last_level_are_left_out(tmp_path):
    last = tmp_path.joinpath(*["level"] * run_logs.LEVELS)
    make_run(last)
    make_run(last / "deeper")
    assert names(tmp_path) == [str(last.relative_to(tmp_path))]


def test_hidden_directories_are_left_out(tmp_path):
    make_run(tmp_path / ".venv" / "run")
    assert names(tmp_path) == []


def test_links_lead_to_runs_inside_alone_and_each_run_is_named_once(tmp_path):
    logs = tmp_path / "logs"
    make_run(logs / "b" / "run")
    make_run(tmp_path / "outside" / "run")
    (logs / "a").symlink_to(logs / "b" / "run")
    (logs / "out").symlink_to(tmp_path / "outside")
    (logs / "round").symlink_to(logs)
    assert names(logs) == ["a"]
    (logs / "a").unlink()
    assert names(logs) == ["b/run"]


def test_the_log_directory_itself_may_be_a_link(tmp_path):
    make_run(tmp_path / "real" / "run")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert names(tmp_path / "link") == ["run"]


def test_a_run_that_became_a_link_to_outside_is_refused(tmp_path):
    logs, outside = tmp_path / "logs", make_run(tmp_path / "outside")
    run = make_run(logs / "run")
    runs = RunLogs({"": logs})
    assert runs.directory("run") == run
    run.rename(tmp_path / "elsewhere")
    assert runs.directory("run") is None
    run.symlink_to(outside)
    assert runs.directory("run") is None


@pytest.mark.parametrize("key", ["..", "/", "../outside", "logs/../../outside", "", ".", "run/"])
def test_only_what_was_found_has_a_directory(tmp_path, key):
    make_run(tmp_path / "outside")
    make_run(tmp_path / "logs" / "run")
    assert RunLogs({"": tmp_path / "logs"}).directory(key) is None


@pytest.mark.parametrize(
    ("raw", "name", "key"),
    [
        (b"a b", "a b", "a%20b"),
        (b"50%25", "50%25", "50%2525"),
        (b"\xff", r"\xff", "%FF"),
        (rb"\xff", r"\xff", "%5Cxff"),
        (b"<script>\n", "<script>\n", "%3Cscript%3E%0A"),
    ],
)
def test_any_name_has_a_key_of_its_own(tmp_path, raw, name, key):
    run = make_run(tmp_path / os.fsdecode(raw))
    runs = RunLogs({"": tmp_path})
    assert [(found.name, found.key) for found in runs.found().runs] == [(name, key)]
    assert runs.directory(key) == run


def test_a_search_is_made_once_for_some_seconds(tmp_path, monkeypatch):
    runs = RunLogs({"": tmp_path})
    assert runs.found().runs == ()
    make_run(tmp_path / "run")
    assert runs.found().runs == ()
    later = time.monotonic() + run_logs.FRESH_S
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert len(runs.found().runs) == 1


def test_a_directory_that_may_not_be_read_is_left_out(tmp_path):
    make_run(tmp_path / "run")
    (tmp_path / "closed").symlink_to("/proc/1/fdinfo")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "not there yet") == []


def test_a_change_of_any_file_is_another_version(tmp_path):
    run = make_run(tmp_path / "run")
    versions = [version_of(run)]
    for name in ("rank=0/steps-00000.parquet", "rank=1/rank.json", "access-counts/rank=0.npz"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).touch()
        versions.append(version_of(run))
    os.utime(run / "run.json", (5, 5))
    versions.append(version_of(run))
    assert len(set(versions)) == len(versions)
    assert version_of(run) == versions[-1]


@pytest.mark.parametrize(
    ("logdir", "spec", "expected"),
    [
        ("/a", None, {"": "/a"}),
        ("/a:b,c", None, {"": "/a:b,c"}),
        ("", "one:/a,two:/b", {"one": "/a", "two": "/b"}),
        (None, "/a:b,/c", {"/a:b": "/a:b", "/c": "/c"}),
        ("gs://bucket/runs", None, {}),
        (None, "far:s3://bucket,near:/a", {"near": "/a"}),
        (None, "hdfs://host:9000/x", {}),
        (None, None, {}),
    ],
)
def test_directories_are_read_as_tensorboard_reads_them(logdir, spec, expected):
    assert directories(logdir, spec) == {name: Path(path) for name, path in expected.items()}


def test_a_relative_directory_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert directories("runs", None) == {"": tmp_path / "runs"}


def test_runs_of_several_directories_have_their_names(tmp_path):
    for name in ("a", "b"):
        make_run(tmp_path / name / "run")
    found = RunLogs(directories(None, f"one:{tmp_path}/a,two:{tmp_path}/b")).found()
    assert {run.name for run in found.runs} == {"one/run", "two/run"}
    assert len({run.path for run in found.runs}) == 2


def test_a_way_back_out_of_a_link_leads_where_the_kernel_says(tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    (tmp_path / "far" / "one").mkdir(parents=True)
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "far" / "one")
    monkeypatch.chdir(tmp_path)
    (root,) = directories("runs/link/..", None).values()
    assert root.samefile(tmp_path / "far")


def test_a_link_to_itself_hides_nobody(tmp_path):
    for name in ("a", "z"):
        (tmp_path / name / "rank=0").mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "m").symlink_to(tmp_path / "m")
    assert {run.name for run in RunLogs({"": tmp_path}).found().runs} == {"a", "z"}


def test_a_rank_that_is_a_link_is_no_run(tmp_path):
    (tmp_path / "far" / "rank=0").mkdir(parents=True)
    (tmp_path / "logs" / "run").mkdir(parents=True)
    (tmp_path / "logs" / "run" / "run.json").write_text("{}")
    (tmp_path / "logs" / "run" / "rank=0").symlink_to(tmp_path / "far" / "rank=0")
    assert RunLogs({"": tmp_path / "logs"}).found().runs == ()
