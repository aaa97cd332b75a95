"""The kernel's rows are read in C and by NumPy alike."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from trainobs.core import abi
from trainobs.core.cells import WORDS
from trainobs.core.native import loops
from trainobs.steps import ring as ring_module
from trainobs.steps.ring import Ring

CELLS = WORDS // len(abi.FIELDS)
PLACE_OF_COUNT = abi.FIELDS.index("count")

pytestmark = pytest.mark.skipif(loops() is None, reason="the part in C is not built")


class Kernel(SimpleNamespace):
    """Rows that this process fills, of cells that come into use one after another."""

    def __init__(self, draw: np.random.Generator) -> None:
        self.words = np.zeros((abi.RING, CELLS, len(abi.FIELDS)), np.uint64)
        self.more = np.zeros((abi.RING, 3), np.uint64)
        super().__init__(
            rows=self.words.reshape(abi.RING, WORDS)
            .view(abi.CELL)
            .reshape(abi.RING, *abi.CELLS_SHAPE),
            touched=np.zeros(CELLS, np.uint8),
            latency=np.zeros((abi.RING, abi.BUCKETS), np.uint64),
        )
        self._draw = draw

    def count(self, serials: np.ndarray) -> None:
        """Something in some cells of some steps; numbers may come round."""
        self.touched[self._draw.integers(0, CELLS, 3)] = 1
        slots = serials % abi.RING
        used = np.flatnonzero(self.touched)
        shape = len(slots), len(used), len(abi.FIELDS)
        self.words[slots[:, None], used] += self._draw.integers(0, 2**64, shape, np.uint64)
        for table in (self.latency, self.more):
            table[slots] += self._draw.integers(0, 9, table[slots].shape, np.uint64)


@pytest.mark.parametrize("seed", range(20))
def test_c_takes_what_numpy_takes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(seed)
    kernel = Kernel(draw)
    in_c, in_numpy = (Ring(kernel, [kernel.more]) for _ in range(2))
    before = kernel.words.copy()
    closed = 0
    for _ in range(12):
        serials = np.arange(closed, closed + draw.integers(1, abi.RING // 2))
        at_rest = np.arange(max(0, closed - 20), closed)
        kernel.count(serials)
        kernel.count(at_rest[draw.random(len(at_rest)) < 0.2])
        (cells, tables), late = in_c.take(serials.tolist(), at_rest.tolist())
        with monkeypatch.context() as context:
            context.setattr(ring_module, "loops", lambda: None)
            (same_cells, same_tables), same_late = in_numpy.take(serials.tolist(), at_rest.tolist())
        assert cells.places.tolist() == same_cells.places.tolist()
        assert cells.values.tolist() == same_cells.values.tolist()
        assert [table.tolist() for table in tables] == [table.tolist() for table in same_tables]
        assert late == same_late
        grown = (kernel.words - before)[serials % abi.RING]
        assert (
            cells.rows()
            == grown.reshape(len(serials), WORDS).view(abi.CELL).reshape(cells.rows().shape)
        ).all()
        counts = (kernel.words - before)[at_rest % abi.RING, :, PLACE_OF_COUNT]
        assert late == counts.sum(axis=1).tolist()
        before[serials % abi.RING] = kernel.words[serials % abi.RING]
        closed += len(serials)


@pytest.mark.parametrize("slot", [-1, abi.RING, 2**62])
def test_a_slot_that_is_not_there_is_refused(slot: int) -> None:
    slots = ring_module._Slots(np.zeros((abi.RING, 4), np.uint64), 4)
    slots.look_at(np.zeros(1, np.intp))
    with pytest.raises(IndexError):
        slots.take(np.array([0, slot]), 1)
