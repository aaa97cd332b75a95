"""A loop of one's own whose parts Lightning's Fabric has set up, under `observe`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.models import FILE_BYTES, read_steps
from tests.session.jobs import end_of_two_ranks

JOB = Path(__file__).with_name("fabric_job.py")


@pytest.mark.needs_bpf
def test_two_ranks_read_what_fabrics_sampler_gives_each(tmp_path: Path) -> None:
    status, lines, err = end_of_two_ranks(JOB, tmp_path)
    assert status == 0, err
    run_dir = tmp_path / "run"
    assert sorted(lines) == [f"rank {rank} of 2: {run_dir}" for rank in range(2)]
    for rank in range(2):
        steps = read_steps(run_dir, rank)
        assert steps["step"].to_pylist()[1:] == list(range(4))  # of 16 files, 8 a rank
        assert steps["io/data_read_bytes"].to_pylist()[1:] == [2 * FILE_BYTES] * 4
        assert min(steps["loader/wait_ns"].to_pylist()[1:]) > 0
