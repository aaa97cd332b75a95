"""How many pure and mixed steps all ranks take in a window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

from trainobs.core.errors import FAEError
from trainobs.core.log import logger

_EVEN = (
    "give all ranks equally many batches, as DistributedSampler does, or pack with drop_last=True: "
    "then the epoch ends with the shortest rank"
)


@dataclass(frozen=True)
class Offer:
    """What a rank has for a window.

    Attributes:
        batch_count: batches, of either kind.
        hot_count: those of them with all-hot inputs, each full.
        input_count: inputs of all batches.
        batch_size: inputs of a full batch.
        epoch: counted from 0.
        window: its number in the epoch.
        settings: stands for whatever must be the same on all ranks; less than 2**63.
        digest: of its inputs.
        ended: 1 if its loader has no window left.
        failed: 1 if the rank cannot go on.
    """

    batch_count: int
    hot_count: int
    input_count: int
    batch_size: int
    epoch: int
    window: int
    settings: int
    digest: int = 0
    ended: int = 0
    failed: int = 0


class WindowPlan(NamedTuple):
    """What all ranks do in a window.

    Attributes:
        pure_count: steps on batches of all-hot inputs.
        mixed_count: steps on others.
    """

    pure_count: int
    mixed_count: int


def exchange(offer: Offer, group: dist.ProcessGroup | None) -> list[Offer]:
    """The offers of all ranks, in their order. Waits for all of them.

    Args:
        offer: of this rank.
        group: takes tensors of the host; None for a job of one process.
    """
    if group is None:
        return [offer]
    mine = torch.tensor(astuple(offer), dtype=torch.int64)
    all_of_them = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(all_of_them, mine, group=group)
    return [Offer(*numbers.tolist()) for numbers in all_of_them]


def agree(offers: Sequence[Offer], drop_last: bool) -> WindowPlan | None:
    """The same answer on every rank, from the same offers.

    As many pure steps as the rank with the fewest all-hot batches can take; a rank with more
    trains on what is left over in mixed steps. As many steps as the rank with the most batches
    needs, or with `drop_last` as the one with the fewest has. None after the last window.

    Raises:
        FAEError: a rank failed, ranks pack differently, or a rank has too few inputs for its share
            of the steps.
    """
    _check(offers)
    ended = [offer.ended for offer in offers]
    if all(ended) or (drop_last and any(ended)):
        return None
    counts = [offer.batch_count for offer in offers]
    if drop_last:
        steps = min(counts)
        pure = min(steps, *(offer.hot_count for offer in offers))
        return WindowPlan(pure, steps - pure)
    steps = max(counts)
    if any(ended) and not steps:  # others may have inputs in windows to come
        _refuse(f"no window left on rank {ended.index(1)}, and one without inputs elsewhere", _EVEN)
    pure = min(offer.hot_count for offer in offers)
    for rank, offer in enumerate(offers):
        if offer.input_count < steps:
            _refuse(
                f"{offer.input_count} inputs on rank {rank} for the last {steps} steps",
                _EVEN,
            )
        if offer.batch_count < steps:  # its mixed inputs are to fill more batches
            fewer = offer.input_count - steps
            pure = min(pure, max(0, fewer // max(1, offer.batch_size - 1)))
    return WindowPlan(pure, steps - pure)


def tell_of_same_inputs(offers: Sequence[Offer]) -> bool:
    """Whether all of several ranks have the same inputs. It warns of that."""
    same = {(offer.digest, offer.input_count) for offer in offers}
    is_same = len(offers) > 1 and len(same) == 1 and offers[0].input_count > 0
    if is_same:
        logger.warning(
            "all ranks read the same inputs: each trains on all of the data\n"
            "  found: the same %d inputs on %d ranks\n"
            "  do:    give the loader a DistributedSampler; Lightning gives one to the loader of "
            "pack_data_module(), and none to what pack() returns",
            offers[0].input_count,
            len(offers),
        )
    return is_same


def _check(offers: Sequence[Offer]) -> None:
    failed = [rank for rank, offer in enumerate(offers) if offer.failed]
    if failed:
        _refuse(f"an error on rank {failed[0]}", "look at the error of that rank")
    first = offers[0]
    for rank, offer in enumerate(offers):
        for what in ("epoch", "window", "batch_size", "settings"):
            here, there = getattr(offer, what), getattr(first, what)
            if here != there and not (what == "batch_size" and (offer.ended or first.ended)):
                of = "" if what == "settings" else f" ({here}, {there})"
                _refuse(
                    f"rank {rank} does not have the {what} of rank 0{of}",
                    "pack with the same profile and arguments on every rank, resume all ranks "
                    "from one step, and report the same test losses",
                )


def _refuse(found: str, do: str) -> None:
    raise FAEError("cannot pack the next batches on all ranks", found, do)
