"""What libaio reads is counted by nobody: from its first call on it is unknown, and not zero."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

import numpy as np
import pytest

from tests.kernel import aio
from tests.kernel.ground_truth import evict, write_file
from trainobs import observe
from trainobs.analysis.summary import summarize
from trainobs.report.full import render
from trainobs.report.io_text import render as render_io
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf

SIZE = 1 << 20
READ_OR_WRITTEN = ("io/data_read_bytes", "io/read_bytes", "io/checkpoint_write_bytes")
OTHERS = ("sched/main_offcpu_ns", "io/data_open_count", "net/received_bytes")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunLog:
    """Three steps; each reads a cold file, the second one by libaio."""
    place = tmp_path_factory.mktemp("aio")
    data = write_file(place / "data", SIZE)
    with observe(run_dir=place / "run", data_roots=[data], io=True, quiet=True) as obs:
        for with_aio in (False, True, False):
            evict(data)
            with obs.step(), data.open("rb", buffering=0) as file:
                if with_aio:
                    with mmap.mmap(-1, SIZE) as buffer:
                        assert aio.read(file.fileno(), buffer) == SIZE
                else:
                    assert len(file.read(SIZE)) == SIZE
    return RunLog.open(place / "run")


def test_reads_and_writes_are_unknown_from_its_first_call_on(run: RunLog) -> None:
    for name in (*READ_OR_WRITTEN, "cache/miss_bytes", "block/data_read_bytes"):
        assert np.isnan(run.ranks[0].metric(name)[-2:]).all(), name
    assert run.ranks[0].metric("io/data_read_bytes")[-3] == SIZE


def test_no_table_has_a_part_of_what_was_read(run: RunLog) -> None:
    summary = summarize(run)
    assert summary["metrics"]["io/data_read_bytes"]["sum"] is None
    (rest,) = re.findall(r"^  training data read +1.05 MB +(.*)$", render(summary), re.M)
    assert rest.split() == ["-", "-"], "per second, and in all"


def test_the_page_of_files_knows_the_least_of_what_was_read(run: RunLog) -> None:
    text = render_io(summarize(run))
    assert "not in these numbers: libaio was used" in text
    (row,) = (line for line in text.splitlines() if line.startswith("  epoch 0"))
    assert row.split()[-3:] == [">=", "2.10", "MB"]


def test_what_does_not_rest_on_it_stays_known(run: RunLog) -> None:
    steps = run.ranks[0].metrics([*OTHERS, "cache/fault_fill_bytes"])
    assert not any(np.isnan(values[-3:]).any() for values in steps.values())
    assert (steps["io/data_open_count"][-3:] >= 1).all()
    assert steps["cache/fault_fill_bytes"][-3:].tolist() == [0, 0, 0]  # it is no fault


def test_a_call_that_fails_makes_nothing_unknown(tmp_path: Path) -> None:
    data = write_file(tmp_path / "data", SIZE)
    with observe(run_dir=tmp_path / "run", data_roots=[data], quiet=True) as obs, obs.step():
        data.read_bytes()
        with pytest.raises(OSError, match="Invalid argument"):
            aio.call(aio.SUBMIT, 0, 1, None)
    assert RunLog.open(tmp_path / "run").ranks[0].metric("io/data_read_bytes")[-1] == SIZE
