"""What is said of a verdict: its time, its costs, its evidence."""

from __future__ import annotations

from tests.verdict.constructed import IN_STEP, MS, verdict_on
from trainobs.verdict.sentence import sentence
from trainobs.verdict.verdict import VerdictKind


def test_a_sentence_says_what_its_time_is():
    lost = {"sched__work_runqueue_ns": 20 * MS, "sched__work_iowait_ns": 20 * MS}
    memory = {"memory__reclaim_ns": 0.0, "memory__main_reclaim_ns": 0.0}
    verdict = verdict_on(**IN_STEP | lost | memory)
    assert sentence(verdict) == (
        "compute-bound: held up for 40.1 ms a step, 40 % of it; by no one cause"
    )
    mixed = verdict_on(loader__wait_ns=45 * MS, phase__transfer_ns=40 * MS)
    assert sentence(mixed).startswith("mixed of loader-bound and copy-bound: 85 ms a step, ")
    assert verdict.as_json()["held_up"]
    assert mixed.as_json()["costs"][0] == "loader-bound"


def test_evidence_has_no_nothing():
    slept = {"sched__other_sleep_ns": 60 * MS, "phase__other_ns": 70 * MS}
    verdict = verdict_on(**IN_STEP | slept, net__received_bytes=5e3)
    assert verdict.kind is VerdictKind.SLEEP
    assert [row.metric for row in verdict.evidence[:2]] == [
        "sched/other_sleep_ns",
        "net/received_bytes",
    ]


def test_what_is_in_no_phase_though_all_are_marked_is_said_to_be_code():
    because = verdict_on(phase__other_ns=90 * MS).abstained_because
    assert because.endswith("in no phase: code of the loop, or of a callback, that nobody marks")
