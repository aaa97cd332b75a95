"""Train a ResNet as train.py does, in a plain PyTorch loop.

Usage::

    python examples/imagenet/train_plain.py              # makes 2,000 photographs, 2 epochs
    python examples/imagenet/train_plain.py --no-obs     # the same without trainobs

and the other arguments of train.py. A plain loop has no callbacks, so it says itself where a step
begins and what each part of it is: ``observe``, ``obs.loader``, ``obs.step``, ``obs.phase``.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from data import Loader, build_loaders, find_data
from model import build_resnet
from options import EPOCH, Options, print_next, print_result, read_options
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

LOG_EVERY = 10


class Unobserved:
    """What ``--no-obs`` puts in the place of the observer: the same words, nothing behind them."""

    run_dir = None

    def loader(self, loader: Loader) -> Loader:
        return loader

    def step(self) -> AbstractContextManager[None]:
        return nullcontext()

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()


def open_observer(options: Options, root: Path) -> AbstractContextManager[Any]:
    if options.no_obs:
        return nullcontext(Unobserved())
    from trainobs import observe

    return observe(run_dir=options.run_dir, data_roots=[root], log_every_n_steps=LOG_EVERY)


def batches(loader: Loader, limit: int | None, title: str) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield at most ``limit`` batches, under a progress bar."""
    total = len(loader) if limit is None else min(limit, len(loader))
    yield from tqdm(islice(loader, limit), title, total)


@torch.no_grad()
def measure_accuracy(
    model: nn.Module, loader: Iterator[tuple[Tensor, Tensor]], device: torch.device
) -> float:
    """Return the share of images that the model labels right."""
    model.eval()
    right = total = 0
    for images, labels in loader:
        right += int((model(images.to(device)).argmax(dim=1) == labels.to(device)).sum())
        total += len(labels)
    return right / total


def save(obs: Any, model: nn.Module, epoch: int, path: Path) -> None:
    with obs.phase("checkpoint"):
        torch.save({"epoch": epoch, "model": model.state_dict()}, path)


def main() -> None:
    options = read_options("Train a ResNet in a plain loop with trainobs.", "runs/imagenet_plain")
    root = find_data(options)
    random.seed(options.seed)
    torch.manual_seed(options.seed)
    train_loader, val_loader, classes = build_loaders(root, options)

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build_resnet(options.depth, classes).to(device)
    optimizer = torch.optim.SGD(model.parameters(), options.lr, momentum=0.9)
    checkpoint = options.run_dir / "checkpoints" / "last.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    step, images_seen, seconds, accuracy = 0, 0, 0.0, 0.0

    with open_observer(options, root) as obs, SummaryWriter(options.run_dir / "tensorboard") as log:
        train_loader = obs.loader(train_loader)
        for epoch in range(options.epochs):
            model.train()
            start = time.perf_counter()
            for images, labels in batches(train_loader, options.limit_batches, "train"):
                with obs.step():
                    with obs.phase("transfer"):
                        images, labels = images.to(device), labels.to(device)
                    with obs.phase("forward"):
                        loss = cross_entropy(model(images), labels)
                    with obs.phase("backward"):
                        optimizer.zero_grad()
                        loss.backward()
                    with obs.phase("optimizer"):
                        optimizer.step()
                    step, images_seen = step + 1, images_seen + len(labels)
                    if step % LOG_EVERY == 0:
                        with obs.phase("logging"):
                            log.add_scalar("train/loss", loss.item(), step)
                if options.checkpoint_steps and step % options.checkpoint_steps == 0:
                    save(obs, model, epoch, checkpoint)
            seconds += time.perf_counter() - start

            with obs.phase("validation"):
                shown = batches(val_loader, options.limit_batches, "validate")
                accuracy = measure_accuracy(model, shown, device)
                log.add_scalar("val/accuracy", accuracy, step)
            if options.checkpoints == EPOCH:
                save(obs, model, epoch, checkpoint)
    print_result(images_seen, seconds, accuracy)
    print_next(options.run_dir, obs.run_dir)


if __name__ == "__main__":
    main()
