"""Changes to a training that a replay can try, by the names that `trainobs whatif` knows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import inf
from typing import Any, NamedTuple

import numpy as np

from trainobs.core.errors import TrainobsError
from trainobs.core.text import percent
from trainobs.replay.handover import HANDED_NS, NO_DRAW, Draw
from trainobs.replay.opening import usual, without_opening, without_surely_opened
from trainobs.replay.trace import COVERAGE, Trace
from trainobs.replay.workers import SLOWER, slower, with_workers

MOST_WORKERS = 512
"""More are not replayed."""


SYNCHRONIZING = 1.3
"""How much more CPU time the training thread takes for the same work, at most, for giving parts of
it to other threads. On two CPUs it was less than 1.01 in seven operations of torch; more threads
have more to wait for."""

ASKED_NS = 1e6
"""How long a worker may wait to be asked for a batch, and that batch be on its way, at most, beyond
the shortest that was seen: 0.3 + 0.4 ms on a quiet machine (a step of 6 ms, 3 tensors)."""

QUEUED = 0.05
"""Share of the step in which the training thread waits for a CPU, from which on CPUs are short."""


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


def _always(trace: Trace) -> bool:
    return True


def _no_limit(value: float) -> str:
    return ""


class Kind(NamedTuple):
    """What a change of a name does.

    Attributes:
        apply: a trace and a value -> the traces that may be right, least and most.
        tells: for the help of the command.
        is_factor: whether its value is a factor ("0.5x").
        is_switch: whether it has no value.
        is_count: whether its value is a whole number.
        argument: of torch's DataLoader that makes it; as good a name.
        example: a value, where the usual one would not do.
        least: that its value may be.
        refused: why a value is too large, or "".
        is_possible: whether it can be made to a run, and is what its words say.
    """

    apply: Callable[[Trace, float], tuple[Trace, ...]]
    tells: str
    is_factor: bool = False
    is_switch: bool = False
    is_count: bool = False
    argument: str = ""
    example: str = ""
    least: float = 0.0
    refused: Callable[[float], str] = _no_limit
    is_possible: Callable[[Trace], bool] = _always


def with_changes(trace: Trace, changes: Iterable[Change]) -> tuple[Trace, ...]:
    """The traces that may be right after some changes, which are made at once.

    One after another; what is changed about workers is asked of those that there are then.

    Raises:
        TrainobsError: one cannot be made to this run.
    """
    traces: tuple[Trace, ...] = (trace,)
    for change in sorted(changes, key=lambda change: change.name in _ABOUT_WORKERS):
        kind = KNOWN[change.name]
        traces = tuple(after for before in traces for after in kind.apply(before, change.value))
    return traces


_ABOUT_WORKERS = ("persistent", "prefetch")


def _has_workers(trace: Trace) -> bool:
    return trace.workers > 0


def _of_workers(trace: Trace, name: str) -> None:
    """Torch's DataLoader raises ValueError where there are none."""
    if not _has_workers(trace):
        argument = KNOWN[name].argument
        raise TrainobsError(
            failed=f"{name} cannot be predicted.",
            found=f"a loader without workers, which takes no {argument}",
            do="give the workers too: num_workers=2",
        )


def _scaled(*fields: str) -> Callable[[Trace, float], tuple[Trace, ...]]:
    def apply(trace: Trace, value: float) -> tuple[Trace, ...]:
        scaled: dict[str, Any] = {name: getattr(trace, name) * value for name in fields}
        return (replace(trace, **scaled),)

    return apply


def _cpus(trace: Trace, value: float) -> tuple[Trace, ...]:
    """Beside others everything takes more CPU time, by caches; how much more nobody knows."""
    free = replace(trace, cpus=max(0.1, value), most_cpus=max(0.1, value))
    return free, slower(free)


def _others(trace: Trace, value: float) -> tuple[Trace, ...]:
    """Who gave way to this run still does: only what they take for good is lost or won."""
    then = replace(trace, cpus=max(0.1, trace.most_cpus * (1.0 - value)))
    return then, (slower if then.cpus < trace.cpus else _quicker)(then)


def _quicker(trace: Trace) -> Trace:
    return replace(trace, cpu=trace.cpu / SLOWER, make_cpu=trace.make_cpu / SLOWER)


