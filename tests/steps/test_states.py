"""Whether a loop gets batches, as the step clock knows it."""

from __future__ import annotations

from trainobs.steps.states import Supply


def test_a_loop_that_lost_its_loader_has_one_again_after_two_steps_with_batches_on_end():
    supply = Supply()
    for _ in range(2):  # the second time as the first
        supply.lose()
        supply.step(had_batch=True)
        assert supply.is_none
        supply.step(had_batch=False)
        supply.step(had_batch=True)
        assert supply.is_none
        supply.step(had_batch=True)
        assert not supply.is_none
        assert not supply.is_out
