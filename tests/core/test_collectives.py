"""What entries of torch's flight recorder say of a collective."""

from __future__ import annotations

import pytest

from trainobs.core.collectives import Collective, bytes_of, kind_of
from trainobs.core.records import UNKNOWN

KINDS = {
    "gloo:all_reduce": Collective.ALL_REDUCE,
    "nccl:all_reduce_barrier": Collective.BARRIER,
    "gloo:barrier": Collective.BARRIER,
    "nccl:_reduce_scatter_base": Collective.REDUCE_SCATTER,
    "nccl:_all_gather_base": Collective.ALL_GATHER,
    "nccl:all_to_all": Collective.ALL_TO_ALL,
    "nccl:broadcast": Collective.BROADCAST,
    "gloo:reduce": Collective.REDUCE,
    "gloo:gather": Collective.GATHER,
    "gloo:scatter": Collective.SCATTER,
    "nccl:coalesced": Collective.OTHER,
    "": Collective.OTHER,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_is_told_by_the_name(name: str) -> None:
    assert kind_of(name) is KINDS[name]


@pytest.mark.parametrize(
    ("name", "sizes", "types", "expected"),
    [
        ("gloo:all_reduce", [[3, 5], []], ["Float", "Double"], 3 * 5 * 4 + 8),
        ("gloo:barrier", [], [], 0),
        ("gloo:all_reduce", [[0, 5]], ["BFloat16"], 0),
        ("gloo:all_reduce", [[2]], ["of the future"], UNKNOWN),
        ("gloo:all_reduce", [[2], [2]], ["Float"], UNKNOWN),
        ("gloo:all_reduce", None, None, UNKNOWN),
        ("gloo:sparse_all_reduce", [[1000]], ["Float"], UNKNOWN),
        ("nccl:allreduce_coalesced", [[2]], ["Float"], UNKNOWN),
    ],
)
def test_bytes_are_those_of_the_tensors_or_unknown(name, sizes, types, expected) -> None:
    assert bytes_of(name, sizes, types) == expected
