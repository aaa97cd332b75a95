"""Training loops that import nothing of trainobs, and write down what they do.

Usage: python -m tests.attach.loops KIND DIRECTORY SECONDS

All but `ddp`, of which each rank makes as many steps, end before, once there is a file `stop` in
DIRECTORY.

Into DIRECTORY go the data and, at the end, `truth-RANK.json`: a list of [what, CLOCK_MONOTONIC in
ns, bytes], with "get" for an item that the data set reads in this process, "ask" where the loop
asks for a batch, "opt" for a step of an optimizer, "back" for a backward pass that the loop begins.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from tests.attach import odd_loops
from tests.attach.framework_loops import accelerated, ddp, hugging_face, lightning, manual
from tests.attach.loop_parts import (
    FILE_BYTES,
    KIND,
    PLACE,
    Files,
    accumulated,
    backward,
    batches,
    going_on,
    model,
    note,
    train,
    write_down,
)


def plain(workers: int = 0, length: int = 1_000_000) -> None:
    net = model()
    train(net, torch.optim.SGD(net.parameters(), 0.1), workers, length)


def epochs() -> None:
    plain(length=7)


def two_optimizers() -> None:
    nets, fetched = (model(), model()), batches()
    optimizers = [torch.optim.Adam(net.parameters()) for net in nets]
    for _ in going_on():
        batch = next(fetched)
        for net, optimizer in zip(nets, optimizers, strict=True):
            optimizer.zero_grad()
            backward(net(batch).sum())
            optimizer.step()


def validated() -> None:
    net, fetched, checked = model(), batches(), DataLoader(Files(5), 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, _ in enumerate(going_on()):
        optimizer.zero_grad()
        backward(net(next(fetched)).sum())
        optimizer.step()
        if number % 7 == 6:
            with torch.no_grad():
                for batch in checked:
                    net(batch)


def fused() -> None:
    net = model()
    train(net, torch.optim.AdamW(net.parameters(), fused=True))


def foreach() -> None:
    net = model()
    train(net, torch.optim.SGD(net.parameters(), 0.1, foreach=True))


def lbfgs() -> None:
    net, fetched = model(), batches()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    for _ in going_on():
        batch = next(fetched)

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = net(batch).square().sum()
            backward(loss)
            return loss

        optimizer.step(closure)


def penalised() -> None:
    """A gradient penalty: autograd's engine runs twice a step."""
    net, fetched = model(), batches()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    for _ in going_on():
        batch = next(fetched).requires_grad_()
        loss = net(batch).square().sum()
        (gradient,) = torch.autograd.grad(loss, batch, create_graph=True)
        optimizer.zero_grad()
        backward(loss + gradient.square().sum())
        optimizer.step()


def checkpointed() -> None:
    """Activation checkpoints of the kind that start autograd's engine from inside of it."""
    from torch.utils.checkpoint import checkpoint

    net, fetched = model(), batches()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in going_on():
        optimizer.zero_grad()
        batch = next(fetched).requires_grad_()
        backward(checkpoint(net, batch, use_reentrant=True).sum())
        optimizer.step()


def profiled() -> None:
    """Scopes of the user's inside of a fetch and outside."""

    class Scoped(Files):
        def __getitem__(self, index: int) -> torch.Tensor:
            with torch.autograd.profiler.record_function("decode"):
                return super().__getitem__(index)

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    fetched = iter(DataLoader(Scoped(), 1))
    for _ in going_on():
        batch = next(fetched)
        with torch.autograd.profiler.record_function("step"):
            optimizer.zero_grad()
            backward(net(batch).sum())
            optimizer.step()


def compiled() -> None:
    net = torch.compile(model(), backend="aot_eager")
    train(net, torch.optim.SGD(net.parameters(), 0.1))


def inductor() -> None:
    """Compiled to machine code."""
    net = torch.compile(model())
    train(net, torch.optim.SGD(net.parameters(), 0.1))


