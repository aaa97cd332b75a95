"""What a run tells begins below the progress bars that are open."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainobs.session.ending import tell

tqdm = pytest.importorskip("tqdm.auto").tqdm


@pytest.fixture
def told(capsys, monkeypatch):
    """A function that tells a line; returns what came on standard error last."""

    monkeypatch.setattr(tqdm, "monitor_interval", 0)  # no thread of its own

    def run() -> str:
        capsys.readouterr()
        tell("a line")
        return capsys.readouterr().err

    return run


def test_a_line_begins_below_an_open_bar(told):
    bar = tqdm(total=10)
    assert told() == "\ntrainobs: a line\n"
    bar.close()
    assert told() == "trainobs: a line\n"


def test_of_several_bars_it_begins_below_the_last(told):
    with tqdm(total=10), tqdm(total=5):
        assert told() == "\n\ntrainobs: a line\n"


def test_bars_that_are_not_drawn_there_count_for_nothing(told, tmp_path):
    with open(tmp_path / "log", "w") as log, tqdm(total=10, file=log):
        assert told() == "trainobs: a line\n"
    with tqdm(total=10, disable=True):
        assert told() == "trainobs: a line\n"


def test_a_tqdm_of_another_kind_is_no_fault(told, monkeypatch):
    monkeypatch.setitem(sys.modules, "tqdm.std", object())
    assert told() == "trainobs: a line\n"


def test_tqdm_is_not_imported_for_that():
    code = "import sys; from trainobs.session.ending import tell; tell('x'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "trainobs: x\n"
    assert "tqdm" not in done.stdout.split()
