"""Training loops that import nothing of trainobs, and write down what they do.

Usage: python loops.py KIND DIRECTORY SECONDS

All but `ddp`, of which each rank makes as many steps, end before, once there is a file `stop` in
DIRECTORY.

Into DIRECTORY go the data and, at the end, `truth-RANK.json`: a list of [what, CLOCK_MONOTONIC in
ns, bytes], with "get" for an item that the data set reads in this process, "ask" where the loop
asks for a batch, "opt" for a step of an optimizer, "back" for a backward pass that the loop begins.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import DataLoader, Dataset

FILE_BYTES = 8192
REST_S = 0.005
"""What each step sleeps, so that steps are told apart."""

KIND, PLACE, SECONDS = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
EVENTS: list[tuple[str, int, int]] = []


def note(what: str, count: int = 0) -> None:
    EVENTS.append((what, time.monotonic_ns(), count))


class Files(Dataset):
    """Item i reads i % 5 + 1 files."""

    def __init__(self, length: int = 1_000_000) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        note("get", FILE_BYTES * (index % 5 + 1))
        for number in range(index % 5 + 1):
            descriptor = os.open(PLACE / "data" / f"{number}.bin", os.O_RDONLY)
            os.read(descriptor, FILE_BYTES)
            os.close(descriptor)
        return torch.zeros(16)


END = time.monotonic() + SECONDS


def is_over() -> bool:
    return time.monotonic() > END or (PLACE / "stop").exists()


def going_on() -> Iterator[None]:
    while not is_over():
        yield
        time.sleep(REST_S)


def batches(workers: int = 0, length: int = 1_000_000) -> Iterator[torch.Tensor]:
    """Without an end: epoch after epoch."""
    loader = DataLoader(Files(length), 1, num_workers=workers)
    while True:
        yield from loader


def backward(loss: torch.Tensor) -> None:
    note("back")
    loss.backward()


def model() -> torch.nn.Module:
    return torch.nn.Linear(16, 16)


def plain(workers: int = 0, length: int = 1_000_000) -> None:
    net = model()
    train(net, torch.optim.SGD(net.parameters(), 0.1), workers, length)


def train(
    net: torch.nn.Module, optimizer: torch.optim.Optimizer, workers: int = 0, length: int = 10**6
) -> None:
    fetched = batches(workers, length)
    for _ in going_on():
        optimizer.zero_grad()
        note("ask")
        backward(net(next(fetched)).sum())
        optimizer.step()


def epochs() -> None:
    plain(length=7)


def accumulated() -> None:
    net, fetched = model(), batches()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in going_on():
        for _ in range(4):
            backward(net(next(fetched)).sum())
        optimizer.step()
        optimizer.zero_grad()


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


def lightning() -> None:
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
            time.sleep(REST_S)
            self.trainer.should_stop |= is_over()
            return self.net(batch).sum()

        def validation_step(self, batch: torch.Tensor, number: int) -> None:
            self.net(batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = Trainer(
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=PLACE,
    )
    trainer.fit(Module(), DataLoader(Files(40), 1), DataLoader(Files(5), 1))


def hugging_face() -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            time.sleep(REST_S)
            return {"loss": self.net(x).sum()}

    class Items(Files):
        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"x": super().__getitem__(index)}

    class Stop(TrainerCallback):
        def on_step_end(self, args: object, state: object, control: object, **_: object) -> None:
            control.should_training_stop = is_over()

    arguments = TrainingArguments(
        output_dir=str(PLACE / "out"),
        per_device_train_batch_size=1,
        gradient_accumulation_steps=2,
        max_steps=100_000,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    Trainer(Net(), arguments, train_dataset=Items(), callbacks=[Stop()]).train()


def ddp() -> None:
    torch.distributed.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(model())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    fetched = batches()
    for _ in range(int(SECONDS / REST_S / 4)):  # the same on all ranks
        optimizer.zero_grad()
        backward(net(next(fetched)).sum())
        optimizer.step()
        time.sleep(REST_S)
    torch.distributed.destroy_process_group()


def workers() -> None:
    plain(2)


def forking_workers() -> None:
    """Whose workers start anew with each epoch."""
    plain(2, length=30)


LOOPS: dict[str, Callable[[], None]] = {
    loop.__name__: loop
    for loop in (
        *(plain, epochs, workers, forking_workers, accumulated, two_optimizers, validated, fused),
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
    (PLACE / f"truth-{rank}.json").write_text(json.dumps(EVENTS))


if __name__ == "__main__":
    main()
