"""libbpf and a program agree where arguments of marks are, or the program is refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from trainobs.probes.usdt import are_as_the_object_reads_them

SHORT, LONG = (16, (8, 12, 14, 15)), (24, (8, 14, 16, 17))
"""Bytes of an argument, and the places of kind, register, sign and shift: libbpf 1.6 and 1.7."""


def written(layout: tuple[int, tuple[int, ...]], *counts: int) -> npt.NDArray[np.uint8]:
    """Marks with so many arguments, as a libbpf writes them."""
    size, (kind, register, signed, shift) = layout
    rows = np.zeros((8, 12 * size + 16), np.uint8)
    for row, count in zip(rows, counts, strict=False):
        row[12 * size + 8] = count
        for argument in range(count):
            at = row[argument * size :]
            at[kind], at[register], at[signed], at[shift] = argument % 3, 80, 1, 32
    return rows


def read_as(rows: npt.NDArray[np.uint8], layout: tuple[int, object]) -> npt.NDArray[np.uint8]:
    """What is in the map of an object, whose values have another length: the kernel copies those
    bytes that it has room for."""
    length = 12 * layout[0] + 16
    more = np.full((len(rows), max(0, length - rows.shape[1])), 0xA5, np.uint8)
    return np.hstack([rows, more])[:, :length].copy()


@pytest.mark.parametrize("counts", [(), (0,), (1,), (3, 0, 12), (12,) * 8])
@pytest.mark.parametrize("layout", [SHORT, LONG])
def test_what_its_own_libbpf_wrote_is_right(
    layout: tuple[int, tuple[int, ...]], counts: tuple[int, ...]
) -> None:
    assert are_as_the_object_reads_them(written(layout, *counts))


@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize(("of", "read"), [(SHORT, LONG), (LONG, SHORT)])
def test_what_another_libbpf_wrote_is_not(
    of: tuple[int, tuple[int, ...]], read: tuple[int, tuple[int, ...]], count: int
) -> None:
    assert not are_as_the_object_reads_them(read_as(written(of, count), read))


def test_a_structure_that_nobody_knows_is_not() -> None:
    assert not are_as_the_object_reads_them(np.zeros((8, 400), np.uint8))
