"""`trainobs report` as a user calls it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from trainobs import __version__
from trainobs.cli import main


def trainobs(*arguments, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainobs", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, **options)


def test_ctrl_c_before_a_command_has_begun_shows_no_traceback(tmp_path):
    (tmp_path / "numpy.py").write_text("print('here', flush=True)\nimport time\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "trainobs", "doctor"]
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}, **pipes) as job:
        assert job.stdout.readline() == b"here\n"
        job.send_signal(signal.SIGINT)
        assert job.communicate(timeout=30) == (b"", b"")
    assert job.returncode == -signal.SIGINT


def test_a_report_is_text_or_json(write_run, capsys):
    path = write_run()
    assert main(["report", str(path)]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.endswith("/run: 4 steps in 10 ms, not ended, or killed")
    assert main(["report", str(path), "--full"]) == 0
    assert capsys.readouterr().out.startswith(f"trainobs report of {path}\n")
    assert main(["report", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["metrics"]["io/data_read_bytes"]["sum"] == 101_000


def test_runs_are_compared_as_they_are_named_and_a_newer_one_is_told_of(
    write_run, capsys, monkeypatch
):
    path = write_run("run", wall_ns=1)
    later = write_run("run-2", wall_ns=2, settings={"beside": "run"})
    other = write_run("other", wall_ns=3)
    monkeypatch.chdir(path.parent)
    for sides in ([str(path), str(later)], [path.name, later.name]):
        assert main(["compare", *sides]) == 0
        assert capsys.readouterr().err == ""
    assert main(["compare", str(path), str(other)]) == 0
    said = capsys.readouterr().err
    assert said == f"trainobs: {path} itself is compared; the newest run for it is {later}\n"


def test_a_report_is_of_the_newest_run_that_was_to_go_to_a_directory(write_run, capsys):
    path = write_run()
    later = write_run("run-2", wall_ns=2, settings={"beside": "run"})
    for command in (["report", str(path)], ["report", str(path), "--step", "1"]):
        assert main(command) == 0
        said = capsys.readouterr()
        assert later.name in said.out.splitlines()[0]
        assert said.err == (
            f"trainobs: the newest run for {path} is {later}; "
            f"to see {path} itself, give {path}/run.json\n"
        )
    for its_own in (f"{path}/run.json", str(later)):
        assert main(["report", its_own]) == 0
        said = capsys.readouterr()
        assert said.err == ""
        assert "(the newest)" not in said.out
    assert main(["report", str(later), "--after", str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_the_module_runs(write_run):
    done = trainobs("report", write_run())
    assert (done.returncode, done.stderr) == (0, "")
    assert "A step: 3 ms, the mean of 3 steps after the first" in done.stdout


def test_a_fault_is_three_lines_and_status_2(tmp_path):
    done = trainobs("report", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"There is no run to read in {tmp_path}.\n"
        "  found: no run.json of trainobs in it, nor four levels below\n"
        "  do:    give the directory that holds run.json, or one above it\n"
    )


def test_a_report_starts_no_threads_of_arrow(write_run):
    """Of 40 processes that ended as one of them began one was aborted."""
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from trainobs.analysis.summary import summarize\n"
        "from trainobs.runlog.reader import RunLog\n"
        "def threads():\n"
        "    tasks = Path('/proc/self/task').iterdir()\n"
        "    return sum('jemalloc' not in (task / 'comm').read_text() for task in tasks)\n"
        "before = threads()\n"
        "summarize(RunLog.open(Path(sys.argv[1])))\n"
        "print(before, threads())\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, write_run()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    before, after = done.stdout.split()
    assert before == after


@pytest.mark.parametrize("option", ["", "--json"])  # less and more than Python buffers
def test_a_reader_that_leaves_early_is_no_fault(write_run, option):
    command = f"{sys.executable} -m trainobs report {write_run()} {option} | true"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    options = {"shell": True, "executable": "/bin/bash", "capture_output": True}
    done = subprocess.run(f"set -o pipefail; {command}", text=True, env=environment, **options)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("option", ["", "--json"])  # less and more than Python buffers
@pytest.mark.parametrize(
    ("redirection", "found"), [(">&-", "output is closed"), (">/dev/full", "No space left")]
)
def test_an_output_that_refuses_is_three_lines_and_status_2(write_run, redirection, found, option):
    command = f"{sys.executable} -m trainobs report {write_run()} {option} {redirection}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, shell=True, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    failed, reason, do = done.stderr.splitlines()
    assert failed == "The output cannot be written."
    assert found in reason
    assert do.startswith("  do:    ")


def test_an_output_without_the_character_gets_its_escape(write_run):
    path = write_run("l\u00e4uft")
    command = [sys.executable, "-m", "trainobs", "report", path]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONIOENCODING": "ascii",
    }
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert "l\\xe4uft" in done.stdout


def test_the_doctor_speaks_text_and_json(capsys, monkeypatch):
    found = {"level": "timing", "complete": True, "switched_off": False}
    monkeypatch.setattr("trainobs.probes.doctor.examine", lambda: found)
    monkeypatch.setattr("trainobs.probes.doctor.render", lambda found: f"at {found['level']}")
    monkeypatch.setattr("trainobs.gpu.doctor.examine", lambda: {"driver": "999"})
    monkeypatch.setattr("trainobs.gpu.doctor.render", lambda found: f"driver {found['driver']}")
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out == "at timing\n\ndriver 999\n"
    assert main(["doctor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {**found, "gpu": {"driver": "999"}}
    found["complete"] = False
    assert main(["doctor"]) == main(["doctor", "--json"]) == 1
    found |= {"complete": True, "switched_off": True}
    assert main(["doctor"]) == 1


def test_the_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"trainobs {__version__}\n"


def test_a_command_is_needed(capsys):
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("--watch --json", "--json with --watch"),
        ("--watch --html x.html", "--html with --watch"),
        ("--watch --rank 0", "--rank with --watch"),
        ("--after old --step 0", "--step with --after"),
        ("--after old --full", "--full with --after"),
        ("--after old --rank 1", "--rank with --after"),
        ("--step 5 --html x.html", "--step with --html"),
        ("--io --html x.html", "--io with --html"),
        ("--html x.html --json", "--json with --html"),
        ("--full --json", "--full with --json"),
    ],
)
def test_an_option_that_would_be_left_out_is_refused(write_run, words, found, capsys):
    assert main(["report", str(write_run()), *words.split()]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert f"  found: {found}, which " in said.err


def test_options_that_go_together_are_taken(write_run, tmp_path, capsys):
    run = str(write_run())
    for words in ("--step 1 --json --rank 0", "--full --rank 0", f"--html {tmp_path}/a --rank 0"):
        assert main(["report", run, *words.split()]) == 0
    assert main(["compare", run, run, "--html", "x.html", "--json"]) == 2
    assert "--json with --html" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--io"], ["--io", "--json"]])
def test_files_that_were_not_counted_are_no_answer(write_run, words, capsys):
    assert main(["report", str(write_run()), *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("This run did not count what it read of each file.\n  found: ")


def test_a_file_is_not_waited_for(tmp_path, write_run, capsys):
    (tmp_path / "file").write_text("")
    assert main(["report", str(tmp_path / "file"), "--watch"]) == 2
    assert "a file, where a directory was expected" in capsys.readouterr().err
    ended = write_run(summary={"outcome": "ok"})
    assert main(["report", str(ended / "run.json"), "--watch"]) == 0


def test_a_run_json_of_another_tool_hides_no_run_below_it(tmp_path, write_run, capsys):
    (tmp_path / "run.json").write_text('{"sweep": 3}')
    assert main(["report", str(tmp_path)]) == 2
    assert "not written by trainobs" in capsys.readouterr().err
    write_run("below")
    assert main(["report", str(tmp_path)]) == 0
    assert "4 steps in 10 ms" in capsys.readouterr().out


def test_a_run_without_its_steps_says_that_they_were_left_behind(write_run, capsys):
    path = write_run(summary={"outcome": "ok"})
    shutil.rmtree(path / "rank=0")
    assert main(["report", str(path)]) == 0
    assert "There is no directory rank=0 in it" in capsys.readouterr().out


def test_of_a_prediction_the_run_alone_is_required(capsys):
    with pytest.raises(SystemExit):
        main(["whatif"])
    assert capsys.readouterr().err.endswith("the following arguments are required: run\n")


@pytest.mark.parametrize("words", [["report", ""], ["whatif", ""], ["compare", ".", ""]])
def test_an_empty_path_is_no_directory(words, capsys):
    with pytest.raises(SystemExit):
        main(words)
    assert "an empty path" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["--html", "--ht", "--html --json", "--html -- c", "--html="])
def test_a_page_without_a_file_takes_no_run_for_it(write_run, capsys, end):
    runs = [write_run(name) / "run.json" for name in ("a", "b")]
    before = [run.read_bytes() for run in runs]
    words = ["compare", *map(str, runs), *end.split()]
    with suppress(SystemExit):
        assert main(words) == 2
    assert re.search(r"behind --html\n|an empty path", capsys.readouterr().err)
    assert [run.read_bytes() for run in runs] == before
