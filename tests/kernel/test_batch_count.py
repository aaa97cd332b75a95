"""How many batches a step takes."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from trainobs import observe
from trainobs.analysis.step_work import StepWork, work_of
from trainobs.runlog.reader import RunLog


def test_a_loop_that_accumulates_gradients_tells_its_batches(tmp_path):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters())
    loader, beside = DataLoader(torch.ones(96, 3), 4), DataLoader(torch.ones(50, 3), 25)
    with observe(run_dir=tmp_path / "run", quiet=True) as obs:
        for number, inputs in enumerate(loader):
            model(inputs).sum().backward()
            if number % 3 == 2:
                optimizer.step()
                optimizer.zero_grad()
            if number == 6:
                with obs.phase("validation"), torch.no_grad():
                    list(map(model, beside))
    run = RunLog.open(tmp_path / "run")
    assert run.rank.metric("loader/batch_count")[1:].tolist() == [3.0] * 8
    assert work_of(run) == StepWork(3.0, (4,), in_pass=24, usual=3.0)
