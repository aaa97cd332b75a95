"""When a sample is large enough for the confidence asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.interval import normal_quantile
from trainobs.fae.calibration.choice import Choice
from trainobs.fae.calibration.intervals import mean_upper, ratio
from trainobs.fae.calibration.predict import HotLookupCounts, served
from trainobs.fae.calibration.sample import DataSample
from trainobs.fae.kjt.inputs import Inputs, InputUse

_SMALLEST_LOOK = 1024


class Stopping:
    """Looks at a sample each time that it has doubled, and tells whether it is enough.

    Enough is when both hold:

    * the share of inputs that are all hot, and of lookups that are, are known to within `margin`
      at `confidence`. The number of inputs this takes follows from the shares themselves, and from
      how alike an input's lookups and neighbouring inputs are (`intervals.ratio`);
    * the last doubling of the inputs counted has raised neither share by more than `margin`,
      surely at `confidence`. Rows are chosen by counts, so a sample can be large enough to tell how
      good a choice is, and far too small to make a good one.

    The gain is judged on inputs that serve for nothing else, so that looking often does not make
    the predictions optimistic: those come from other inputs, of which only the width of the
    interval was looked at (Chow and Robbins 1965 for why that does no harm).

    Args:
        confidence: of the intervals.
        margin: half of their width, as a share of one; 0 asks for all of the data.
    """

    def __init__(self, confidence: float, margin: float) -> None:
        self._confidence = confidence
        self._margin = margin
        self._previous: Mapping[str, NDArray[np.int64]] | None = None
        self.next_look = self._first_look()

    def is_due(self, input_count: int) -> bool:
        """Whether so many inputs are worth a look."""
        return self._margin > 0 and input_count >= self.next_look

    def is_enough(self, sample: DataSample, choice: Choice) -> bool:
        """Look at a sample and the hot rows chosen by it.

        Args:
            sample: as large as `next_look`, or larger.
            choice: of hot rows, from its counts.
        """
        before, self._previous = self._previous, choice.hot_ids
        while self.next_look <= sample.input_count:
            self.next_look *= 2
        if before is None or not self._is_narrow(sample, choice):
            return False
        return (
            self._gain(sample, before, choice, sample.held_out(InputUse.DECIDING)) <= self._margin
        )

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that `restore` needs."""
        arrays: dict[str, NDArray[Any]] = {"next-look": np.array([self.next_look])}
        for i, ids in enumerate((self._previous or {}).values()):
            arrays[f"previous-{i}"] = ids
        return arrays

    def restore(self, arrays: Mapping[str, NDArray[Any]], tables: list[str]) -> None:
        """Go on where `arrays` was taken; `tables` are the names in order."""
        self.next_look = int(arrays["next-look"][0])
        if "previous-0" in arrays:
            self._previous = {name: arrays[f"previous-{i}"] for i, name in enumerate(tables)}

    def _first_look(self) -> int:
        """As many inputs as a share of one half needs for its interval, where all are held out."""
        if self._margin == 0:
            return 0
        needed = (normal_quantile(self._confidence) / (2 * self._margin)) ** 2
        return max(_SMALLEST_LOOK, int(needed))

    def _is_narrow(self, sample: DataSample, choice: Choice) -> bool:
        inputs = sample.held_out(InputUse.REPORTING)
        found = served(sample.tables, choice.hot_ids, inputs)
        shares = (HotLookupCounts(found.is_all_hot, np.ones_like(found.all)), found)
        intervals = [ratio(*share, self._confidence, inputs.begins) for share in shares]
        return all(share.high - share.low <= 2 * self._margin for share in intervals)

    def _gain(
        self,
        sample: DataSample,
        before: Mapping[str, NDArray[np.int64]],
        choice: Choice,
        inputs: Inputs,
    ) -> float:
        """The most, at the confidence asked for, that either share has gained."""
        old = served(sample.tables, before, inputs)
        new = served(sample.tables, choice.hot_ids, inputs)
        scale = max(float(new.all.mean()), 1e-9) if len(new.all) else 1.0
        return max(
            mean_upper(new.is_all_hot - old.is_all_hot, self._confidence, inputs.begins),
            mean_upper((new.hot - old.hot) / scale, self._confidence, inputs.begins),
        )
