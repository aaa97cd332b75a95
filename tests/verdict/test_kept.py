"""Finished batches that wait for their workers, as the table of batches tells of them."""

from __future__ import annotations

import numpy as np

from trainobs.verdict.kept import KEPT, MADE, kept_columns


def _batches(*rows: tuple[int, int, int, int, int]) -> dict[str, np.ndarray]:
    """Of (worker, begin, end, asked for, there); a worker of -1 is the training thread."""
    worker, begin, end, asked, there = np.array(rows).T
    times = {"begin_ns": begin, "end_ns": end, "fetch_begin_ns": asked, "fetch_end_ns": there}
    loader = np.ones(len(rows), np.int64)
    return {"worker": worker, "loader": loader, "compute_ns": end - begin, **times}


def test_a_finished_batch_is_kept_while_its_worker_makes_others():
    batches = _batches(
        (0, 110, 190, 210, 215),  # this one comes second
        (0, 10, 20, 15, 130),  # done at 20, there at 130; meanwhile 30 to 100, and from 110 on
        (0, 30, 100, 140, 145),
        (1, 20, 200, 150, 201),  # another's: waited for as it was made
    )
    found = kept_columns(np.array([131.0, 146.0, 202.0, 216.0]), batches)
    assert found[KEPT].tolist() == [70 + 20, 5, 0, 0]
    assert found[MADE].tolist() == [10 + 70, 0, 80 + 180, 0]


def test_it_is_unknown_without_batches_of_workers():
    assert np.isnan(kept_columns(np.array([10.0]), _batches((-1, 0, 5, 0, 9)))[KEPT]).all()


def test_what_was_asked_for_after_the_steps_is_of_none():
    found = kept_columns(np.array([10.0]), _batches((0, 0, 5, -1, -1), (0, 11, 15, 12, 20)))
    assert (found[KEPT].tolist(), found[MADE].tolist()) == ([0], [5])
