"""What the page says of a verdict comes with its data, of every kind there is."""

from __future__ import annotations

import pytest

from tests.samples import busy_run
from trainobs.analysis.view import RunView
from trainobs.report import sections
from trainobs.report.pieces import piece
from trainobs.report.verdict_text import ASK_FOR_WORKERS, HELD_UP, MEANINGS, NO_REPLAY, said
from trainobs.verdict.verdict import VerdictKind

TRIED = {"changes": [], "unknown": {}, "refused": None, "replayed": True}
ADVICE = {"text": "num_workers=2"}


def summary(kind="loader-bound", cause=None, advice=None, **would_help):
    run = {"kind": kind, "cause": cause, "advice": advice}
    return {"verdict": {"run": run}, "would_help": TRIED | would_help}


def test_each_kind_of_verdict_has_a_meaning():
    assert MEANINGS.keys() == {kind.value for kind in VerdictKind}
    assert MEANINGS.keys() >= set(ASK_FOR_WORKERS)
    assert said(summary("compute-bound"))["meaning"] == MEANINGS["compute-bound"]
    assert said(summary("compute-bound", "fsync"))["meaning"] == HELD_UP
    assert said(summary(None))["meaning"] is None


@pytest.mark.parametrize(
    ("found", "begin"),
    [
        (summary(), "What would help is not known: no change of the loader"),
        (summary(replayed=False), f"What would help is not known: {NO_REPLAY}."),
        (summary(refused="no batches"), "What would help is not known: no batches."),
        (summary(refused="no", advice=ADVICE), "What else would help is not known: no."),
        (summary(advice=ADVICE), None),
        (summary(changes=[{}]), None),
        (summary(None), None),
    ],
)
def test_why_nothing_is_known_to_help_is_said_where_nothing_is(found, begin):
    told = said(found)["unknown"]
    assert (told is None) is (begin is None)
    assert (told or "").startswith(begin or "")


def test_the_whole_report_says_too_that_it_is_what_else_would_help():
    for advice, what in ((None, "What would help"), (ADVICE, "What else would help")):
        told = list(sections.would_help(summary(refused="no", advice=advice)))
        assert told == [f"{what}: not known", "  no"]


def test_of_workers_it_is_said_where_somebody_asks():
    why = {"unknown": {"workers": "they keep samples"}}
    assert said(summary(**why))["workers"] == "num_workers is not predicted: they keep samples."
    assert said(summary("copy-bound", **why))["workers"] is None


def test_the_summary_of_the_page_has_it(write_run):
    found = piece(RunView.open(write_run(steps=busy_run(30))), "summary")
    assert found["said"] == said(found) | {"lost": None, "killed": None, "endings": None}
