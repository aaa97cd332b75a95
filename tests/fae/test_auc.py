"""FAE's modes learn what shuffled training learns: benchmarks/fae_auc.py, reduced to one seed."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.examples.conftest import DLRM, forget
from trainobs.fae.sharding.overlay import HotOverlay

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "fae_auc.py"
INPUTS = 16 * 1024


@pytest.fixture(scope="module")
def study(lone_rank: None) -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("fae_auc", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    yield benchmark.Study(seed=0, input_count=INPUTS, epochs=1)
    forget(DLRM)


def test_the_paper_s_mode_learns_as_much(study: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shuffled = study.shuffled()["auc"]
    assert shuffled > 0.7
    paper = study.paper()
    assert paper["pure_steps"] > 8
    assert paper["swaps"] >= 2
    assert abs(paper["auc"] - shuffled) < 0.01

    def forget_training(overlay: HotOverlay) -> None:
        overlay.tables_changed()  # as if the tables held the truth already

    monkeypatch.setattr(HotOverlay, "hand_over", forget_training)  # the control
    lost = study.paper()["auc"]
    assert abs(lost - shuffled) > 0.01


def test_benchmarked_batches_are_those_of_the_data(study: Any) -> None:
    one, other = study.order(1), study.order(2)
    assert [len(batch.labels) for batch in one] == [512] * (INPUTS // 512)
    assert sum(float(b.labels.sum()) for b in one) == sum(float(b.labels.sum()) for b in other)
    assert not torch.equal(one[0].labels, other[0].labels)
