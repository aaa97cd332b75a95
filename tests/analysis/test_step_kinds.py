"""Whether steps of two sides are the same thing: as seen from outside, or as the training said."""

from __future__ import annotations

import pytest

from trainobs.analysis.comparison.step_kinds import unlike
from trainobs.runlog.reader import RunLog


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ((1, 1), ""),
        ((1.03, 1), ""),
        ((12, 12), "one of B has 12 optimizer steps"),
        ((1.12, 1.12), "one of B has 1.12 optimizer steps"),
        ((2, 0), "one of B has 2 backward passes"),
    ],
)
def test_other_numbers_of_optimizer_steps_are_other_steps(write_run, seen, said):
    def seen_run(name, backward, optimizer):
        events = {"backward": backward, "optimizer": optimizer, "fetch": 1}
        settings = {"torch": "2.13", "attached": {"events_per_step": events}}
        return RunLog.open(write_run(name, settings=settings))

    new = seen_run("new", *seen)
    told = f"a step of A has 1 optimizer step, and {said}" if said else ""
    assert unlike([seen_run("old", 1, 1)], [new]) == told
    # What a step is that the training marked, or that was found from inside, nobody knows.
    marked = RunLog.open(write_run("marked", settings={"torch": "2.13"}))
    told = f"a step of B{said[8:]}; of others that is not known" if said else ""
    assert unlike([marked], [new]) == told
    assert unlike([marked], [marked]) == ""


def test_steps_of_more_batches_are_other_steps_as_seen_from_outside(write_run):
    """Gradients of eight batches are one step of the optimizer, of eight times the work."""

    def seen_run(name, backward):
        settings = {"attached": {"events_per_step": {"backward": backward, "optimizer": 1}}}
        return RunLog.open(write_run(name, settings=settings))

    told = "a step of A has 1 backward pass, and one of B has 8 backward passes"
    assert unlike([seen_run("one", 1)], [seen_run("eight", 8)]) == told
