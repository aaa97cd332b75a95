"""Pressure of the machine, read by a thread that may have to wait for a CPU itself."""

from __future__ import annotations

import pytest

from trainobs.session.machine import read_at


@pytest.mark.parametrize(
    ("before", "totals", "at"),
    [
        (None, [900, 0, 0], 1000),
        ((750, [100, 0, 0]), [300, 40, 0], 1000),  # 200 in 250
        ((750, [100, 0, 0]), [350, 40, 0], 1000),
        ((750, [100, 0, 0]), [400, 40, 0], 1050),  # 300 take until 1050 at least
        ((750, [0, 100, 0]), [0, 900, 0], 1400),  # more than time: no later than it was had
        ((750, []), [], 1000),  # the kernel keeps none
    ],
)
def test_what_was_read_is_of_no_time_before_it_can_have_grown_so_far(before, totals, at):
    assert read_at(1000, 1400, totals, before) == at
