"""Tests that `make test` leaves out, and `make test-all` runs: each with what stays.

A pattern is matched against `folder/module::test[case]`, from its begin.
"""

from __future__ import annotations

import re

SLOW: dict[str, str] = {
    r"fae/test_sharder_parity::test_one_rank.*\[(?!350-)": "50 of 400 random models",
    r"fae/test_sharder_parity::test_two_ranks": "one rank; two in test_sharder_behaviour",
    r"fae/test_ray_job::test_(the_result|lists_of)": "the job's refusals, which start no Ray",
    r"fae/test_pack_resume::test_(a_killed|a_run_goes_on)": "going on with workers, and in an epoch",
    r"fae/test_sharder_checkpoints::test_(two_ranks|distributed)": "one rank",
    r"fae/test_sharder_checkpoints::test_training.*\[stock": "FAE to stock, FAE to FAE",
    r"fae/test_killed::": "going on from a state, in test_pack_resume",
    r"fae/test_pack_ranks::test_two_ranks_train": "100 random agreements",
}
"""Pattern -> what of the same `make test` still has."""

_PATTERNS = tuple(map(re.compile, SLOW))


def is_slow(nodeid: str) -> bool:
    """Whether a test, by the name that pytest gives it, is one of them."""
    name = nodeid.removeprefix("tests/").replace(".py::", "::")
    return any(pattern.match(name) for pattern in _PATTERNS)
