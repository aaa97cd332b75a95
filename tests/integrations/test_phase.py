"""`trainobs.phase`: a phase of one's own under whatever observes the thread."""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from transformers import Trainer

import trainobs
from tests.integrations.models import Numbers, loader, read_steps
from tests.integrations.trainers import column
from trainobs import ObsCallback, ObsTrainerCallback, observe
from trainobs.integrations.scope import NOTHING

AUGMENT_S = 0.003
AUGMENT = "phase/augment_ns"


def augment(*_: Any) -> None:
    with trainobs.phase("augment"):
        time.sleep(AUGMENT_S)


def is_augmented(times: list[int | None]) -> bool:
    return min(times[1:]) >= AUGMENT_S * 1e9


def test_under_lightning(lightning):
    callback = ObsCallback()
    lightning.trainer(callback).fit(lightning.module(augment), loader())
    times = column(callback, AUGMENT)
    assert is_augmented(times)
    assert len(times) == 9
    assert max(column(callback, "phase/forward_ns")[1:]) > 0
    assert trainobs.phase("augment") is NOTHING


class Augmenting(Trainer):
    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        augment()
        return super().training_step(*args, **kwargs)


def test_under_hugging_face(hf):
    callback = ObsTrainerCallback()
    hf.train(callback, kind=Augmenting)
    assert is_augmented(column(callback, AUGMENT))
    assert trainobs.phase("augment") is NOTHING


def test_in_a_plain_loop_it_is_of_the_newer_of_two_runs(tmp_path):
    with observe(run_dir=tmp_path / "outer", probes="off") as outer:
        with observe(run_dir=tmp_path / "inner", probes="off") as inner:
            for one in (outer, inner):
                one.step().__enter__()
            augment()
        with trainobs.phase("later"):
            time.sleep(AUGMENT_S)
    later = "phase/later_ns"
    for run, has, lacks in (("inner", AUGMENT, later), ("outer", later, AUGMENT)):
        steps = read_steps(tmp_path / run)
        assert steps[has].to_pylist()[1] >= AUGMENT_S * 1e9
        assert lacks not in steps.column_names


def test_where_nobody_observes_the_thread_nothing_is_marked(tmp_path):
    augment()
    with observe(run_dir=tmp_path / "run", probes="off") as obs, obs.step():
        other = threading.Thread(target=augment)
        other.start()
        other.join()
    assert AUGMENT not in read_steps(tmp_path / "run").column_names


class Augmented(Numbers):
    def __getitem__(self, index: int) -> torch.Tensor:
        augment()
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 1])
def test_in_a_forked_worker_it_does_nothing(tmp_path, workers):
    with observe(run_dir=tmp_path / "run", probes="off") as obs:
        batches = DataLoader(Augmented(8), batch_size=2, num_workers=workers)
        for _ in obs.loader(batches):
            with obs.step():
                pass
    names = read_steps(tmp_path / "run").column_names
    assert (AUGMENT in names) == (workers == 0)


def test_a_callback_that_observes_can_be_copied(lightning):
    copies = []
    callback = ObsCallback(probes="off")
    step = lambda _: copies.append(pickle.loads(pickle.dumps(callback)))  # noqa: E731, S301
    lightning.trainer(callback, max_steps=1).fit(lightning.module(step), loader())
    assert copies[0].run_dir is None


def test_it_needs_no_torch(tmp_path: Path):
    code = "import sys, trainobs\nwith trainobs.phase('x'): pass\nassert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
