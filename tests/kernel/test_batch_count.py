"""How many batches a step takes."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from trainobs import observe
from trainobs.analysis.comparison.step_work import StepWork, work_of
from trainobs.core.records import SETUP
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


def train_on(loader, run_dir, *, skips=()):
    """A training of a step a batch, observed; the exceptions `skips` of a worker are passed over.

    Returns the run, and the batches that the loop got.
    """
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters())
    got = 0
    with observe(run_dir=run_dir, quiet=True) as obs:
        batches = iter(obs.loader(loader))
        while True:
            try:
                inputs = next(batches)
            except skips:
                continue
            except StopIteration:
                break
            got += 1
            model(inputs).sum().backward()
            optimizer.step()
    return RunLog.open(run_dir), got


class Stream(IterableDataset):
    """Of two workers the second has four batches more."""

    def __iter__(self):
        count = 2 + 4 * get_worker_info().id
        return iter(torch.ones(count, 2, 3))


class Faulty(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 13:
            raise LookupError(index)
        return torch.ones(3)


def resumed():
    before = StatefulDataLoader(torch.ones(40, 3), 4, num_workers=2)
    batches = iter(before)
    next(batches), next(batches), next(batches)
    after = StatefulDataLoader(torch.ones(40, 3), 4, num_workers=2)
    after.load_state_dict(before.state_dict())
    return after


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata's
@pytest.mark.parametrize(
    ("made", "count"),
    [
        (lambda: DataLoader(Stream(), None, num_workers=2), 8),
        (lambda: DataLoader(Faulty(), 4, num_workers=2), 9),
        (lambda: DataLoader(Faulty(), 4, num_workers=2, in_order=False), 9),
        (resumed, 7),
    ],
    ids=["a worker that ends first", "an exception", "in no order", "a pass taken up"],
)
def test_batches_whose_maker_is_not_known_are_counted_all_the_same(tmp_path, made, count):
    run, got = train_on(made(), tmp_path / "run", skips=LookupError)
    assert got == count
    counts = run.rank.metric("loader/batch_count")[run.rank.step() != SETUP]
    assert counts.tolist() == [1.0] * count