def _persistent(trace: Trace, value: float) -> tuple[Trace, ...]:
    """What workers compute beside their batches may be their start, and gone as well.

    So may what a worker takes longer for its first batch, where it is not surely for its being new.
    What else the loader does as an epoch begins stays, as a sampler that makes its order. All steps
    may become quicker, too: with new workers in each of many short epochs a backward pass took 1.12
    to 1.26 times as much CPU time.

    Raises:
        TrainobsError: there are no workers.
    """
    _of_workers(trace, "persistent")
    if not trace.has_new_workers:
        return (trace,)
    least, most = trace.other_start
    trace = without_surely_opened(trace)
    sure, stays = replace(trace, start=most), replace(trace, start=least)
    hand, gone = trace.hand, max(0.0, trace.hand.feed_cpu - HANDED_NS)
    hand = replace(hand, feed=hand.feed - gone, feed_cpu=hand.feed_cpu - gone)
    less = replace(stays, hand=hand)
    return sure, stays, less, _quicker(without_opening(_undisturbed(less)))


def _undisturbed(trace: Trace) -> Trace:
    """Where epochs begin and end a step as usual: workers that start and end may slow it down.

    A process that forks copies the pages that it writes to next, and new workers take CPUs.
    """
    at = trace.is_first | np.roll(trace.is_first, -1)
    if at.all():  # nobody knows what is usual; to wait for workers that end is sleep
        return replace(trace, away=0.0 * trace.away)
    return replace(trace, cpu=usual(trace.cpu, at), away=usual(trace.away, at))


def _transform(trace: Trace, value: float) -> tuple[Trace, ...]:
    """Handing over waits for what a worker computes, and so may its answers."""
    hand = trace.hand
    feed, answers = (1.0 - value) * hand.feed_held, (1.0 - value) * hand.held
    less = replace(hand, feed=hand.feed - feed, feed_held=hand.feed_held - feed)
    made = replace(trace, make_cpu=trace.make_cpu * value, hand=less)
    if not answers:
        return (made,)
    less = replace(less, away=hand.away - answers, held=hand.held - answers)
    return made, replace(made, hand=less)


def _faster(trace: Trace, value: float) -> tuple[Trace, ...]:
    """What makers of batches slept for other threads that read may be less, too, or may not."""
    faster = replace(trace, make_device=trace.make_device / value)
    if not trace.others_read:
        return (faster,)
    less = 1.0 - trace.others_read * (1.0 - 1.0 / value)
    return faster, replace(faster, make_sleep=trace.make_sleep * less)


def _sleeps_beside_storage(trace: Trace) -> bool:
    """Sleep that may be for what other threads read is not sleep outside of storage."""
    return trace.others_read < COVERAGE


def _may_be_cached(trace: Trace) -> bool:
    """What is read past the page cache is never in it."""
    return not trace.reads_directly


def _cached(trace: Trace, value: float) -> tuple[Trace, ...]:
    """The device is not waited for.

    Raises:
        TrainobsError: the data does not come by way of the page cache.
    """
    if not _may_be_cached(trace):
        raise TrainobsError(
            failed="cached cannot be predicted.",
            found="most of what calls read passes by the page cache (O_DIRECT, or its file system)",
            do="read it by way of the page cache, and observe that; or predict device=2x",
        )
    return _faster(trace, inf)


def _draws(trace: Trace) -> bool:
    return trace.draw != NO_DRAW


def _sampler(trace: Trace, value: float) -> tuple[Trace, ...]:
    draw = Draw(trace.draw.cpu * value, trace.draw.away * value)
    return (replace(trace, draw=draw),)


def _has_checkpoints(trace: Trace) -> bool:
    return bool(trace.checkpoint.any())


def _has_validation(trace: Trace) -> bool:
    return bool(trace.validation.any())


def _marked(name: str, *, is_marked: bool) -> None:
    if not is_marked:
        raise TrainobsError(
            failed=f"{name} cannot be predicted.",
            found=f"the record has no time in the phase {name}: it is unmarked, or there is none",
            do=f'mark it, with trainobs.phase("{name}"), and observe that',
        )


def _validation(trace: Trace, value: float) -> tuple[Trace, ...]:
    """Raises TrainobsError where none is marked."""
    _marked("validation", is_marked=_has_validation(trace))
    return (replace(trace, validation=trace.validation * value),)


def _checkpoint(trace: Trace, value: float) -> tuple[Trace, ...]:
    """A disk that writes behind blocks when it likes: of rarer saves each may take longer.

    Raises:
        TrainobsError: none is marked.
    """
    _marked("checkpoint", is_marked=_has_checkpoints(trace))
    shares = (value, (1 + value) / 2) if value else (value,)
    return tuple(replace(trace, checkpoint=trace.checkpoint * share) for share in shares)


