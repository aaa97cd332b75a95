"""What trainings came to, and how far apart they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Trained:
    """What a training came to."""

    losses: list[float]
    outputs: list[Tensor]
    weights: dict[str, Tensor]
    states: dict[str, Tensor] = field(default_factory=dict)


def local(value: Any) -> Tensor:
    """This rank's part of a tensor, flat."""
    if hasattr(value, "local_shards"):
        shards = [shard.tensor.flatten() for shard in value.local_shards()]
        return torch.cat(shards).clone() if shards else torch.zeros(0)
    return value.detach().flatten().clone()


def difference(one: Trained, other: Trained) -> dict[str, float]:
    """The largest differences."""
    return {
        "loss": _largest([torch.tensor(one.losses)], [torch.tensor(other.losses)]),
        "output": _largest(one.outputs, other.outputs),
        "weight": _largest(*_by_name(one.weights, other.weights)),
        "state": _largest(*_by_name(one.states, other.states)),
    }


def _by_name(
    ones: dict[str, Tensor], others: dict[str, Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The values, of the same names in the same order."""
    assert list(ones) == list(others)
    return list(ones.values()), list(others.values())


def _largest(ones: list[Tensor], others: list[Tensor]) -> float:
    """Relative to 1 or to the value, whichever is larger."""
    worst = 0.0
    for one, other in zip(ones, others, strict=True):
        assert one.shape == other.shape
        if one.numel():
            scale = one.abs().clamp(min=1.0)
            worst = max(worst, float(((one - other).abs() / scale).max()))
    return worst
