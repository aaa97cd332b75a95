"""Loops of every kind: each step is the process's own, with the bytes that its data set read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.attach.target import (
    ASKED,
    FETCHES,
    FETCHES_AND_PASSES,
    FILE_BYTES,
    OPTIMIZERS,
    PASSES,
    STEPS,
    StepRule,
    Target,
    attached,
    bytes_by_step,
    check_steps,
    steps_of,
)

pytestmark = pytest.mark.needs_bpf

COMPILED_S = "240"
"""How long a compiler may take for the first step, beside other work."""

EVENTS = ("backward", "optimizer", "fetch")


@pytest.mark.parametrize(
    ("kind", "rule", "events"),
    [
        ("plain", FETCHES, (1, 1, 1)),
        ("epochs", FETCHES, (1, 1, 8 / 7)),  # the fetch that finds the loader exhausted
        ("accumulated", FETCHES, (4, 1, 4)),
        ("two_optimizers", FETCHES, (2, 2, 1)),
        ("validated", FETCHES, (1, 1, 1 + 6 / 7)),
        ("fused", FETCHES, (1, 1, 1)),
        ("foreach", FETCHES, (1, 1, 1)),
        ("lbfgs", FETCHES, None),
        ("penalised", FETCHES, (2, 1, 1)),
        ("checkpointed", FETCHES, (2, 1, 1)),
        ("profiled", FETCHES, (1, 1, 1)),
        ("compiled", FETCHES, (1, 1, 1)),
        ("inductor", FETCHES, (1, 1, 1)),
        ("compiled_optimizer", FETCHES, (1, 1, 1)),
        ("iterable", FETCHES, (1, 1, 1)),
        ("accelerated", FETCHES, (2, 1, 2)),
        ("in_a_thread", FETCHES, (1, 1, 1)),
        ("own_optimizer", FETCHES_AND_PASSES, (1, 0, 1)),
        ("lightning", FETCHES, None),
        ("manual", FETCHES, None),
        ("hugging_face", FETCHES, (2, 1, 2)),
        ("evaluated", FETCHES, None),
        ("gan", FETCHES, (3, 2, 1)),
        ("changing", FETCHES, None),
        ("pauses", FETCHES, (1, 1, 1)),
        ("population", FETCHES, (3, 3, 3)),
        ("zipped", FETCHES, (1, 1, 2)),
        ("nested", FETCHES, (1, 1, 2)),
        ("ahead", FETCHES, (1, 1, 1)),
        ("in_backward", FETCHES, (1, 16, 1)),
        ("wrapped", FETCHES, (1, 1, 1)),
        ("some_steps", FETCHES, (5, 5, 1)),
        ("threads_backward", FETCHES, (0, 1, 1)),  # those of other threads are not in steps
        ("functional", FETCHES_AND_PASSES, (1, 0, 1)),
    ],
)
def test_steps_and_their_bytes_are_exact(
    start: Callable[..., Target],
    tmp_path: Path,
    kind: str,
    rule: StepRule,
    events: tuple[float, float, float] | None,
) -> None:
    target = start(kind, 600)
    pid = target.pid()
    target.settle()
    done = attached(pid, tmp_path / "run", "--for", "4", "--look", COMPILED_S)
    target.stop()
    assert rule.told in done.stderr, done.stderr
    truth, log = target.events(), steps_of(tmp_path / "run")
    own = check_steps(log, truth, rule)
    training = log.step() >= 0
    assert training.sum() > 20
    expected = bytes_by_step(truth, rule)[own]
    assert log.metric("io/data_read_bytes")[training].tolist() == expected
    assert np.isfinite(log.metric("loader/wait_ns")[training]).all()
    seen = _note(tmp_path / "run")["events_per_step"]
    if events:
        assert [seen[name] for name in EVENTS] == pytest.approx(events, rel=0.1)
        assert ("optimizer steps in a step" in done.stderr) == (events[1] > 1)


@pytest.mark.parametrize(
    ("kind", "rule"),
    [
        ("without_loader", OPTIMIZERS),
        ("minibatches", OPTIMIZERS),
        ("many_steps", OPTIMIZERS),
        ("sharpness", StepRule("turn", None, OPTIMIZERS.told, is_first=True)),
        ("short_epochs", OPTIMIZERS),
        ("buffered", OPTIMIZERS),
        ("prefetched", OPTIMIZERS),
        ("actor_critic", OPTIMIZERS),
        ("gan_without_loader", OPTIMIZERS),
        ("threads_without_loader", STEPS),
        ("bare", PASSES),
    ],
)
def test_without_fetches_the_steps_are_exact_and_no_time_of_a_phase_is_told(
    start: Callable[..., Target], tmp_path: Path, kind: str, rule: StepRule
) -> None:
    target = start(kind, 600)
    done = attached(target.pid(), tmp_path / "run", "--for", "3")
    target.stop()
    assert rule.told in done.stderr, done.stderr
    assert not any(bound in done.stderr for bound in ("loader-bound", "compute-bound"))
    assert "no phase of the steps is known" not in done.stderr  # the thread's own time tells more
    log = steps_of(tmp_path / "run")
    check_steps(log, target.events(), rule)
    for name in ("loader/wait_ns", "phase/other_ns", "io/data_read_bytes", "sched/work_offcpu_ns"):
        assert np.isnan(log.metric(name)).all(), name
    assert np.isfinite(log.metric("sched/main_offcpu_ns")).all()


@pytest.mark.parametrize(("kind", "epoch"), [("workers", 1_000_000), ("forking_workers", 30)])
def test_workers_count_as_such_and_read_ahead_by_no_more_than_their_queue(
    start: Callable[..., Target], tmp_path: Path, kind: str, epoch: int
) -> None:
    target = start(kind, 600)
    pid = target.pid()
    target.settle()
    done = attached(pid, tmp_path / "run", "--for", "4")
    target.stop()
    log, truth = steps_of(tmp_path / "run"), target.events()
    assert ASKED.told in done.stderr, done.stderr
    check_steps(log, truth, ASKED)
    training = log.step() >= 0
    read = log.metric("io/data_read_bytes")[training].sum() / FILE_BYTES
    items = np.arange(training.sum() + 100) % epoch
    per_step = (items % 5 + 1).mean()
    ahead = 2 * 2 * 5  # two workers, two batches each, of at most five files
    assert abs(read - per_step * training.sum()) <= ahead + 5
    facts = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    if kind == "workers":  # of the others there may be none as we look
        assert facts["loader_workers"] == 2


def test_each_rank_of_a_job_has_its_log(start: Callable[..., Target], tmp_path: Path) -> None:
    target = start("ddp", 20, ranks=2)
    pid = target.pid(1)
    target.pid(0)
    target.settle()
    done = attached(pid, tmp_path / "run", "--for", "3")
    assert done.stderr.count(FETCHES.told) == 2, done.stderr
    for rank in range(2):
        truth, log = target.events(rank), steps_of(tmp_path / "run", rank)
        own = check_steps(log, truth, FETCHES)
        read = log.metric("io/data_read_bytes")[log.step() >= 0]
        assert read.tolist() == bytes_by_step(truth, FETCHES)[own]


@pytest.mark.parametrize(
    ("kind", "do"), [("inference", "where that is without autograd"), ("idle", "`--look`")]
)
def test_a_process_that_does_not_train_has_no_rate(
    start: Callable[..., Target], tmp_path: Path, kind: str, do: str
) -> None:
    target = start(kind, 600)
    done = attached(target.pid(), tmp_path / "run", "--for", "1", "--look", "8")
    assert done.returncode == 2
    assert "no step boundary found: in" in done.stderr
    assert "backward passes 0, steps of an optimizer 0" in done.stderr
    assert do in done.stderr
    assert not (tmp_path / "run").exists()


def _note(run_dir: Path) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = json.loads((run_dir / "run.json").read_text())["settings"]
    return found["attached"]  # type: ignore[return-value]
