"""What a rank does in the tests of packing on two ranks."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from tests.fae.packing import Inputs, Stream, collate, digest, inputs_of, is_pure, profile
from trainobs.core.errors import FAEError
from trainobs.fae import ShuffleScheduler, pack, pack_data_module
from trainobs.fae.kjt import host_group

Case = dict[str, Any]
"""hot: ratio; counts: inputs of each rank; size, window, seed, drop_last: as for `pack`."""


class Broken(Inputs):
    """Cannot give its last input."""

    def __getitem__(self, index):
        if index == len(self) - 1:
            raise OSError("the disk is gone")
        return super().__getitem__(index)


def kinds_and_inputs(rank: int, cases: list[Case]) -> list[Any]:
    """For each case, of each batch its kind and input numbers, or what was found wrong."""
    return [_run(rank, case) for case in cases]


def _run(rank: int, case: Case) -> Any:
    of = profile(case["hot"], case["seed"])
    first, count = 1000 * rank, case["counts"][rank]
    loader: DataLoader[Any] = DataLoader(Inputs(count, first), case["size"], collate_fn=collate)
    packed = pack(
        loader, of, window=case["window"], seed=case["seed"], drop_last=case.get("drop_last", False)
    )
    try:
        return [(is_pure(b), [one.number for one in inputs_of(b, of)]) for b in packed]
    except FAEError as error:
        return error.found


def disagreements(rank: int) -> list[str]:
    """Ranks that pack differently, one kind of difference after the other."""
    of, found = profile(0.9), []
    loader: DataLoader[Any] = DataLoader(Inputs(40), 4, collate_fn=collate)
    broken: DataLoader[Any] = DataLoader(Broken(40) if rank else Inputs(40), 4, collate_fn=collate)
    elsewhere = pack(loader, of, window=5)
    if rank:
        elsewhere.set_epoch(3)
    behind = pack(loader, of, window=5)
    next(iter(behind))
    alone = pack(loader, of, window=5)
    if rank:
        alone.load_state_dict(behind.state_dict())
    for packed in (
        pack(loader, of, window=5, seed=rank),
        pack(loader, profile(0.9, seed=rank), window=5),
        pack(loader, of, window=5 + rank),
        pack(DataLoader(Inputs(40), 4 + rank, collate_fn=collate), of, window=5),
        elsewhere,
        pack(broken, of, window=5),
        alone,
    ):
        try:
            found.append(f"nothing in {sum(1 for _ in packed)} batches")
        except (FAEError, OSError) as error:
            found.append(getattr(error, "found", str(error)))
    return found


def other_losses(rank: int) -> tuple[int, str]:
    """Batches until it is noticed that test losses differ, and what is said."""
    scheduler = ShuffleScheduler()
    loader: DataLoader[Any] = DataLoader(Inputs(80), 4, collate_fn=collate)
    batches = 0
    try:
        for _ in pack(loader, profile(0.9), window=10, scheduler=scheduler):
            batches += 1
            if scheduler.is_due:
                scheduler.report(1.0 + rank)
    except FAEError as error:
        return batches, error.found
    return batches, "nothing"


def resumed(rank: int) -> tuple[list[str], list[str]]:
    """An epoch of this rank's share, and the same from rank 0's state in its middle on."""

    def packed() -> Any:
        data = Inputs(83)
        sampler: DistributedSampler[Any] = DistributedSampler(data, seed=4)
        loader: DataLoader[Any] = DataLoader(data, 4, sampler=sampler, collate_fn=collate)
        return pack(loader, profile(0.9), window=4, scheduler=ShuffleScheduler())

    first, whole = packed(), []
    states: list[Any] = [None]
    for i, batch in enumerate(first):
        whole.append(digest(batch))
        if i == 5:
            states = [first.state_dict()]
    dist.broadcast_object_list(states, 0)
    second = packed()
    second.load_state_dict(states[0])
    return whole[6:], [digest(batch) for batch in second]


def next_epochs(rank: int, state: Any) -> list[list[str]]:
    """The epoch behind a state of other settings, and the same of a loader that was never saved."""

    def packed() -> Any:
        data = Inputs(83)
        sampler: DistributedSampler[Any] = DistributedSampler(data, seed=4)
        loader: DataLoader[Any] = DataLoader(data, 3, sampler=sampler, collate_fn=collate)
        return pack(loader, profile(0.9), window=5)

    behind, fresh = packed(), packed()
    behind.load_state_dict(state)
    fresh.set_epoch(1)
    return [[digest(batch) for batch in loader] for loader in (behind, fresh)]


def resumed_elsewhere(rank: int) -> tuple[int, str]:
    """Batches of the rest of an epoch until it is noticed that rank 1 reads others, and how."""
    loaders: list[DataLoader[Any]] = [
        DataLoader(Inputs(80, first), 4, collate_fn=collate) for first in (0, 1000 * rank)
    ]
    begun, other = (pack(loader, profile(0.9), window=5) for loader in loaders)
    next(iter(begun))
    other.load_state_dict(begun.state_dict())
    batches = 0
    try:
        for _ in other:
            batches += 1
    except FAEError as error:
        return batches, error.found
    return batches, "nothing"


def patience_s(rank: int) -> float:
    """The timeout of what `pack` exchanges, in a job with one of 7 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_group, "timeout_of", lambda of: timedelta(seconds=7 * _is_all(of)))
        group = pack([], profile(0.9)).group
    assert group is not None
    return host_group.timeout_of(group).total_seconds()


def groups_of_a_data_module(rank: int) -> int:
    """Of the loaders of three epochs."""

    class Data:
        def train_dataloader(self) -> list[Any]:
            return []

    module = pack_data_module(Data(), profile(0.9))
    return len({id(module.train_dataloader().group) for _ in range(3)})


def _is_all(group: dist.ProcessGroup) -> bool:
    return group is dist.group.WORLD


def streams(rank: int) -> list[bool]:
    """Kinds of a stream whose length differs between the ranks by less than a batch."""
    loader: DataLoader[Any] = DataLoader(Stream(77 + rank), 4, collate_fn=collate)
    return [is_pure(batch) for batch in pack(loader, profile(0.9), window=4)]
