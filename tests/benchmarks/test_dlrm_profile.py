from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

with warnings.catch_warnings():  # FBGEMM for CPUs warns of kernels that only GPUs have
    warnings.simplefilter("ignore")
    pytest.importorskip("torchrec")

from benchmarks.dlrm_profile import run, step, work
from tests.examples.conftest import DLRM, forget

forget(DLRM)  # other tests have modules of the same names


def test_an_mlp_counts_as_by_hand() -> None:
    counted = work._count(torch.nn.Linear(3, 5, bias=False), torch.zeros(7, 3))
    assert counted.flops == 2 * (2 * 7 * 3 * 5)  # the product, and the gradient of the weights
    assert counted.moved_bytes == 2 * 4 * (7 * 3 + 3 * 5 + 7 * 5)


def test_bytes_are_those_of_operands_and_results() -> None:
    one, other = torch.zeros(10), torch.zeros(10, dtype=torch.float64)
    with work.ByteCounter() as moved:
        one.view(2, 5).t()  # views move nothing
        assert moved.count == 0
        one + other
    assert moved.count == 10 * (4 + 8 + 8)


def test_lookups_count_as_by_hand() -> None:
    # Two bags of 4 values: rows 7, 7 and 3, so one row is updated with the sum of two gradients.
    done = work.lookup_work(lookups=3, unique=2, bags=2, dim=4)
    assert done.flops == 4 + 4 + 2 * 4 * 4  # pooling, merging, state and step of two rows
    forward = 3 * 8 + 3 * 16 + 2 * 16
    backward = 2 * 16 + 3 * 8 + 2 * (2 * 16 + 2 * 4)
    assert done.moved_bytes == forward + backward


def events(*nested: tuple[Any, ...]) -> list[SimpleNamespace]:
    """Events of one thread: (name, begin, end, number of autograd, events inside)."""
    made: list[SimpleNamespace] = []

    def add(parent: Any, name: str, start: int, end: int, number: int, inside: Any) -> None:
        own = end - start - sum(stop - begin for _, begin, stop, _, _ in inside)
        event = SimpleNamespace(
            id=len(made),
            name=name,
            thread=1,
            time_range=SimpleNamespace(start=start, end=end),
            cpu_parent=parent,
            sequence_nr=number,
            self_cpu_time_total=own,
        )
        made.append(event)
        for child in inside:
            add(event, *child)

    for event in nested:
        add(None, *event)
    return made


def test_time_is_put_to_the_part_that_caused_it() -> None:
    wait = ("## KJTAllToAll wait() ##", 12, 15, -1, [])
    profile = events(
        (step.RANGE + "lookups", 10, 20, -1, [wait]),
        (step.RANGE + "top MLP", 20, 30, -1, [("aten::addmm", 22, 28, 5, [])]),
        ("aten::binary_cross_entropy", 30, 33, 6, []),
        (
            step.RANGE + "backward",
            40,
            100,
            -1,
            [
                (step.BACKWARD + "BinaryBackward", 40, 44, 6, []),
                (step.BACKWARD + "AddmmBackward0", 50, 80, 5, [("aten::mm", 55, 75, -1, [])]),
            ],
        ),
    )
    found = step.times(profile, world_size=2)
    assert found == {"lookups": 7, "communication": 3 + 26, "top MLP": 10 + 30, "other": 3 + 4}
    assert step.times(profile, world_size=1)["other"] == 3 + 4 + 26


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole profile, as small as can be, with one rank."""
    folder = tmp_path_factory.mktemp("profile")
    limits = {"gflop_per_s": 50.0, "copied_gb_per_s": 10.0, "random_rows_gb_per_s": 3.0}
    small = "--rows-scale 0.001 --batch-size 256 --steps 3 --inputs 8192 --ranks 1 --rounds 1"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run.limits, "measure", lambda: limits)  # takes seconds, changes nothing
        patched.setattr(sys, "argv", ["run", *small.split(), "--output", str(folder)])
        run.main()
    return folder


def test_parts_add_up_to_the_step(profile: Path) -> None:
    (path,) = profile.glob("*.json")
    (measured,) = json.loads(path.read_text())["steps"]
    parts = measured["parts_ms"]
    assert sum(parts.values()) == pytest.approx(measured["profiled_step_ms"], rel=0.25)
    for part in ("lookups", "bottom MLP", "interaction", "top MLP", "input", "optimizer"):
        assert parts[part] > 0
    assert parts["top MLP"] > parts["other"]


def test_tables_are_updated_by_the_lookups_part(profile: Path) -> None:
    (path,) = profile.glob("*.json")
    results = json.loads(path.read_text())
    assert [table["table"] for table in results["skew"]["tables"]][:2] == ["C3", "C12"]
    assert results["skew"]["budgets"][0]["all_hot_share"][0] > 0.5
    assert {picture.name for picture in profile.glob("*.png")} == {
        "dlrm-roofs.png",
        "dlrm-parts.png",
        "dlrm-skew.png",
    }
