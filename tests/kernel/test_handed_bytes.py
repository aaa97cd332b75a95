"""What the kernel is told of a batch: which one it is, and how large."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.observed import ObservedKernel
from trainobs.core.abi import MAIN_WORKER
from trainobs.hooks.marks import MOST_PARTS, bytes_of
from trainobs.steps import fast_path, fast_path_python

pytestmark = pytest.mark.needs_bpf

UNKNOWN = 2**64 - 1
KINDS = {"C": fast_path.TaskMarks, "Python": fast_path_python.TaskMarks}
ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)


class Pair(NamedTuple):
    one: Any
    other: Any


class Sized(dict[str, Any]):
    nbytes = 2**40


class Odd:
    """What does not tell its size as a number."""

    def __init__(self, nbytes: object) -> None:
        self.nbytes = nbytes


def four() -> torch.Tensor:
    return torch.zeros(1)


BATCHES: dict[str, tuple[Callable[[], object], int]] = {
    "a tensor": (four, 4),
    "a parameter": (lambda: torch.nn.Parameter(four()), 4),
    "an array": (lambda: np.zeros(3, np.int16), 6),
    "a memory view": (lambda: memoryview(b"abc"), 3),
    "nested": (lambda: [four(), (four(), {"a": four(), "b": [four()] * 3})], 24),
    "other mappings": (lambda: OrderedDict(a=Pair(four(), 5)), 4),
    "beside what is small": (lambda: [four(), None, True, 2**80, 1.5, "name"], 4),
    "bytes": (lambda: [four(), b"abc"], UNKNOWN),
    "something else": (lambda: [four(), UserDict(a=four())], UNKNOWN),
    "with a size of its own": (lambda: Sized(a=four()), 2**40),
    "a size that is no number": (lambda: Odd("4"), UNKNOWN),
    "a size as a number of NumPy's": (lambda: Odd(np.int64(8)), 8),
    "as many parts as are looked at": (lambda: [four()] * (MOST_PARTS - 2), 4 * (MOST_PARTS - 2)),
    "a part more": (lambda: [four()] * (MOST_PARTS - 1), UNKNOWN),
    "endless": (lambda: ENDLESS, UNKNOWN),
    "nothing": (list, 0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_as_large_as_its_tensors(observed: ObservedKernel, kind: str, name: str) -> None:
    make, size = BATCHES[name]
    assert handed(observed, kind, make()) == size


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_in_a_batch(observed: ObservedKernel, kind: str) -> None:
    leaf = st.one_of(
        st.integers(0, 9).map(lambda count: torch.zeros(count, dtype=torch.int16)),
        st.sampled_from([None, 7, "name", np.zeros(3), torch.eye(2).to_sparse(), object()]),
    )
    keys = st.sampled_from("abc")
    inner = lambda of: st.one_of(  # noqa: E731
        st.lists(of), st.tuples(of, of), st.dictionaries(keys, of), st.tuples(of).map(list)
    )

    @settings(max_examples=200, deadline=None)
    @given(st.recursive(leaf, inner, max_leaves=40))
    def check(batch: object) -> None:
        assert handed(observed, kind, batch) == bytes_of(batch) % 2**64

    check()


@pytest.mark.parametrize("kind", KINDS)
def test_large_numbers_arrive(observed: ObservedKernel, kind: str) -> None:
    marks = KINDS[kind](MAIN_WORKER, 7, bytes_of, ())
    before = int(observed.kernel.batches["ordinal"].max())
    marks.begin(3, 2**31 - 1)
    marks.end(Odd(2**50))
    marks.begin(3, 0)
    marks.void()
    (one,) = observed.kernel.batches[observed.kernel.batches["ordinal"] > before]
    names = ("worker", "loader", "pass", "number", "handed_bytes")
    assert [int(one[name]) for name in names] == [MAIN_WORKER, 7, 3, 2**31 - 1, 2**50]


def handed(observed: ObservedKernel, kind: str, batch: object) -> int:
    """What the kernel was told of its size."""
    marks = KINDS[kind](MAIN_WORKER, 1, bytes_of, (torch.Tensor, np.ndarray))
    marks.begin(0, 0)
    marks.end(batch)
    batches = observed.kernel.batches
    return int(batches["handed_bytes"][batches["ordinal"].argmax()])
