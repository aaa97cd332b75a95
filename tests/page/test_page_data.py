"""Pieces for a server, which asks for those of several runs at the same time."""

from __future__ import annotations

import json

import pytest

from trainobs.core.errors import RunLogError
from trainobs.report import page_data
from trainobs.report.page_data import page_json


def steps_of(run) -> int:
    return json.loads(page_json(run, {}))["steps"]


def test_a_run_that_is_busy_keeps_no_other_from_its_pieces(write_run):
    busy, other = write_run(30, "busy"), write_run(40, "other")
    with page_data._kept_for(busy).lock:
        assert steps_of(other) == 40
        assert json.loads(page_json(other, {"path": "summary"}))["steps"] == 40


def test_a_summary_that_takes_long_keeps_none_of_its_run_from_it(write_run, monkeypatch):
    run = write_run(30)
    during = []
    made = page_data.RunView.piece

    def piece(view, path):
        if path == "summary":
            during.append(steps_of(run))
        return made(view, path)

    monkeypatch.setattr(page_data.RunView, "piece", piece)
    page_json(run, {"path": "summary"})
    assert during == [30]


def test_a_run_that_went_on_is_read_again_and_only_some_are_kept(write_run):
    runs = [write_run(10 + n, str(n)) for n in range(6)]
    assert [steps_of(run) for run in runs] == [*range(10, 16)]
    assert list(page_data._all) == runs[-4:]
    view = page_data._kept_for(runs[5]).view()
    assert page_data._kept_for(runs[5]).view() is view
    (runs[5] / "run.json").touch()
    assert page_data._kept_for(runs[5]).view() is not view


def test_a_piece_that_there_is_not_is_refused(write_run):
    with pytest.raises(RunLogError, match="'compare', of "):
        page_json(write_run(10), {"path": "compare"})
