"""Loaders that keep the training waiting: for the device, and for their own computation."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from faults.groups import JOIN, device_of, group
from faults.loops import BATCH, Images, busy, fit, loader, train

STEPS = 48
FILE_BYTES = 131_072
READ_BYTES_PER_S = 10_000_000  # a batch of 16 files takes 210 ms


class Files(Images):
    """Images that are read from files of 128 KiB, of which the page cache holds nothing."""

    def __init__(self, root: Path, count: int) -> None:
        super().__init__(count)
        self._root = root
        for index in range(count):
            _write_cold(root / f"{index}.bin")

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        data = (self._root / f"{index}.bin").read_bytes()
        return super().__getitem__(index + len(data) - FILE_BYTES)


def _write_cold(path: Path) -> None:
    with open(path, "wb") as file:
        file.write(os.urandom(FILE_BYTES))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def throttled(files: Path) -> Iterator[dict[str, str]]:
    """A control group that may read 10 MB a second from the disk of `files` (io.max)."""
    limit = f"{device_of(files)} rbps={READ_BYTES_PER_S}"
    with group("io", {"io.max": limit}) as folder:
        yield {JOIN: str(folder / "cgroup.procs")}


def slow_storage(files: Path, run_dir: Path) -> None:
    """Two workers read cold files behind the throttle."""
    train(run_dir, DataLoader(Files(files, STEPS * BATCH), BATCH, num_workers=2))


def slow_transform(files: Path, run_dir: Path) -> None:
    """One worker computes 6 ms for each image, 96 for a batch."""
    fit(run_dir, loader(STEPS, work=partial(_transform, 0.006)))


def _transform(seconds: float, index: int) -> None:
    busy(seconds)
