"""What hot rows did, by step: differences of totals."""

from __future__ import annotations

from trainobs.core.hot_rows import HotTotals
from trainobs.embeddings.hot_row_readings import HotRowReadings
from trainobs.steps.closed_step import ClosedStep


class Serving:
    """A module that counts."""

    def __init__(self) -> None:
        self.count = 0

    def totals(self) -> HotTotals:
        return HotTotals(*[self.count] * len(HotTotals._fields))


def test_steps_that_became_one_have_what_came_in_all():
    serving = Serving()
    readings = HotRowReadings([serving], lambda: 0)
    for serial in range(5):
        serving.count += 10**serial
        readings.stepped(serial)
    steps = [
        ClosedStep.from_numbers(serial, serial, (0, 1), merged=merged)
        for serial, merged in ((0, ()), (3, (1, 2)), (4, ()))
    ]
    columns = readings.columns(steps)
    assert columns["fae/lookup_count"].tolist() == [1, 1110, 10000]
