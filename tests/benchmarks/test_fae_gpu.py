"""benchmarks/fae_gpu.py: stands alone, trains the same in each arm, and draws skewed inputs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

with warnings.catch_warnings():  # FBGEMM for hosts warns of kernels that only devices have
    warnings.simplefilter("ignore")
    pytest.importorskip("torchrec")
    from benchmarks import fae_gpu

ROOT = Path(__file__).parents[2]
SMALL = replace(fae_gpu.DRY_RUN, most_rows=50_000, batch_size=20_000, batches=1)

# An arm that cannot be built, among the others.
WITH_A_BROKEN_ARM = """
import fae_gpu
fae_gpu.ARMS["broken"] = fae_gpu.Arm("no_such_kernel")
fae_gpu.main()
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bare")
    shutil.copy(ROOT / "benchmarks" / "fae_gpu.py", folder)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", WITH_A_BROKEN_ARM, "--dry-run", "--out", "results.json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "results.json").read_text())


def test_from_a_bare_folder_every_arm_runs_that_can_run_here(results):
    arms = results["arms"]
    assert "compute kernel" in arms.pop("broken")["error"].lower()
    assert not [name for name, facts in arms.items() if "error" in facts]
    left_out = {name for name, facts in arms.items() if "left_out" in facts}
    assert left_out == {"caching_lru_prefetch"}
    ran = set(arms) - left_out
    assert ran == set(fae_gpu.ARMS) - {"caching_lru_prefetch"}
    for name in ran:
        assert arms[name]["samples_per_s"]["count"] == results["setup"]["rounds"]
        assert arms[name]["samples_per_s"]["median"] > 0


def test_all_arms_train_the_same_model_on_the_same_inputs(results):
    losses = {n: f["first_losses"] for n, f in results["arms"].items() if "first_losses" in f}
    assert len({round(loss, 3) for loss in losses["cpu"]}) > 1  # steps differ, so they could tell
    for first in losses.values():
        assert first == pytest.approx(losses["cpu"], rel=1e-6)


def test_pure_and_mixed_steps_are_told_apart_where_rows_are_hot_and_nowhere_else(results):
    kinds = {name: set(facts["step_us"]) for name, facts in results["arms"].items()}
    assert kinds["fae_overlay"] == kinds["fae_paper"] == {"pure", "mixed"}
    assert kinds["cpu"] == kinds["uvm"] == kinds["hbm"] == {"plain"}
    assert 0 < results["arms"]["fae_overlay"]["pure_step_ratio"]["median"] < 1


def test_what_the_host_cannot_tell_is_null_and_ratios_are_of_rounds(results):
    arm = results["arms"]["fae_overlay"]
    for name in ("fae_overlay", "caching_lru"):
        for what in ("device_bytes", "joules_per_1000_inputs", "link_bytes_per_input"):
            assert results["arms"][name][what] is None
    assert results["arms"]["cpu"]["speed_over_cpu"]["median"] == 1
    assert results["best_uvm"] in ("uvm", "caching_lru", "caching_lfu")
    assert arm["speed_over_hbm"]["quartile1"] <= arm["speed_over_hbm"]["quartile3"]
    assert results["tables"]["hot_bytes"] <= results["setup"]["hot_bytes"]


def test_inputs_are_as_skewed_as_the_law_says_and_the_same_for_a_seed():
    inputs = fae_gpu.Inputs(SMALL)
    again = fae_gpu.Inputs(SMALL).batches[0].sparse_features.values()
    assert torch.equal(inputs.batches[0].sparse_features.values(), again)
    ids = inputs.batches[0].sparse_features["C1"].values().numpy()  # a column drawn by itself
    rows = inputs.configs[0].num_embeddings
    counts = np.sort(np.bincount(ids, minlength=rows))[::-1]
    power = 1 - SMALL.slope
    expected = (101**power - 1) / ((rows + 1) ** power - 1)  # of the 100 rows looked up most
    assert counts[:100].sum() / len(ids) == pytest.approx(expected, abs=0.015)
    assert np.flatnonzero(np.bincount(ids, minlength=rows)).max() > 0.99 * rows  # scattered


def test_columns_depend_on_each_other():
    kjt = fae_gpu.Inputs(SMALL).batches[0].sparse_features
    hot = {}
    for key in ("C1", "C10", "C20", "C11"):  # by itself; by what is advertised: twice as it is
        ids = kjt[key].values().numpy()
        counts = np.bincount(ids)
        hot[key] = counts[ids] >= np.quantile(counts[ids], 0.5)
    assert np.array_equal(hot["C10"], hot["C20"])
    together = (hot["C10"] & hot["C11"]).mean() / (hot["C10"].mean() * hot["C11"].mean())
    assert together > 1.1
    alone = (hot["C1"] & hot["C10"]).mean() / (hot["C1"].mean() * hot["C10"].mean())
    assert alone == pytest.approx(1, abs=0.05)


def test_a_table_is_filled_alike_whatever_its_pieces():
    whole, parts = torch.empty(5000, 4), torch.empty(20_000)
    fae_gpu.fill(whole)
    assert whole.abs().max() <= 5000**-0.5
    assert len(whole.unique()) > 19_000
    assert abs(float(whole.mean())) < 0.02 * 5000**-0.5
    fae_gpu.fill(parts.view(5000, 4))
    assert torch.equal(whole, parts.view(5000, 4))


def test_arms_that_do_not_fit_the_host_are_refused_before_they_are_built():
    setup = replace(fae_gpu.DRY_RUN, scale=1.0, most_rows=1 << 31, dim=1024, batches=1, sample=1)
    with pytest.raises(fae_gpu.SettingError, match="do not fit the memory"):
        fae_gpu.Bench(setup, torch.device("cpu"), ["cpu", "uvm"])
