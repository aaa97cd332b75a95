"""Loops that mark no step, and how many steps of an optimizer each of them takes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from trainobs import load_run, observe
from trainobs.integrations.plain import Observation

BATCHES, EPOCHS = 16, 3
ALL = BATCHES * EPOCHS


def batches(count: int = BATCHES, **arguments: object) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.rand(4 * count, 3)), batch_size=4, **arguments)  # type: ignore[arg-type]


class Model:
    """A model with two optimizers."""

    def __init__(self) -> None:
        self.net = torch.nn.Linear(3, 1)
        self.one, self.other = (torch.optim.SGD(self.net.parameters(), lr=0.1) for _ in range(2))

    def look(self, batch: list[torch.Tensor]) -> torch.Tensor:
        loss: torch.Tensor = self.net(batch[0]).sum()
        return loss

    def train(self, batch: list[torch.Tensor], *, steps: bool = True) -> None:
        self.look(batch).backward()
        if steps:
            self.one.step()
            self.one.zero_grad()


Loop = Callable[[Observation, Model], None]


def each(obs: Observation, model: Model) -> None:
    loader = obs.loader(batches())
    for _ in range(EPOCHS):
        for batch in loader:
            model.train(batch)


def accumulated(obs: Observation, model: Model) -> None:
    loader = obs.loader(batches())
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader):
            model.train(batch, steps=number % 4 == 3)


def accumulated_over_epochs(obs: Observation, model: Model) -> None:
    loader, number = obs.loader(batches()), 0
    for _ in range(EPOCHS):
        for batch in loader:
            number += 1
            model.train(batch, steps=number % 5 == 0)


def accumulated_with_a_rest(obs: Observation, model: Model) -> None:
    loader = obs.loader(batches())
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader):
            model.train(batch, steps=number % 5 == 4)
        model.one.step()  # of the one batch that is left


def looks_first(obs: Observation, model: Model) -> None:
    loader = obs.loader(batches())
    for _ in range(EPOCHS):
        next(iter(loader))
        for batch in loader:
            model.train(batch)


def validates_with_gradients(obs: Observation, model: Model) -> None:
    loader, others = obs.loader(batches()), obs.loader(batches(7))
    for _ in range(EPOCHS):
        for batch in loader:
            model.train(batch)
        for source in (others, loader):
            for batch in source:
                model.look(batch)


def validates_within_an_epoch(obs: Observation, model: Model) -> None:
    loader, others = obs.loader(batches()), obs.loader(batches(7))
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader):
            model.train(batch)
            if number % 5 == 0:
                for other in others:
                    model.look(other)


def validates_without_gradients(obs: Observation, model: Model) -> None:
    loader, others = obs.loader(batches()), obs.loader(batches(7))
    for _ in range(EPOCHS):
        for batch in loader:
            model.train(batch)
        with torch.no_grad():
            for batch in others:
                model.look(batch)


def validates_before(obs: Observation, model: Model) -> None:
    for batch in obs.loader(batches(7)):
        model.look(batch)
    each(obs, model)


def fetches_ahead(obs: Observation, model: Model, ahead: int = 1) -> None:
    loader = obs.loader(batches())
    for _ in range(EPOCHS):
        source = iter(loader)
        waiting = [next(source) for _ in range(ahead)]
        while waiting:
            waiting += [batch] if (batch := next(source, None)) else []
            model.train(waiting.pop(0))


def fetches_two_ahead(obs: Observation, model: Model) -> None:
    fetches_ahead(obs, model, 2)


def two_optimizers(obs: Observation, model: Model) -> None:
    loader = obs.loader(batches())
    for _ in range(EPOCHS):
        for batch in loader:
            model.train(batch)
            model.other.step()


def several_steps_of_a_batch(obs: Observation, model: Model) -> None:
    loader = obs.loader(batches())
    for _ in range(EPOCHS):
        for batch in loader:
            for _ in range(4):
                model.train(batch)


def two_loaders(obs: Observation, model: Model) -> None:
    one, other = obs.loader(batches()), obs.loader(batches(BATCHES + 3))
    for _ in range(EPOCHS):
        for batch, _ in zip(one, other, strict=False):
            model.train(batch)


def loader_in_a_loader(obs: Observation, model: Model) -> None:
    outer, inner = obs.loader(batches(4)), obs.loader(batches(4))
    for _ in range(EPOCHS):
        for _ in outer:
            for batch in inner:
                model.train(batch)


def with_workers(obs: Observation, model: Model) -> None:
    loader = obs.loader(batches(num_workers=2))
    for _ in range(EPOCHS):
        for number, batch in enumerate(loader):
            model.train(batch, steps=number % 2 == 1)


def closures(obs: Observation, model: Model) -> None:
    optimizer = torch.optim.LBFGS(model.net.parameters(), max_iter=3)
    loader = obs.loader(batches())

    def closure(batch: list[torch.Tensor]) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model.look(batch) ** 2
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.step(partial(closure, batch))


def by_hand(obs: Observation, model: Model) -> None:
    loader = obs.loader(batches())
    for _ in range(EPOCHS):
        for batch in loader:
            model.train(batch, steps=False)
            with torch.no_grad():
                for parameter in model.net.parameters():
                    parameter -= 0.1


LOOPS: list[tuple[Loop, int]] = [
    (each, ALL),
    (accumulated, ALL // 4),
    (accumulated_over_epochs, ALL // 5),
    (accumulated_with_a_rest, (BATCHES // 5 + 1) * EPOCHS),
    (looks_first, ALL),
    (validates_with_gradients, ALL),
    (validates_within_an_epoch, ALL),
    (validates_without_gradients, ALL),
    (fetches_ahead, ALL),
    (fetches_two_ahead, ALL),
    (two_optimizers, ALL),
    (several_steps_of_a_batch, ALL),
    (two_loaders, ALL),
    (loader_in_a_loader, 16 * EPOCHS),
    (with_workers, ALL // 2),
    (closures, ALL),
    (by_hand, ALL),
]


def observed(run_dir: Path, loop: Loop) -> list[tuple[int, int]]:
    """Number and epoch of the steps of a loop, without gaps between them."""
    with observe(run_dir=run_dir, probes="off", quiet=True) as obs:
        loop(obs, Model())
    steps = load_run(run_dir).steps.to_pandas().query("step >= 0")
    begin, took = steps["start_ns"].to_numpy(), steps["step/duration_ns"].to_numpy()
    assert all(a + d == b for (a, b), d in zip(pairwise(begin), took, strict=False))
    return [(int(step), int(epoch)) for step, epoch in zip(steps.step, steps.epoch, strict=True)]
