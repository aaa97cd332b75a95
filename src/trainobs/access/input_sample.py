"""A uniform sample of whole inputs, in bounded memory.

Which share of inputs looks up hot rows only cannot be told from counts: columns are correlated. So
some inputs are kept whole. Each input draws a number in [0, 1), and those with the lowest are kept,
as many as fit: a sample without replacement, every input as likely as any other. Two such
samples become one by the same rule, which is why ranks and runs can be merged (bottom-k sampling:
E. Cohen and H. Kaplan, Summarizing data using bottom-k sketches, PODC 2007).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainobs.access.input_steps import ALIKE_BYTES, STEP_BYTES, InputSteps, StepTotals, joined

INPUT_BYTES = 56
"""Two numbers, and what it takes to put inputs in order."""
LOOKUP_BYTES = 12
KEPT_SHARE = 0.4
"""Of the memory; the rest is for what waits, and for the moment in which both become one."""
WAITING_SHARE = 0.2

SURE = 3.0
"""Standard deviations that are no chance."""


@dataclass(frozen=True)
class InputSample:
    """Inputs with all their lookups.

    Attributes:
        draws: what each input drew; lower ones were kept.
        sizes: lookups of each input.
        tables: index of the table of each lookup, input after input, in the order of
            `AccessCounts.tables`.
        ids: row of each lookup; it may be outside its table.
        seen: inputs that the sample was taken from.
        of_steps: which steps they are of, where all were offered with it.
    """

    draws: NDArray[np.float64]
    sizes: NDArray[np.int64]
    tables: NDArray[np.int32]
    ids: NDArray[np.int64]
    seen: int = 0
    of_steps: InputSteps | None = None

    @classmethod
    def empty(cls) -> InputSample:
        """No inputs."""
        columns = np.empty(0), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64)
        return cls(*columns, of_steps=InputSteps.empty())

    def __len__(self) -> int:
        return len(self.draws)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the lookups of each input begin, and where those of the last one end."""
        return np.concatenate(([0], np.cumsum(self.sizes)))

    @property
    def contents(self) -> NDArray[np.uint64]:
        """A number for each input that inputs with the same lookups share, and hardly others do."""
        x = self.ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += (self.tables.astype(np.uint64) + np.uint64(1)) * np.uint64(0xC2B2AE3D27D4EB4F)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
        sums = np.cumsum(np.append(np.uint64(0), x ^ (x >> np.uint64(31))))
        return np.asarray(np.diff(sums[self.offsets]))

    @property
    def step_count(self) -> int:
        """Steps that they are of; 0 where these are not known."""
        return 0 if self.of_steps is None else len(np.unique(self.of_steps.steps))

    def where(self, keep: NDArray[np.bool_]) -> InputSample:
        """Those inputs for which `keep` is true."""
        lookups = np.repeat(keep, self.sizes)
        kept = self.draws[keep], self.sizes[keep], self.tables[lookups], self.ids[lookups]
        of_steps = None if self.of_steps is None else self.of_steps.where(keep, lookups)
        return InputSample(*kept, self.seen, of_steps)

    @property
    def nbytes(self) -> int:
        """Memory it takes, and takes for a moment when something is added."""
        return int(_bytes(self.sizes, self.of_steps is not None).sum())