def _threads(trace: Trace, value: float) -> tuple[Trace, ...]:
    """A record does not tell work that is shared out from threads that spin until there is some.

    So the least is that no work is shared out, the most that all is, as far as the CPU time of
    other threads allows; and what the training thread waits for other threads may stay or go.

    Raises:
        TrainobsError: the number of threads is not known, or there are, or would be, too few CPUs
            for them: the training thread spins while it waits for one that has none, which looks
            like work.
    """
    now, count = trace.threads, int(value)
    if count == now:
        return (trace,)
    found = None
    if not now:
        found = "the number of torch's threads is not in the record"
    elif max(now, count) > trace.most_cpus:
        found = f"{max(now, count)} threads for {trace.most_cpus:g} CPUs"
    elif trace.queued * trace.batches > QUEUED * trace.step_ns:
        share = percent(trace.queued * trace.batches / trace.step_ns)
        found = f"CPUs are short: the training thread waited for one for {share} of the step"
    if found:
        do = "try it (torch.set_num_threads), and compare: trainobs compare OLD NEW"
        raise TrainobsError(failed=f"threads={count} cannot be predicted.", found=found, do=do)
    # Of the training thread's time, the part in which others may have worked as well.
    shared = min(1.0, trace.side / (now - 1)) if now > 1 else 1.0
    longer = 1.0 + shared * (now / count - 1.0)
    work = replace(
        trace, cpu=trace.cpu * longer, side=shared * (now / count) * (count - 1) / longer
    )
    if count > now:
        return work, replace(trace, side=count - 1.0, cpu=trace.cpu * SYNCHRONIZING)
    alone = replace(trace, side=0.0, away=trace.away - trace.awaits, cpu=trace.cpu / SYNCHRONIZING)
    return work, trace, alone


def _prefetch(trace: Trace, value: float) -> tuple[Trace, ...]:
    """With fewer ahead a worker has nothing else to do while a batch is on its way, or asked for.

    With more, workers go on beside a checkpoint or a validation, and may take CPUs and caches from
    it: with 4 ahead, not 1, one of 120 MB took 1.2 times as long (1.0 to 1.4 in three pairs of one
    loader, while others had 1.2 of 2 CPUs).

    Raises:
        TrainobsError: there are no workers.
    """
    _of_workers(trace, "prefetch")
    other = replace(trace, prefetch=int(value))
    if value >= trace.prefetch:
        slow = SLOWER if value > trace.prefetch else 1.0
        checkpoint, validation = slow * trace.checkpoint, slow * trace.validation
        return other, replace(other, checkpoint=checkpoint, validation=validation)
    return other, replace(other, hand=replace(other.hand, feed=other.hand.feed + ASKED_NS))


def _too_many(workers: float) -> str:
    return f"more than {MOST_WORKERS} workers" if workers > MOST_WORKERS else ""


def _too_large(share: float) -> str:
    return f"a share of {share:g}" if share >= 1.0 else ""


KNOWN: Mapping[str, Kind] = {
    "workers": Kind(
        with_workers, "loader workers", is_count=True, argument="num_workers", refused=_too_many
    ),
    "prefetch": Kind(
        _prefetch,
        "batches that each worker may be ahead",
        is_count=True,
        argument="prefetch_factor",
        least=1.0,
        is_possible=_has_workers,
    ),
    "persistent": Kind(
        _persistent,
        "workers live on between epochs",
        is_switch=True,
        argument="persistent_workers",
        is_possible=_has_workers,
    ),
    "cached": Kind(_cached, "the data is in memory", is_switch=True, is_possible=_may_be_cached),
    "device": Kind(_faster, "speed of the storage that holds the data", is_factor=True, least=1e-3),
    "latency": Kind(
        _scaled("make_sleep"),
        "sleep of the loader for anything but storage reads of its own",
        is_factor=True,
        is_possible=_sleeps_beside_storage,
    ),
    "transform": Kind(_transform, "CPU time of making a batch", is_factor=True),
    "sampler": Kind(
        _sampler,
        "time in the sampler of the loader",
        is_factor=True,
        is_possible=_draws,
    ),
    "compute": Kind(_scaled("cpu"), "CPU time of the training thread", is_factor=True),
    "checkpoint": Kind(
        _checkpoint, "time blocked by checkpoints", is_factor=True, is_possible=_has_checkpoints
    ),
    "validation": Kind(
        _validation, "time in validation", is_factor=True, is_possible=_has_validation
    ),
    "threads": Kind(
        _threads,
        "threads of torch in one operation (torch.set_num_threads)",
        is_count=True,
        least=1.0,
    ),
    "cpus": Kind(_cpus, "CPUs of this run, all to itself", least=0.1),
    "others": Kind(
        _others, "share of the CPUs that other processes take", example="0.5", refused=_too_large
    ),
}
"""Name -> what it does."""