def compiled_optimizer() -> None:
    """Whose step is a compiled graph."""
    net, fetched = model(), batches()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = torch.compile(optimizer.step, backend="aot_eager")
    for _ in going_on():
        optimizer.zero_grad()
        backward(net(next(fetched)).sum())
        step()


def iterable() -> None:
    """A stream, in mixed precision, with clipped gradients and a schedule."""

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[torch.Tensor]:
            files = Files()
            return (files[number] for number in range(10**6))

    net = model()
    optimizer = torch.optim.AdamW(net.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 100)
    fetched = iter(DataLoader(Stream(), 1))
    for _ in going_on():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = net(next(fetched)).sum()
        backward(loss)
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        scheduler.step()


def replaced() -> None:
    """Runs another program in the end."""
    plain()
    write_down()
    os.execvp("sleep", ["sleep", "600"])


def without_loader() -> None:
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in going_on():
        optimizer.zero_grad()
        backward(net(torch.zeros(1, 16)).sum())
        optimizer.step()


def minibatches() -> None:
    """Many steps with one batch, as of an actor-critic."""
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for number, _ in enumerate(going_on()):
        if number % 50 == 49:
            next(iter(DataLoader(Files(5), 1)))
        optimizer.zero_grad()
        backward(net(torch.zeros(1, 16)).sum())
        optimizer.step()


def own_optimizer() -> None:
    net, fetched = model(), batches()
    for _ in going_on():
        backward(net(next(fetched)).sum())
        _step_by_hand(net)


def bare() -> None:
    net = model()
    for _ in going_on():
        backward(net(torch.zeros(1, 16)).sum())
        _step_by_hand(net)


def _step_by_hand(net: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None


def in_a_thread() -> None:
    """Trained by another thread than the first."""
    import threading

    thread = threading.Thread(target=plain)
    thread.start()
    thread.join()


def inference() -> None:
    net, fetched = model(), batches()
    for _ in going_on():
        with torch.no_grad():
            net(next(fetched))


def idle() -> None:
    for _ in going_on():
        torch.zeros(1)


def workers() -> None:
    plain(2)


def marked() -> None:
    """Item i, and what a rank adds to it, is counted by programs of a user's: `calls_of`."""
    from tests.kernel.own import Marked, calls_of

    library, rank = Marked(PLACE), int(os.environ.get("RANK", "0"))

    class Calling(Files):
        def __getitem__(self, index: int) -> torch.Tensor:
            library.do(*calls_of(index, rank))
            return super().__getitem__(index)

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    fetched = iter(DataLoader(Calling(), 1))
    for _ in going_on():
        optimizer.zero_grad()
        backward(net(next(fetched)).sum())
        optimizer.step()


def forking_workers() -> None:
    """Whose workers start anew with each epoch."""
    plain(2, length=30)


LOOPS: dict[str, Callable[[], None]] = odd_loops.LOOPS | {
    loop.__name__: loop
    for loop in (
        *(plain, epochs, workers, forking_workers, accumulated, two_optimizers, validated, fused),
        *(inductor, compiled_optimizer, iterable, accelerated, manual, replaced, marked),
        *(foreach, lbfgs, penalised, checkpointed, profiled, compiled, without_loader, minibatches),
        *(own_optimizer, bare, in_a_thread, inference, idle, lightning, hugging_face, ddp),
    )
}


def main() -> None:
    torch.set_num_threads(1)
    (PLACE / "data").mkdir(exist_ok=True)
    for number in range(5):
        path = PLACE / "data" / f"{number}.bin"
        if not path.exists():
            path.write_bytes(os.urandom(FILE_BYTES))
    register_optimizer_step_pre_hook(lambda *_: note("opt"))
    rank = os.environ.get("RANK", "0")
    (PLACE / f"pid-{rank}").write_text(str(os.getpid()))
    LOOPS[KIND]()
    write_down()


if __name__ == "__main__":
    main()