class Reservoir:
    """The sample of the inputs of one epoch, while they come in.

    Attributes:
        seen: inputs that came.
        threshold: every input that drew less is in the sample; no other is.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self.seen = 0
        self.threshold = 1.0
        self._capacity_bytes = capacity_bytes
        self._parts = [InputSample.empty()]  # what was kept, then what waits
        self._waiting_bytes = 0

    def offer(
        self,
        draws: NDArray[np.float64],
        tables: NDArray[np.int32],
        ids: NDArray[np.integer[Any]],
        lengths: NDArray[np.int64],
        names: Sequence[str] = (),
        step_totals: StepTotals | None = None,
    ) -> None:
        """Take what is to be kept of a batch.

        Args:
            draws: a number in [0, 1) for each input, (inputs,).
            tables: index of the table that each key looks up, (keys,).
            ids: rows, key after key, and input after input within a key.
            lengths: lookups of each key and input, (keys, inputs).
            names: of the tables, for `step_totals`.
            step_totals: of the step that the batch is of.
        """
        self.seen += len(draws)
        chosen = np.flatnonzero(draws < self.threshold)
        if not len(chosen):
            return
        chosen = chosen[np.argsort(draws[chosen])]
        sizes = lengths[:, chosen].sum(axis=0)
        room = int(self._capacity_bytes * WAITING_SHARE)
        total_bytes = np.cumsum(_bytes(sizes, step_totals is not None))
        fits = int(np.searchsorted(total_bytes, room, "right"))
        if fits < len(chosen):
            self.threshold = float(draws[chosen[fits]])
            chosen, sizes = chosen[:fits], sizes[:fits]
        begins = (np.cumsum(lengths) - lengths.ravel()).reshape(lengths.shape)
        lookups = lengths[:, chosen].T.ravel()  # input after input now
        first = begins[:, chosen].T.ravel()
        at = np.repeat(first - (np.cumsum(lookups) - lookups), lookups) + np.arange(lookups.sum())
        tables_of, rows = np.repeat(np.tile(tables, len(chosen)), lookups), ids[at]
        part = InputSample(draws[chosen], sizes, tables_of, rows.astype(np.int64, copy=False))
        if step_totals is not None:
            steps = np.full(len(chosen), step_totals.number)
            alike = step_totals.of(names, part.tables, part.ids)
            part = replace(part, of_steps=InputSteps(steps, *alike))
        self._take(part)

    def absorb(self, sample: InputSample, threshold: float) -> None:
        """Make one sample of this and another, of other inputs."""
        self.seen += sample.seen
        self.threshold = min(self.threshold, threshold)
        self._take(sample)
        self.resize(self._capacity_bytes)

    def resize(self, capacity_bytes: int) -> None:
        """Change the memory it may take; what does not fit is dropped."""
        self._capacity_bytes = capacity_bytes
        self._settle()

    def sample(self) -> InputSample:
        """What is kept now."""
        if len(self._parts) > 1:
            self._settle()
        return replace(self._parts[0], seen=self.seen)

    def _take(self, part: InputSample) -> None:
        self._parts.append(part)
        self._waiting_bytes += part.nbytes
        if self._waiting_bytes > self._capacity_bytes * WAITING_SHARE:
            self._settle()

    def _settle(self) -> None:
        """Make one part of all, and drop the highest draws until it fits."""
        draws = np.concatenate([part.draws for part in self._parts])
        sizes = np.concatenate([part.sizes for part in self._parts])
        order = np.argsort(draws)
        has_steps = all(part.of_steps is not None for part in self._parts)
        total_bytes = np.cumsum(_bytes(sizes[order], has_steps))
        room = int(self._capacity_bytes * KEPT_SHARE)
        fits = int(np.searchsorted(total_bytes, room, "right"))
        if fits < len(order):
            self.threshold = min(self.threshold, float(draws[order[fits]]))
        for at, part in enumerate(self._parts):  # one by one, so that each is freed at once
            self._parts[at] = part.where(part.draws < self.threshold)
        self._parts = [joined_samples(self._parts)]
        self._waiting_bytes = 0


def joined_samples(samples: Sequence[InputSample]) -> InputSample:
    """The inputs of all samples, one sample after the other."""
    parts = [*samples, InputSample.empty()]
    columns = ("draws", "sizes", "tables", "ids")
    kept: dict[str, Any] = {
        c: np.concatenate([getattr(part, c) for part in parts]) for c in columns
    }
    seen = sum(part.seen for part in parts)
    return InputSample(**kept, seen=seen, of_steps=joined([part.of_steps for part in parts]))


def _bytes(sizes: NDArray[np.int64], has_steps: bool) -> NDArray[np.int64]:
    """What inputs with so many lookups take each."""
    of_input, of_lookup = INPUT_BYTES, LOOKUP_BYTES
    if has_steps:
        of_input, of_lookup = of_input + STEP_BYTES, of_lookup + ALIKE_BYTES
    return sizes * of_lookup + of_input


def may_share(one: InputSample, other: InputSample, seen_ratio: float = 1.0) -> bool:
    """Whether two epochs may have had the same inputs.

    They are told by their lookups. Some are the same by chance: as many as in one epoch. Where the
    samples are so small that of the same data they would hardly share any, nobody can tell.

    Args:
        one: sample of an epoch.
        other: of another.
        seen_ratio: share of the inputs of an epoch that its sample was taken from.
    """
    few, many = sorted((one, other), key=len)
    if not len(few):
        return False
    shared = np.count_nonzero(np.isin(few.contents, many.contents))
    _, of_each = np.unique(many.contents, return_counts=True)
    chance = len(few) * float(of_each[of_each > 1].sum()) / len(many)
    if abs(shared - chance) > SURE * np.sqrt(shared + 2 * chance):  # these come two at a time
        return bool(shared > chance)
    same = (len(few) - chance) * len(many) / max(many.seen, len(many)) * seen_ratio
    return bool(same <= SURE * np.sqrt(same + 2 * chance))
