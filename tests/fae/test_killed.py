"""A training with hot rows that is killed in mid-epoch goes on as if nothing had happened."""

from __future__ import annotations

import multiprocessing as mp
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.fae import killed

PATIENCE_S = 250  # of one training; three to five seconds of CPU time


def start(world_size: int, folder: Path, resume: str = "") -> list[Any]:
    """Ranks that train, each a process of its own."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["tests.fae.killed", "torch.distributed.optim"])  # both are slow
    ranks = [
        context.Process(target=killed.train, args=(rank, world_size, folder, resume))
        for rank in range(world_size)
    ]
    for rank in ranks:
        rank.start()
    return ranks


def finish(ranks: list[Any]) -> None:
    for rank in ranks:
        rank.join(PATIENCE_S)
        assert rank.exitcode == 0


def ends(world_size: int, folder: Path) -> list[dict[str, torch.Tensor]]:
    return [torch.load(folder / f"end-{rank}") for rank in range(world_size)]


def kill_after(step: int, ranks: list[Any], folder: Path) -> int:
    """Kill all ranks some time after a checkpoint; return of which step the last one is."""
    deadline = time.monotonic() + PATIENCE_S
    latest = folder / "latest"
    while not latest.exists() or int(latest.read_text()) < step:
        assert time.monotonic() < deadline
        assert all(rank.is_alive() for rank in ranks)
        time.sleep(0.01)
    for rank in ranks:
        rank.kill()
        rank.join()
        assert rank.exitcode == -9
    return int(latest.read_text())


def same(these: list[dict[str, torch.Tensor]], those: list[dict[str, torch.Tensor]]) -> bool:
    assert [list(one) for one in these] == [list(one) for one in those]
    return all(
        torch.equal(value, other[name])
        for one, other in zip(these, those, strict=True)
        for name, value in one.items()
    )


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("world_size", "step"), [(1, 20), (2, 10)])
def test_a_killed_training_goes_on_bit_equal(tmp_path: Path, world_size: int, step: int) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for folder in (whole, broken):
        folder.mkdir()
    finish(start(world_size, whole))
    expected = ends(world_size, whole)
    assert len(expected[0]) > 60

    at = kill_after(step, start(world_size, broken), broken)
    assert step <= at < killed.EPOCHS * killed.STEPS
    assert at % killed.STEPS
    assert not (broken / "end-0").exists()
    finish(start(world_size, broken, "all"))
    assert same(ends(world_size, broken), expected)

    if world_size == 1:  # the control: something was left out
        (broken / "latest").write_text(str(at))
        finish(start(world_size, broken, "without optimizer"))
        assert not same(ends(world_size, broken), expected)
