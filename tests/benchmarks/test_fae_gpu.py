"""benchmarks/fae_gpu and benchmarks/gpu: arms train the same, inputs are skewed, all pieces run."""

from __future__ import annotations

import json
import os
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
    from benchmarks.fae_gpu.bench import Bench
    from benchmarks.fae_gpu.inputs import Inputs, fill
    from benchmarks.fae_gpu.setup import ARMS, DRY_RUN
    from benchmarks.gpu.plan import pieces
    from trainobs.core.errors import SettingError
    from trainobs.fae.profile.arguments import byte_count

ROOT = Path(__file__).parents[2]
SMALL = replace(DRY_RUN, most_rows=50_000, batch_size=20_000)

# An arm that cannot be built, among the others.
WITH_A_BROKEN_ARM = """
from benchmarks.fae_gpu import __main__, setup
setup.ARMS["broken"] = setup.Arm("no_such_kernel")
__main__.main()
"""


def run(command, folder):
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def pieces_on_the_host(tmp_path_factory):
    """What each piece found, as the whole measurement leaves it."""
    folder = tmp_path_factory.mktemp("pieces")
    done = run(["-m", "benchmarks.gpu", "--device", "cpu", "--results", str(folder)], ROOT)
    found = json.loads((folder / "all.json").read_text())
    assert {name: state["came"] for name, state in found.items()} == {
        piece.name: "passed" for piece in pieces("cpu")
    }, done.stdout[-2000:]
    return {name: state["found"] for name, state in found.items()}


@pytest.fixture(scope="module")
def results(pieces_on_the_host):
    """Of the piece that measures every arm: `python -m benchmarks.fae_gpu --device cpu`."""
    return pieces_on_the_host["fae"]


def test_all_pieces_of_the_measurement_run_on_the_host(pieces_on_the_host):
    assert pieces_on_the_host["parity"]["control"] == "seen"
    passes = pieces_on_the_host["fae-end-to-end"]["arms"]
    assert all(arm["samples_per_s"]["count"] == 1 for arm in passes.values())
    assert pieces_on_the_host["fae-hot-2GiB"]["tables"]["wholly_hot"] == 26


def test_an_arm_that_cannot_be_built_leaves_the_others(tmp_path):
    arms = ["--arm", "broken", "--arm", "cpu"]
    done = run(
        ["-c", WITH_A_BROKEN_ARM, "--device", "cpu", *arms, "--out", "results.json"], tmp_path
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "results.json").read_text())
    assert "compute kernel" in found["arms"]["broken"]["error"].lower()
    assert found["arms"]["cpu"]["samples_per_s"]["count"] == found["setup"]["rounds"]


def test_every_arm_runs_that_can_run_here(results):
    arms = results["arms"]
    assert not [name for name, facts in arms.items() if "error" in facts]
    left_out = {name for name, facts in arms.items() if "left_out" in facts}
    assert left_out == {"caching_lru_prefetch"}
    ran = set(arms) - left_out
    assert ran == set(ARMS) - {"caching_lru_prefetch"}
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
    assert results["tables"]["hot_bytes"] <= byte_count(DRY_RUN.hot_bytes, "hot_bytes")


def test_inputs_are_as_skewed_as_the_law_says_and_the_same_for_a_seed():
    inputs = Inputs(SMALL)
    again = Inputs(SMALL).draw(1)[0].sparse_features.values()
    kjt = inputs.draw(1)[0].sparse_features
    assert torch.equal(kjt.values(), again)
    ids = kjt["C1"].values().numpy()  # a column drawn by itself
    rows = inputs.configs[0].num_embeddings
    counts = np.sort(np.bincount(ids, minlength=rows))[::-1]
    power = 1 - SMALL.slope
    expected = (101**power - 1) / ((rows + 1) ** power - 1)  # of the 100 rows looked up most
    assert counts[:100].sum() / len(ids) == pytest.approx(expected, abs=0.015)
    assert np.flatnonzero(np.bincount(ids, minlength=rows)).max() > 0.99 * rows  # scattered


def test_columns_depend_on_each_other():
    kjt = Inputs(SMALL).draw(1)[0].sparse_features
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
    fill(whole)
    assert whole.abs().max() <= 5000**-0.5
    assert len(whole.unique()) > 19_000
    assert abs(float(whole.mean())) < 0.02 * 5000**-0.5
    fill(parts.view(5000, 4))
    assert torch.equal(whole, parts.view(5000, 4))


def test_arms_that_do_not_fit_the_host_are_refused_before_they_are_built():
    setup = replace(DRY_RUN, scale=1.0, most_rows=1 << 31, dim=1024, sample=1)
    with pytest.raises(SettingError, match="do not fit the memory"):
        Bench(setup, torch.device("cpu"), ["cpu", "uvm"])
