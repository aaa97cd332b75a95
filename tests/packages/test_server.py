"""The tab in a TensorBoard that runs: what it serves, what it refuses, and what it survives."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.packages.conftest import STORED_RUN, Board

HOSTILE = "<script>alert(1)<script>\u202e\x1b[31m\n&?#%2e ü"


@pytest.fixture(scope="module")
def logs(tmp_path_factory) -> Path:
    """A log directory, beside a run log that is not in it."""
    logs = tmp_path_factory.mktemp("all") / "logs"
    for name in ("first/trainobs", HOSTILE, "live", "damaged"):
        shutil.copytree(STORED_RUN, logs / name)
    shutil.copytree(STORED_RUN, logs.parent / "outside")
    (logs / "out").symlink_to(logs.parent / "outside")
    (logs / "damaged" / "run.json").write_text("{")
    later = json.loads((logs / "live" / "run.json").read_text())
    later["clock"]["wall_ns"] += 1  # another run than "live", not a copy of it
    (logs / "first" / "trainobs" / "run.json").write_text(json.dumps(later))
    return logs


@pytest.fixture(scope="module")
def board(start, logs) -> Board:
    return start(logs)


@pytest.fixture(scope="module", params=["pyarrow", "trainobs"])
def crippled(request, start, logs) -> tuple[str, Board]:
    """A TensorBoard to which a package is broken, and the package."""
    return request.param, start(logs, broken=request.param)


def test_tensorboard_has_the_tab_and_its_frame(board):
    tab = board.get("/data/plugins_listing").json()["trainobs"]
    assert (tab["tab_name"], tab["enabled"]) == ("Trainobs", True)
    assert tab["loading_mechanism"]["module_path"] == "/data/plugin/trainobs/index.js"
    assert b"./index.js" in board.get("/data/plugin_entry.html?name=trainobs").body


def test_the_page_is_served(board):
    for path in ("/index.js", "/static/tab.js"):
        answer = board.tab(path)
        assert answer.status == 200
        assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
        assert b"export" in answer.body
        assert board.tab(path, **{"If-None-Match": answer.headers["ETag"]}).status == 304


def test_runs_are_listed_by_names_that_are_text(board, logs):
    answer = board.tab("/runs").json()
    assert answer["complete"]
    names = {run["name"] for run in answer["runs"]}
    assert names == {"first/trainobs", "live", "damaged", HOSTILE}
    assert all(run["run"].isascii() for run in answer["runs"])


def test_each_run_has_data_whatever_its_name_is(board):
    for run in board.tab("/runs").json()["runs"]:
        answer = board.data_of(run["run"])
        if run["name"] == "damaged":
            assert answer.status == 400
            assert "run.json" in answer.error() or "cannot be read" in answer.error()
        else:
            assert answer.status == 200
            assert "error" not in answer.json()


def test_data_is_sent_again_after_a_change_alone(board, logs):
    answer = board.data_of("live")
    same = {"If-None-Match": answer.headers["ETag"]}
    assert board.data_of("live", **same).status == 304
    steps = logs / "live" / "rank=0" / "steps-00000.parquet"
    changed = steps.with_name(".new")
    changed.write_bytes(steps.read_bytes())
    changed.replace(steps)
    again = board.data_of("live", **same)
    assert again.status == 200
    assert again.headers["ETag"] != answer.headers["ETag"]


def test_a_run_is_compared_with_another_and_again_after_a_change_of_either(board, logs):
    ask = "/data?run=live&with=first/trainobs&path=compare"
    answer = board.tab(ask)
    assert answer.status == 200
    runs = answer.json()["runs"]
    assert [run["run"] for run in runs["A"]] == [str(logs / "first" / "trainobs")]
    assert [run["run"] for run in runs["B"]] == [str(logs / "live")]
    same = {"If-None-Match": answer.headers["ETag"]}
    assert board.tab(ask, **same).status == 304
    for name in ("live", "first/trainobs"):
        (logs / name / "run.json").touch()
        changed = board.tab(ask, **same)
        assert changed.status == 200
        same = {"If-None-Match": changed.headers["ETag"]}


def test_runs_that_cannot_be_compared_are_told(board):
    for query, found in {
        "run=live&path=compare": "'compare', of ",
        "run=live&with=live&path=compare": "are the same run",
        "run=live&with=damaged&path=compare": "damaged cannot be read",
    }.items():
        answer = board.tab(f"/data?{query}")
        assert answer.status == 400
        assert found in answer.error()


def test_large_answers_are_compressed_for_who_takes_it(board):
    plain = board.data_of("live")
    packed = board.data_of("live", **{"Accept-Encoding": "gzip"})
    assert plain.headers["Content-Encoding"] is None
    assert len(plain.body) > 1000
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body


@pytest.mark.parametrize(
    "key", ["..", "../outside", "out", "/etc", "live/../../outside", "live/", "nothing", "", "\0"]
)
def test_a_run_that_is_not_in_the_list_is_refused(board, key):
    beside = board.tab(f"/data?run=live&with={quote(key)}&path=compare")
    for answer in (board.data_of(key), beside):
        assert answer.status == 404
        assert answer.error().startswith("There is no run to show.\n  found: ")


def test_a_request_without_a_run_is_refused(board):
    assert board.tab("/data").status == 400
    assert board.tab("/data?run").status == 404


@pytest.mark.parametrize(
    "name",
    [
        "nothing.js",
        "../page.py",
        "../__init__.py",
        "%2e%2e/page.js",
        "..%2fpage.js",
        "/etc/passwd",
        "tab.js/",
        ".hidden.js",
        "tab.js%00.css",
        "%ff.js",
        "a\\..\\tab.js",
        "a" * 5000 + ".js",
    ],
)
def test_only_files_of_the_page_are_served(board, name):
    answer = board.tab(f"/static/{name}")
    assert answer.status == 404, answer
    assert "pip install --upgrade trainobs" in answer.error()


def test_tensorboard_has_nothing_to_complain_of(board):
    for path in ("/index.js", "/runs", "/data?run=live", "/data?run=damaged", "/static/nothing.js"):
        answer = board.tab(path)
        board.tab(path, **{"If-None-Match": answer.headers["ETag"] or ""})
    output = board.output.read_text()
    assert "Traceback" not in output
    assert "nosniff" not in output
    assert "Content-Type" not in output


def test_with_a_broken_package_tensorboard_starts_and_the_tab_says_what_is_wrong(crippled):
    package, board = crippled
    tabs = board.get("/data/plugins_listing").json()
    assert tabs["trainobs"]["enabled"]
    assert "scalars" in tabs
    assert board.tab("/index.js").status == 200
    assert len(board.tab("/runs").json()["runs"]) == 4
    answer = board.data_of("live")
    assert answer.status == 500
    failed, found, do = answer.error().split("\n")
    assert failed == "This cannot be shown."
    assert found == "  found: ImportError: undefined symbol: here"
    assert do.startswith("  do:    see that `trainobs report` works")
    assert board.tab("/static/tab.js").status == (500 if package == "trainobs" else 200)
    assert "Traceback" not in board.output.read_text()
