"""What a session writes down for the verdict."""

from __future__ import annotations

import json
import os
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from trainobs import observe
from trainobs.host.others import NAME


def test_a_run_tells_its_workers_and_what_others_took(tmp_path):
    with observe(run_dir=tmp_path / "run") as obs:
        for _ in obs.loader(DataLoader(range(12), 4, num_workers=0)):
            with obs.step():
                time.sleep(0.9)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info["settings"] == {
        "loader_workers": 0,
        "steps": "the loop marks its steps",
        "torch_threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "written_by": "thread",
    }
    (loader,) = info["loaders"]
    assert (loader["workers"], loader["batch_size"], loader["batches"]) == (0, 4, 3)
    assert info["host"]["local_world_size"] is None
    table = pq.read_table(tmp_path / "run" / "rank=0" / "steps-00000.parquet")
    values = table[NAME].cast("double").to_numpy()
    known = values[np.isfinite(values)]
    assert known.size
    assert ((known >= 0) & (known <= 1)).all()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_run_that_is_confined_as_it_goes_on_tells_the_fewest_cpus(tmp_path):
    every = os.sched_getaffinity(0)
    try:
        with observe(run_dir=tmp_path / "run") as obs:
            for step in range(4):
                with obs.step():
                    time.sleep(0.02)
                    if step == 1:
                        os.sched_setaffinity(0, {min(every)})
    finally:
        os.sched_setaffinity(0, every)
    host = json.loads((tmp_path / "run" / "run.json").read_text())["host"]
    assert host["usable_cpu_count"] == 1
    assert host["most_usable_cpu_count"] == len(every)


def test_a_run_that_is_timed_only_does_not_look_at_others(tmp_path):
    with observe(run_dir=tmp_path / "run", probes="off") as obs:
        for _ in obs.loader(range(3)):
            with obs.step():
                time.sleep(0.6)
    table = pq.read_table(tmp_path / "run" / "rank=0" / "steps-00000.parquet")
    assert table[NAME].null_count == len(table)
