"""Manual optimization under Lightning: what is a step, and where its backward passes are."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.integrations.models import FEATURES, Lightning, loader, read_steps
from trainobs import ObsCallback

SLEEP_S = 0.01
BATCHES = 8
PHASES = [f"phase/{name}_ns" for name in ("transfer", "checkpoint", "validation", "other")]


class Slow(torch.autograd.Function):
    """Takes its time in the backward pass."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        time.sleep(SLEEP_S)
        return gradient


class Failing(Slow):
    """Fails in the backward pass."""

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        raise MemoryError("as of a GPU")


Step = Callable[[Any, Tensor, int], None]


def manual(lightning: Lightning, step: Step, **options: Any) -> tuple[ObsCallback, Any, Any]:
    """A fit of a module with two networks, two optimizers and a training step of its own."""

    class Module(lightning.pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.one, self.two = nn.Linear(FEATURES, 1), nn.Linear(FEATURES, 1)
            self.took = defaultdict(float)

        def configure_optimizers(self) -> list[Any]:
            return [torch.optim.SGD(net.parameters(), lr=0.1) for net in (self.one, self.two)]

        def training_step(self, batch: Tensor, batch_idx: int) -> None:
            step(self, batch, batch_idx)

        def back(self, net: nn.Module, batch: Tensor, by: Any = Slow) -> None:
            """A backward pass by `manual_backward`, and the time that it took."""
            loss = by.apply(net(batch).mean())
            begin = time.monotonic_ns()
            self.manual_backward(loss)
            self.took[self.trainer.fit_loop.epoch_loop.total_batch_idx] += (
                time.monotonic_ns() - begin
            )

    module, callback = Module(), ObsCallback()
    trainer = lightning.trainer(callback, max_epochs=1, **options)
    trainer.fit(module, loader(2 * BATCHES))
    return callback, module, trainer


def column(callback: ObsCallback, name: str) -> list[Any]:
    """Of all steps; the set-up is left out."""
    return read_steps(callback.run_dir)[name].to_pylist()[1:]


def both(module: Any, batch: Tensor, number: int) -> None:
    """As of a GAN: each network in turn."""
    for net, optimizer in zip((module.one, module.two), module.optimizers(), strict=True):
        time.sleep(SLEEP_S)
        optimizer.zero_grad()
        module.back(net, batch)
        optimizer.step()


def assert_adds_up(callback: ObsCallback) -> None:
    """All of a step after the first is in a phase that is known."""
    names = [*PHASES, *(f"phase/{name}_ns" for name in ("forward", "backward", "optimizer"))]
    for row in read_steps(callback.run_dir).to_pylist()[2:]:
        found = sum(row[name] or 0 for name in (*names, "loader/wait_ns"))
        assert found == pytest.approx(row["step/duration_ns"], abs=50_000)


def test_a_batch_in_which_two_optimizers_step_is_one_step(lightning):
    callback, _, trainer = manual(lightning, both)
    assert trainer.global_step == 2 * BATCHES
    assert column(callback, "step") == list(range(BATCHES))


def test_backward_forward_and_optimizer_have_the_time_spent_in_them(lightning):
    callback, module, _ = manual(lightning, both)
    backward = column(callback, "phase/backward_ns")
    for found, own in zip(backward, module.took.values(), strict=True):
        assert 2e9 * SLEEP_S <= found <= own
    for phase in ("forward", "backward"):
        assert min(column(callback, f"phase/{phase}_ns")) >= 2e9 * SLEEP_S
    assert min(column(callback, "phase/optimizer_ns")) > 0
    assert max(column(callback, "phase/optimizer_ns")) < 1e9 * SLEEP_S
    assert_adds_up(callback)


def test_backward_passes_of_several_batches_are_of_their_step(lightning):
    def accumulating(module: Any, batch: Tensor, number: int) -> None:
        module.back(module.one, batch)
        if number % 4 == 3:
            module.optimizers()[0].step()
            module.optimizers()[0].zero_grad()

    callback, _, _ = manual(lightning, accumulating)
    assert column(callback, "step") == [3, 7]  # as Lightning's loggers count
    assert min(column(callback, "phase/backward_ns")) >= 4e9 * SLEEP_S


def test_a_backward_pass_within_the_optimizers_closure(lightning):
    def closing(module: Any, batch: Tensor, number: int) -> None:
        optimizer = module.optimizers()[0]
        optimizer.step(closure=lambda: module.back(module.one, batch))

    callback, _, _ = manual(lightning, closing)
    assert min(column(callback, "phase/backward_ns")) >= 1e9 * SLEEP_S
    assert max(column(callback, "phase/forward_ns")) < 1e9 * SLEEP_S
    assert_adds_up(callback)


def test_a_backward_pass_that_failed_is_over_with_the_next_one(lightning):
    def trying(module: Any, batch: Tensor, number: int) -> None:
        if number % 2 == 0:
            with pytest.raises(MemoryError):
                module.back(module.one, batch, by=Failing)
        if number % 4 != 2:
            module.back(module.one, batch)
        time.sleep(SLEEP_S)
        module.optimizers()[0].step()

    callback, _, _ = manual(lightning, trying)
    assert column(callback, "step") == list(range(BATCHES))
    other, backward = column(callback, "phase/other_ns"), column(callback, "phase/backward_ns")
    assert max(other[1:]) < 1e9 * SLEEP_S
    assert min(backward) >= 1e9 * SLEEP_S  # of one that only failed, until the step was over
    forward = column(callback, "phase/forward_ns")
    assert min(forward[0::2] + forward[3::4]) < 1e9 * SLEEP_S <= min(forward[1::2])


@pytest.mark.parametrize("ever_seen", [False, True])
def test_what_nobody_sees_is_unknown_and_not_zero(lightning, ever_seen):
    def own(module: Any, batch: Tensor, number: int) -> None:
        if ever_seen and number < 2:
            module.back(module.one, batch)
        else:
            Slow.apply(module.one(batch).mean()).backward()
        module.optimizers()[0].step()

    callback, _, _ = manual(lightning, own)
    assert column(callback, "step") == list(range(BATCHES))
    for phase in ("forward", "backward"):
        assert set(column(callback, f"phase/{phase}_ns")) == {None}
    assert min(column(callback, "phase/optimizer_ns")) > 0
    assert min(column(callback, "phase/other_ns")[3 if ever_seen else 1 :]) >= 1e9 * SLEEP_S


def test_a_validation_is_one_phase_whatever_it_does(lightning):
    class Validated(lightning.pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.net = nn.Linear(FEATURES, 1)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

        def training_step(self, batch: Tensor, batch_idx: int) -> None:
            self.manual_backward(self.net(batch).mean())
            self.optimizers().step()

        def validation_step(self, batch: Tensor, batch_idx: int) -> None:
            with torch.enable_grad():
                self.manual_backward(Slow.apply(self.net(batch).mean()))

    callback = ObsCallback()
    trainer = lightning.trainer(callback, max_epochs=1, inference_mode=False)
    trainer.fit(Validated(), loader(2 * BATCHES), loader(4))
    assert max(column(callback, "phase/backward_ns")) < 1e9 * SLEEP_S
    assert column(callback, "phase/validation_ns")[-1] >= 2e9 * SLEEP_S


def test_weights_are_the_same_to_the_last_bit(lightning, monkeypatch):
    found = []
    for switch in ("on", "off"):
        monkeypatch.setenv("TRAINOBS", switch)
        torch.manual_seed(0)
        found.append(manual(lightning, both)[1].one.weight.detach().clone())
    assert torch.equal(*found)
