"""Carries out a change that a verdict advises, or whose effect was predicted.

A change has one or more of these:

    workers, prefetch, threads: as many
    persistent: workers live longer than an epoch, by one loader for all
    cached: the data is in the page cache
    transform: what items compute, times this
    latency: what items sleep and what the server takes, times this
    sampler: what choosing the items of a batch computes, times this
    device: speed of the disk, times this
    checkpoint: how much of their time is left, if there are fewer; 0: none; or "background"
    validation: how often there is validation, times this; 0: never
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from faults.setting import Setting

_COMPUTED = ("item_cpu_ms", "slow_cpu_ms", "stats")
_ASLEEP = ("item_sleep_ms", "slow_sleep_ms", "answer_ms")


class CannotFollow(Exception):
    """The setting has nothing that the change could be carried out on; says why."""


def followed(setting: Setting, change: Mapping[str, Any]) -> Setting:
    """The setting after a change.

    Raises:
        CannotFollow: it stays as it was, or nobody knows what is meant.
    """
    after = setting
    for name, value in change.items():
        if name in _SAME_NAME:
            after = after.changed(**{name: value})
        elif name in _OTHERS:
            after = after.changed(**_OTHERS[name](setting, value))
        else:
            raise CannotFollow(f"nobody knows how to change {name!r}")
    if after == setting:
        raise CannotFollow("it changes nothing")
    return after


def name_of(change: Mapping[str, Any]) -> str:
    """A change in words that may be the name of a file."""
    return ",".join(f"{name}={value}" for name, value in sorted(change.items()))


def _times(setting: Setting, names: tuple[str, ...], factor: float) -> dict[str, Any]:
    there = setting.unusual()
    return {name: type(there[name])(there[name] * factor) for name in names if there.get(name)}


def _checkpoint(setting: Setting, value: float | str) -> dict[str, Any]:
    if not setting.training.checkpoint:
        return {}
    if isinstance(value, str):
        return {"checkpoint": value}
    every = setting.training.checkpoint_every
    return {"checkpoint_every": round(every / value)} if value else {"checkpoint": ""}


def _validation(setting: Setting, factor: float) -> dict[str, Any]:
    return {"validate_every": round(setting.training.validate_every / factor) if factor else 0}


_SAME_NAME = ("workers", "prefetch", "threads")

_OTHERS: dict[str, Callable[[Setting, Any], dict[str, Any]]] = {
    "persistent": lambda setting, value: {"persistent": value, "remade": False},
    "cached": lambda setting, value: {"cold": not value},
    "transform": lambda setting, factor: _times(setting, _COMPUTED, factor),
    "latency": lambda setting, factor: _times(setting, _ASLEEP, factor),
    "sampler": lambda setting, factor: _times(setting, ("sampler_ms",), factor),
    "device": lambda setting, factor: _times(setting, ("read_mb_s",), factor),
    "checkpoint": _checkpoint,
    "validation": _validation,
}
