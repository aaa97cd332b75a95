"""Tests that `make test` leaves out, and `make test-all` runs: each with what stays.

A pattern is matched against `folder/module::test[case]`, from its begin.
"""

from __future__ import annotations

import re

SLOW: dict[str, str] = {
    r"benchmarks/": "nothing: they test what measures",
    r"embeddings/test_sharded::test_two_ranks": "sharded collections of one rank",
    r"examples/test_dlrm_scripts::": "the example's model and its data",
    r"examples/test_imagenet::.*\[train_plain": "the same with Lightning",
    r"examples/test_imagenet::test_trains_without": "the same, observed",
    r"fae/test_killed::": "going on from a state, in test_pack_resume",
    r"fae/test_pack_ranks::test_two_ranks_train": "100 random agreements",
    r"fae/test_pack_resume::test_(a_killed|a_run_goes_on)": "going on with workers, in an epoch",
    r"fae/test_ray_job::test_(the_result|lists_of)": "the job's refusals, which start no Ray",
    r"fae/test_sharder_checkpoints::test_(two_ranks|distributed)": "one rank",
    r"fae/test_sharder_checkpoints::test_training.*\[stock": "FAE to stock, FAE to FAE",
    r"fae/test_sharder_parity::test_one_rank.*\[(?!350-)": "50 of 400 random models",
    r"fae/test_sharder_parity::test_two_ranks": "one rank; two in test_sharder_behaviour",
    r"host/test_loader::.*\[(spawn|forkserver)": "workers that were forked",
    r"integrations/test_accelerate::test_ranks_share": "Accelerate on one rank",
    r"integrations/test_auto::test_processes_that": "TRAINOBS_AUTO in one process",
    r"integrations/test_fabric::test_two_ranks": "Fabric on one rank",
    r"integrations/test_huggingface_ddp::": "two ranks, in test_lightning_ddp",
    r"integrations/test_huggingface_unchanged::test_(a_comp|or_with|a_training)": "equal bits",
    r"integrations/test_lightning_ddp::.*\[pytorch_lightning": "the same by lightning.pytorch",
    r"integrations/test_ranks::": "test_lightning_ddp; written run logs, in analysis/test_ranks",
    r"kernel/test_batches::test_every_batch.*\[(spawn|forkserver)": "workers that were forked",
    r"kernel/test_loader_workers::.*\[(spawn|forkserver)": "workers that were forked",
    r"service/test_runs::test_(a_run_goes_on|probes_asked|a_probe_that)": "a run through the service",
    r"session/test_long_run::": "nothing of memory over time",
    r"session/test_startup::test_ctrl_c_at_any": "signals at the end, in test_endings",
    r"verdict/test_faults::test_the_quick_suite": "verdicts on numbers",
}
"""Pattern -> what of the same `make test` still has."""

_PATTERNS = tuple(map(re.compile, SLOW))


def is_slow(nodeid: str) -> bool:
    """Whether a test, by the name that pytest gives it, is one of them."""
    name = nodeid.removeprefix("tests/").replace(".py::", "::")
    return any(pattern.match(name) for pattern in _PATTERNS)
