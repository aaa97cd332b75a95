"""Changes to a training that a replay can try, by the names that `trainobs whatif` knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf, isnan
from typing import Any, NamedTuple

from trainobs.core.errors import TrainobsError
from trainobs.replay.trace import HANDED_NS, Trace

START_NS = (15e6, 80e6)
"""What starting a worker takes, least and most, where none was ever seen to start."""

HAND_NS_PER_BYTE = (0.0, 1.5)
"""What handing over takes for each byte of a batch, likewise; both ends measured with torch 2.13
on two CPUs: tensors that a worker collates lie in shared memory already, others are copied."""


class Change(NamedTuple):
    """One change.

    Attributes:
        name: of `KNOWN`.
        value: a number of something, or a factor on what it takes.
    """

    name: str
    value: float

    def __str__(self) -> str:
        kind = KNOWN[self.name]
        if kind.is_switch:
            return self.name
        return f"{self.name}={self.value:g}{'x' if kind.is_factor else ''}"


class Kind(NamedTuple):
    """What a change of a name does.

    Attributes:
        apply: a trace and a value -> the traces that may be right, least and most.
        tells: for the help of the command.
        is_factor: whether its value is a factor ("0.5x").
        is_switch: whether it has no value.
    """

    apply: Callable[[Trace, float], tuple[Trace, ...]]
    tells: str
    is_factor: bool = False
    is_switch: bool = False


def with_changes(trace: Trace, changes: Iterable[Change]) -> tuple[Trace, ...]:
    """The traces that may be right after some changes, one after another."""
    traces: tuple[Trace, ...] = (trace,)
    for change in changes:
        kind = KNOWN[change.name]
        traces = tuple(after for before in traces for after in kind.apply(before, change.value))
    return traces


def _workers(trace: Trace, value: float) -> tuple[Trace, ...]:
    count = int(value)
    if count == trace.workers:
        return (trace,)
    if not count:  # the training thread makes batches itself, and nobody hands over
        return (replace(trace, workers=0, feed=0.0, feed_cpu=0.0, receive=0.0, start=0.0),)
    if trace.workers:
        return (replace(trace, workers=count, start=trace.start * count / trace.workers),)
    size = 0.0 if isnan(trace.handed_bytes) else trace.handed_bytes
    return tuple(
        replace(
            trace,
            workers=count,
            prefetch=trace.prefetch or 2,
            start=start * count,
            receive=HANDED_NS / 2 + size * per_byte / 2,
            feed=HANDED_NS + size * per_byte / 2,
        )
        for start, per_byte in zip(START_NS, HAND_NS_PER_BYTE, strict=True)
    )


def _scaled(*fields: str) -> Callable[[Trace, float], tuple[Trace, ...]]:
    def apply(trace: Trace, value: float) -> tuple[Trace, ...]:
        scaled: dict[str, Any] = {name: getattr(trace, name) * value for name in fields}
        return (replace(trace, **scaled),)

    return apply


def _cpus(trace: Trace, value: float) -> tuple[Trace, ...]:
    return (replace(trace, cpus=max(0.1, value), most_cpus=max(0.1, value)),)


def _faster(trace: Trace, value: float) -> tuple[Trace, ...]:
    return (replace(trace, make_device=trace.make_device / value),)


def _off(*fields: str) -> Callable[[Trace, float], tuple[Trace, ...]]:
    scaled = _scaled(*fields)
    return lambda trace, value: scaled(trace, 0.0)


def _prefetch(trace: Trace, value: float) -> tuple[Trace, ...]:
    return (replace(trace, prefetch=max(1, int(value))),)


KNOWN: Mapping[str, Kind] = {
    "workers": Kind(_workers, "worker processes of the loader (num_workers)"),
    "prefetch": Kind(_prefetch, "batches that each worker may be ahead (prefetch_factor)"),
    "persistent": Kind(_off("start"), "workers live on between epochs", is_switch=True),
    "cached": Kind(_off("make_device"), "the data is in memory", is_switch=True),
    "device": Kind(_faster, "speed of the device that holds the data", is_factor=True),
    "latency": Kind(
        _scaled("make_sleep"), "what the loader sleeps for other than the device", is_factor=True
    ),
    "transform": Kind(_scaled("make_cpu"), "CPU time of making a batch", is_factor=True),
    "compute": Kind(_scaled("cpu"), "CPU time of the training thread", is_factor=True),
    "checkpoint": Kind(_scaled("checkpoint"), "time blocked by checkpoints", is_factor=True),
    "validation": Kind(_scaled("validation"), "time in validation", is_factor=True),
    "cpus": Kind(_cpus, "CPUs of this run, all to itself"),
}
"""Name -> what it does. What a number of torch's threads would do is not known from a record."""


def parse(words: Iterable[str]) -> tuple[Change, ...]:
    """Changes as they are written on the command line, such as "workers=4", "device=2x", "cached".

    Raises:
        TrainobsError: one is not known, or its value is of no use.
    """
    return tuple(map(_parse, words))


def _parse(word: str) -> Change:
    name, _, text = word.partition("=")
    kind = KNOWN.get(name)
    if kind is None:
        raise _refused(word, f"{name!r} is no change that can be replayed", ", ".join(KNOWN))
    if kind.is_switch:
        if text:
            raise _refused(word, f"{name} has no value", name)
        return Change(name, 0.0)
    try:
        value = float(text.removesuffix("x"))
    except ValueError:
        value = -1.0
    example = f"{name}=0.5x" if kind.is_factor else f"{name}=4"
    least = 0.0 if name != "device" else 1e-3
    if not least <= value < inf or (name in ("workers", "prefetch") and value != int(value)):
        raise _refused(word, f"{text!r} is no value of {name}", f"for example {example}")
    if name == "workers" and value > 512:
        raise _refused(word, "more than 512 workers", f"for example {example}")
    return Change(name, value)


def _refused(word: str, found: str, do: str) -> TrainobsError:
    return TrainobsError(failed=f"{word!r} cannot be predicted.", found=found, do=f"give {do}")
