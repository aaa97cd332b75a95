"""What all loops are made of: see `loops.py`, whose command line it reads."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

FILE_BYTES = 8192
REST_S = 0.005
"""What each step sleeps, so that steps are told apart."""
SETTLED_STEPS = 30
"""After which a loop does the same again and again: then there is a file `settled`."""

KIND, PLACE, SECONDS = sys.argv[1], Path(sys.argv[2]), float(sys.argv[3])
EVENTS: list[tuple[str, int, int]] = []
STEPS = itertools.count()


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
    """Asked in each step."""
    if next(STEPS) == SETTLED_STEPS:
        (PLACE / "settled").touch()
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


def train(
    net: torch.nn.Module, optimizer: torch.optim.Optimizer, workers: int = 0, length: int = 10**6
) -> None:
    fetched = batches(workers, length)
    for _ in going_on():
        optimizer.zero_grad()
        note("ask")
        backward(net(next(fetched)).sum())
        optimizer.step()


def accumulated() -> None:
    net, fetched = model(), batches()
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in going_on():
        for _ in range(4):
            backward(net(next(fetched)).sum())
        optimizer.step()
        optimizer.zero_grad()


def write_down() -> None:
    rank = os.environ.get("RANK", "0")
    path = PLACE / f"truth-{rank}.json"
    path.with_suffix(".part").write_text(json.dumps(EVENTS))
    path.with_suffix(".part").replace(path)
