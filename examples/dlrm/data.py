"""Loaders of Criteo's files or of made-up inputs: whole batches, made in the loader workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

import torch
import torch.distributed as dist
from columns import table_rows
from criteo import CriteoBatches, split
from options import Options, stop
from synthetic import SyntheticBatches
from torch.utils.data import DataLoader
from torchrec.datasets.utils import Batch

MADE_UP_STEPS = 500
Loader = DataLoader[Batch]


class Data(NamedTuple):
    """What to train and to validate on."""

    train: Loader
    val: Loader
    rows: list[int]  # of each of the 26 tables

    @property
    def malformed_count(self) -> int:
        """Lines that were skipped."""
        sets = (self.train.dataset, self.val.dataset)
        return sum(getattr(batches, "malformed_count", 0) for batches in sets)


def open_data(options: Options, *, rank: int = 0, world_size: int = 1) -> Data:
    """Return the loaders of one rank."""
    rows = table_rows(options.rows_scale)
    datasets = criteo(options, rows, rank, world_size) if options.data else None
    train, val = datasets or made_up(options, rows, rank, world_size)
    return Data(open_loader(train, options), open_loader(val, options), rows)


def criteo(
    options: Options, rows: list[int], rank: int, world_size: int
) -> tuple[CriteoBatches, CriteoBatches]:
    """Return the first six sevenths of the lines and the rest, or the last of several files."""
    try:
        parts = split(options.data)
    except ValueError as error:
        stop("cannot validate", str(error), "unpack it, or give several files: the last validates")
    train, val = (
        CriteoBatches(
            part,
            rows,
            options.batch_size,
            strict=options.strict,
            rank=rank,
            world_size=world_size,
        )
        for part in parts
    )
    return train, val


def made_up(
    options: Options, rows: list[int], rank: int, world_size: int
) -> tuple[SyntheticBatches, SyntheticBatches]:
    """Return batches to train on, and those that follow them."""
    count = (options.steps or MADE_UP_STEPS) * world_size
    val_count = options.val_steps * world_size
    shared = {"seed": options.seed, "rank": rank, "world_size": world_size}
    return (
        SyntheticBatches(rows, options.batch_size, count, **shared),
        SyntheticBatches(rows, options.batch_size, val_count, first=count, **shared),
    )


def open_loader(batches: CriteoBatches | SyntheticBatches, options: Options) -> Loader:
    """Return a loader that hands whole batches on as the workers made them."""
    return DataLoader(
        batches,
        batch_size=None,
        num_workers=options.workers,
        pin_memory=torch.cuda.is_available(),
    )


def in_step(batches: Iterable[Batch], limit: int | None) -> Iterator[Batch]:
    """Yield batches, at most ``limit``, as long as every rank has one.

    Ranks have as many lines, but not quite as many batches; one that went on alone would wait for
    the others forever. The process group needs a backend for CPUs.
    """
    source = islice(batches, limit)
    while True:
        batch = next(source, None)
        everyone = torch.tensor(batch is not None, dtype=torch.int64)
        if dist.get_world_size() > 1:
            dist.all_reduce(everyone, dist.ReduceOp.MIN)
        if batch is None or not everyone:
            return
        yield batch
