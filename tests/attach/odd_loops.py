"""Loops of which it is hard to say what a step is, of `loops.py`."""

from __future__ import annotations

import multiprocessing
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.data import DataLoader

from tests.attach.loop_parts import (
    PLACE,
    Files,
    backward,
    batches,
    going_on,
    is_over,
    model,
    note,
    train,
)


def sgd(net: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), 0.01)


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: torch.Tensor) -> None:
    optimizer.zero_grad()
    backward(net(batch).sum())
    optimizer.step()


def gan() -> None:
    """The discriminator has two backward passes, one on what the generator makes."""
    fetched = batches()
    _adversaries(lambda: next(fetched))


def gan_without_loader() -> None:
    """Each optimizer steps by itself, and nothing tells that two steps are one turn."""
    _adversaries(lambda: torch.zeros(1, 16))


def _adversaries(real: Callable[[], torch.Tensor]) -> None:
    generator, critic = model(), model()
    optimizers = [sgd(generator), sgd(critic)]
    for _ in going_on():
        batch, made = real(), generator(torch.randn(1, 16))
        optimizers[1].zero_grad()
        backward(critic(batch).sum())
        backward(critic(made.detach()).sum())
        optimizers[1].step()
        step(torch.nn.Sequential(generator, critic), optimizers[0], torch.randn(1, 16))


def actor_critic() -> None:
    """Reinforcement learning from a buffer in memory: no loader, three optimizers in a turn."""
    nets = [model() for _ in range(3)]
    optimizers = [sgd(net) for net in nets]
    buffer: list[torch.Tensor] = []
    for number, _ in enumerate(going_on()):
        with torch.no_grad():
            buffer = [*buffer[-100:], nets[0](torch.randn(1, 16))]
        if number % 4 == 3:  # the others only act
            for net, optimizer in zip(nets, optimizers, strict=True):
                step(net, optimizer, buffer[number % len(buffer)])


