"""The one worker that a report names because it is slower than all others."""

from __future__ import annotations

import pytest

from trainobs.report.facts import _slow_worker

MS = 1e6


def makers(made, batches):
    return [
        {"worker": number, "batches": count, "made_ns": None if ms is None else ms * MS}
        for number, (ms, count) in enumerate(zip(made, batches, strict=True))
    ]


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ([30, 5, 7], "  worker 0 takes 30 ms a batch, the others 6 ms"),
        ([5, 30], "  worker 1 takes 30 ms a batch, the other 5 ms"),
        ([30, 16, 5], None),
        ([30], None),
        ([], None),
        ([30, None], None),
    ],
)
def test_one_worker_that_is_slower_than_all_others_is_named(made, told):
    assert next(_slow_worker(makers(made, [8] * len(made))), None) == told


@pytest.mark.parametrize("batches", [(7, 7, 7), (80, 80, 40)])
def test_few_batches_and_those_of_several_loaders_are_not_compared(batches):
    assert not any(_slow_worker(makers([30, 5, 7], batches)))


def test_the_training_thread_is_no_worker():
    assert not any(_slow_worker([{"worker": None, "batches": 99, "made_ns": 9.0}]))
