"""Pieces for a server, which asks for those of several runs at the same time."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.samples import busy_run
from trainobs.analysis.view import RunView
from trainobs.core.errors import RunLogError
from trainobs.report import page_data
from trainobs.report.page_data import page_json
from trainobs.verdict.metric_names import NAMED, PHASES, STEP, VALIDATION


def steps_of(run) -> int:
    return json.loads(page_json(run, {}))["steps"]


def test_a_phase_that_was_first_marked_late_took_no_time_before(write_run):
    steps = busy_run(3000)
    steps.columns[VALIDATION][:2949] = np.nan  # it takes its time in the 2,950th
    phases = [name for name in PHASES if name != NAMED]
    steps.columns[STEP][:] = np.nansum([steps.columns[name] for name in phases], axis=0)
    view = RunView.open(write_run(steps=steps))
    for every in (1, 4):
        found = view.piece(f"steps/parts/{every}/{2944 // 1024 // every}")["columns"]
        last = [sum(found[name][at] for name in phases) for at in range(len(found[STEP]))]
        assert last == pytest.approx(found[STEP], rel=1e-3)


def test_a_run_that_is_busy_keeps_no_other_from_its_pieces(write_run):
    busy, other = write_run(30, "busy"), write_run(40, "other")
    with page_data._kept_for(busy).lock:
        assert steps_of(other) == 40
        assert json.loads(page_json(other, {"path": "summary"}))["steps"] == 40


def test_a_summary_that_takes_long_keeps_none_of_its_run_from_it(write_run, monkeypatch):
    run = write_run(30)
    during = []
    made = page_data.RunView.summary

    def summary(view):
        during.append(steps_of(run))
        return made(view)

    monkeypatch.setattr(page_data.RunView, "summary", summary)
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


@pytest.fixture
def sums(monkeypatch):
    """Steps of the run whenever its summary was made, which takes `cost_s` of CPU time here."""

    class Sums(list[int]):
        cost_s = 1.05

        def pass_s(self, seconds: float) -> None:
            now[0] += seconds

    found = Sums()
    now = [100.0]
    monkeypatch.setattr(page_data.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(page_data.time, "thread_time", lambda: found.cost_s * len(found))
    made = page_data.RunView.summary

    def summary(view):
        found.append(len(view._rows))
        return made(view)

    monkeypatch.setattr(page_data.RunView, "summary", summary)
    return found


def test_the_summary_of_a_run_that_goes_on_takes_a_twentieth_of_a_cpu_at_most(write_run, sums):
    run = write_run(10, ended=False)
    for seconds, made in ((0, 1), (0.9, 1), (0.2, 2), (0.5, 2)):
        sums.pass_s(seconds)
        (run / "run.json").touch()
        assert json.loads(page_json(run, {"path": "summary"}))["steps"] == 10
        assert len(sums) == made


def test_a_summary_that_is_made_quickly_is_made_whenever_the_run_goes_on(write_run, sums):
    run = write_run(10, ended=False)
    sums.cost_s = 0.9
    for made in (1, 2, 3):
        (run / "run.json").touch()
        page_json(run, {"path": "summary"})
        assert len(sums) == made


def test_the_summary_of_a_run_that_has_ended_is_made_once_more_at_once(write_run, sums):
    run = write_run(10, ended=False)
    page_json(run, {"path": "summary"})
    document = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(document | {"summary": {"outcome": "ok"}}))
    for _ in range(2):
        assert json.loads(page_json(run, {"path": "summary"}))["outcome"] == "ok"
    assert len(sums) == 2