def changing() -> None:
    """Sums gradients up over one batch, then over four, then over one again."""
    net, fetched = model(), batches()
    optimizer = sgd(net)
    for number, _ in enumerate(going_on()):
        for _ in range(4 if number // 40 % 2 else 1):
            backward(net(next(fetched)).sum())
        optimizer.step()
        optimizer.zero_grad()


def pauses() -> None:
    """Cells of a notebook, which somebody runs now and then."""
    net, fetched = model(), batches()
    optimizer = sgd(net)
    while not is_over():
        for _, _ in zip(range(15), going_on(), strict=False):
            step(net, optimizer, next(fetched))
        time.sleep(0.3)


def population() -> None:
    """Several models take turns, each in a generator that stops in the middle of its step."""

    def training() -> Iterator[None]:
        net, fetched = model(), batches()
        optimizer = sgd(net)
        while True:
            loss = net(next(fetched)).sum()
            yield
            optimizer.zero_grad()
            backward(loss)
            optimizer.step()
            yield

    members = [training() for _ in range(3)]
    for _ in going_on():
        for member in members + members:
            next(member)


def zipped() -> None:
    """Two loaders at once."""
    net, optimizer = (found := model()), sgd(found)
    pairs = zip(batches(), batches(), strict=False)
    for _ in going_on():
        step(net, optimizer, sum(next(pairs)))


def nested() -> None:
    """Items that come out of another loader."""

    class Outer(Files):
        def __init__(self) -> None:
            super().__init__()
            self.inner = batches()

        def __getitem__(self, index: int) -> torch.Tensor:
            return next(self.inner)[0]

    net, fetched = model(), iter(DataLoader(Outer(), 1))
    optimizer = sgd(net)
    for _ in going_on():
        step(net, optimizer, next(fetched))


def ahead() -> None:
    """The next batch is fetched between the backward pass and the optimizer."""
    net, fetched = model(), batches()
    optimizer, batch = sgd(net), next(fetched)
    for _ in going_on():
        optimizer.zero_grad()
        backward(net(batch).sum())
        batch = next(fetched)
        optimizer.step()


def in_backward() -> None:
    """Each parameter has an optimizer of its own, which steps as soon as its gradient is there."""
    net, fetched = torch.nn.Sequential(*(model() for _ in range(8))), batches()
    for parameter in net.parameters():
        optimizer = torch.optim.SGD([parameter], 0.01)

        def now(parameter: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.step()
            optimizer.zero_grad()

        parameter.register_post_accumulate_grad_hook(now)
    for _ in going_on():
        backward(net(next(fetched)).sum())


def wrapped() -> None:
    """An optimizer around another one, as Lookahead."""

    class Around(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure: None = None) -> None:
            self.inner.step()

    net = model()
    train(net, Around(sgd(net)))


def sharpness() -> None:
    """An optimizer that has a second backward pass made, and steps by another one (SAM)."""

    class Twice(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure: Callable[[], None]) -> None:
            closure()
            self.inner.step()

    net = model()
    optimizer = Twice(sgd(net))
    for _ in going_on():
        backward(net(torch.zeros(1, 16)).sum())
        note("turn")
        optimizer.step(lambda: backward(net(torch.zeros(1, 16)).sum()))


def many_steps() -> None:
    """Twelve steps with each batch, at once."""
    net, fetched = model(), batches()
    optimizer = sgd(net)
    for _ in going_on():
        batch = next(fetched)
        for _ in range(12):
            step(net, optimizer, batch)
            time.sleep(0.002)


def short_epochs() -> None:
    """The same of an epoch of one batch: two fetches come together."""
    net, fetched = model(), batches(length=1)
    optimizer, batch = sgd(net), next(fetched)
    for number, _ in enumerate(going_on()):
        if number % 12 == 11:
            batch = next(fetched)
        step(net, optimizer, batch)


def buffered() -> None:
    """Twelve batches at once, and then a step with each."""
    net, fetched = model(), batches()
    optimizer = sgd(net)
    ready: list[torch.Tensor] = []
    for _ in going_on():
        ready = ready or [next(fetched) for _ in range(12)]
        step(net, optimizer, ready.pop())


def some_steps() -> None:
    """Five steps with each batch: as much as a step of several optimizers may have."""
    net, fetched = model(), batches()
    optimizer = sgd(net)
    for _ in going_on():
        batch = next(fetched)
        for _ in range(5):
            step(net, optimizer, batch)


def prefetched() -> None:
    """Another thread fetches."""
    ready: queue.Queue[torch.Tensor] = queue.Queue(4)

    def fetch() -> None:
        for batch in batches():
            ready.put(batch)

    threading.Thread(target=fetch, daemon=True).start()
    net = model()
    optimizer = sgd(net)
    for _ in going_on():
        step(net, optimizer, ready.get())


def threads_backward() -> None:
    """Two threads have a part of each batch, as with replicas; the first thread steps."""
    fetched = batches()
    _replicas(lambda: next(fetched))


def threads_without_loader() -> None:
    """The same, from memory: which thread has how many passes is by chance."""
    _replicas(lambda: torch.zeros(1, 16))


def _replicas(batch: Callable[[], torch.Tensor]) -> None:
    net, pool = model(), ThreadPoolExecutor(2)
    optimizer = sgd(net)

    def part(batch: torch.Tensor) -> None:
        backward(net(batch).sum())
        time.sleep(0.001)

    for _ in going_on():
        optimizer.zero_grad()
        list(pool.map(part, [batch()] * 3))
        optimizer.step()


def two_threads() -> None:
    """Each trains a model of its own; the second one from a signal of the test's on."""
    thread = threading.Thread(target=_second)
    thread.start()
    _one()
    thread.join()


def _second() -> None:
    while not (is_told_to() or is_over()):
        time.sleep(0.01)
    _one()


def _one() -> None:
    net, fetched = model(), batches()
    optimizer = sgd(net)
    for _ in going_on():
        step(net, optimizer, next(fetched))


def is_told_to() -> bool:
    return (PLACE / "go").exists()


def summed_up() -> None:
    """Gradients of all batches, until a signal of the test's."""
    net, fetched = model(), batches()
    optimizer = sgd(net)
    for _ in going_on():
        backward(net(next(fetched)).sum())
        if is_told_to():
            optimizer.step()
            optimizer.zero_grad()


def functional() -> None:
    """Gradients by torch.func, and no optimizer of torch."""
    net, fetched = model(), batches()
    values = dict(net.named_parameters())

    def loss(values: dict[str, torch.Tensor], batch: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(net, values, batch).square().sum()

    for _ in going_on():
        batch = next(fetched)
        note("back")
        gradients = torch.func.grad(loss)(values, batch)
        values = {name: value - 0.01 * gradients[name] for name, value in values.items()}


def in_a_child() -> None:
    """What was started has torch, and only its child trains."""
    child = multiprocessing.get_context("fork").Process(target=_train_there)
    child.start()
    child.join()


def _train_there() -> None:
    net = model()
    train(net, sgd(net))


def evaluated() -> None:
    """Hugging Face's trainer with evaluations and checkpoints."""
    from tests.attach.framework_loops import hugging_face_trainer

    hugging_face_trainer(
        eval_strategy="steps",
        eval_steps=7,
        save_strategy="steps",
        save_steps=11,
        save_total_limit=1,
    ).train()


LOOPS: dict[str, Callable[[], None]] = {
    loop.__name__: loop
    for loop in (
        *(gan, gan_without_loader, actor_critic, changing, pauses, population, zipped, nested),
        *(ahead, in_backward, wrapped, many_steps, some_steps, short_epochs, buffered, prefetched),
        *(threads_backward, threads_without_loader, two_threads, summed_up, functional),
        *(in_a_child, evaluated, sharpness),
    )
}
