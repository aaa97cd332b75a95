"""What a verdict goes by beside the steps: facts of a run, from its `run.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainobs.core.records import RunInfo
from trainobs.replay.handover import Draw


@dataclass(frozen=True)
class Facts:
    """What `SummedSteps` do not hold.

    Attributes:
        usable_cpus: CPUs that this rank may use, the fewest that it ever might; None: unknown.
        all_cpus: the same without a quota.
        most_cpus: the most that it ever might, without a quota, if that or the quota changed as the
            run went on; None: neither did.
        machine_cpus: CPUs that it might use if affinity kept none from it; None: unknown, as where
            the others may be for other ranks.
        quota: whether a quota of a control group is what limits it.
        quota_hidden: whether there may be another, of a group that the run does not see.
        memory_bytes: what each rank on the machine may have of its memory; None: unknown.
        memory_limit_bytes: what its control groups allow, if that is less than the machine has.
        workers: worker processes of the training loader, 0 for none; None: unknown.
        prefetch: batches that each of them may be ahead.
        tensors: in a batch, at least, where all such loaders have as many; None: unknown.
        draw: what their samplers take of the training thread for a batch; None: unknown.
        uneven_draw_ns: that, where draws take such different times that their mean says little.
        torch_threads: threads of torch in one operation; None: unknown.
        has_persistent_workers: whether they live on between epochs, or may: some of several
            loaders have such.
        has_new_loaders: whether loaders are made anew for most passes, so that no worker can live
            on; None: some are, or nobody knows.
        has_other_passes: whether these are over other numbers of batches, as in a curriculum: no
            one loader can stand for them.
        tells_opening: whether what the first batch of a new worker takes longer is surely for its
            being new (`replay.opening`).
        has_accelerator: whether a GPU is in use, for which the training thread may sleep.
        sees_switches: whether the kernel counted when the training thread was off the CPU, and not
            we from `/proc`.
        world_size: processes in the job.
        ranks_here: those of them that share the CPUs of this machine, this one included.
        siblings: other trainings of the job that are no ranks of it, as far as is known.
        siblings_cpu_ratio: what they took of the CPUs.
        others_wait_ns: rank -> `ranks/wait_ns` a step, of ranks at this pace, where their logs are
            at hand.
    """

    usable_cpus: float | None = None
    all_cpus: float | None = None
    most_cpus: float | None = None
    machine_cpus: float | None = None
    quota: bool = False
    quota_hidden: bool = False
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    workers: int | None = None
    prefetch: int = 2
    tensors: int | None = None
    draw: Draw | None = None
    uneven_draw_ns: float = 0.0
    torch_threads: int | None = None
    has_persistent_workers: bool = False
    has_new_loaders: bool | None = False
    has_other_passes: bool = False
    tells_opening: bool = False
    has_accelerator: bool = False
    sees_switches: bool = False
    world_size: int = 1
    ranks_here: int = 1
    siblings: int = 0
    siblings_cpu_ratio: float = 0.0
    others_wait_ns: Mapping[int, float] = field(default_factory=dict)

    @property
    def cpus_at_most(self) -> float | None:
        """CPUs that this rank might use at any time, without a quota; None: unknown."""
        return self.most_cpus or self.all_cpus

    @property
    def has_new_workers(self) -> bool:
        """Whether new workers start with each epoch."""
        return bool(self.workers) and (
            not self.has_persistent_workers or self.has_new_loaders is True
        )

    @property
    def may_keep_workers(self) -> bool:
        """Whether it is known that a script can have them live on from epoch to epoch."""
        return (
            self.has_new_workers and self.has_new_loaders is not None and not self.has_other_passes
        )


_BY_THE_KERNEL = ("ebpf", "attached")


def facts_of(info: RunInfo) -> Facts:
    """Facts of a run that is going on."""
    return facts_from(vars(info))


def facts_from(info: Mapping[str, Any]) -> Facts:
    """Facts of a run from the contents of its `run.json`; what is not there is unknown."""
    world_size = int(info.get("world_size") or 1)
    settings, host = info.get("settings") or {}, info.get("host") or {}
    ranks_here = int(host.get("local_world_size") or world_size)
    workers = settings.get("loader_workers")
    siblings = (settings.get("attached") or {}).get("siblings") or {}
    loaders = [one for one in info.get("loaders") or () if one.get("workers") == workers]
    loader: Mapping[str, Any] = next(iter(loaders), {})
    quota, usable = host.get("cpu_quota"), host.get("usable_cpu_count")
    most = host.get("most_usable_cpu_count")
    alone = ranks_here == 1 and host.get("cpu_count")
    return Facts(
        usable_cpus=_usable_cpus(host, ranks_here),
        all_cpus=_usable_cpus({**host, "cpu_quota": None}, ranks_here),
        most_cpus=most / ranks_here if most else None,
        machine_cpus=_usable_cpus({**host, "usable_cpu_count": None}, 1) if alone else None,
        quota=bool(quota and (not usable or quota < usable)),
        quota_hidden=bool(host.get("cpu_groups_hidden")),
        memory_bytes=_memory_bytes(host, ranks_here),
        memory_limit_bytes=host.get("memory_limit_bytes"),
        workers=workers,
        prefetch=loader.get("prefetch_factor") or 2,
        tensors=_tensors(loaders),
        **_draws(loaders),
        torch_threads=settings.get("torch_threads"),
        has_persistent_workers=any(one.get("persistent_workers") for one in loaders),
        has_new_loaders=_are_made_anew(loaders),
        has_other_passes=len(_of_few_passes(loaders)) >= FEW_PASSES,
        tells_opening=_tell_opening(loaders),
        has_accelerator=bool(info.get("gpu")),
        sees_switches=info.get("level") in _BY_THE_KERNEL,
        world_size=world_size,
        ranks_here=ranks_here,
        siblings=int(siblings.get("processes", 0)),
        siblings_cpu_ratio=float(siblings.get("cpu_ratio", 0.0)),
    )


def _tensors(loaders: Sequence[Mapping[str, Any]]) -> int | None:
    counts = {one.get("tensors_per_batch") for one in loaders}
    return counts.pop() if len(counts) == 1 else None


FEW_DRAWS = 8
"""Below which the time of a draw is not known."""


def _draws(loaders: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What is known of the draws of samplers.

    One that draws for many batches at once has hardly ever been timed doing so: its draws differ by
    more than their mean.
    """
    told = [one.get("sampler") or {} for one in loaders]
    keys = ("batches", "ns", "cpu_ns")
    timed = [one for one in told if one.keys() >= set(keys)]
    batches, ns, cpu_ns = (sum(one[key] for one in timed) for key in keys)
    if batches < FEW_DRAWS:
        return {}
    mean = ns / batches
    squares = sum(one.get("ns2", 0) for one in timed)  # none in a log of an older trainobs
    if squares / batches > 2 * mean * mean:
        return {"uneven_draw_ns": mean}
    return {"draw": Draw(cpu_ns / batches, (ns - cpu_ns) / batches)}


FEW_PASSES = 3
"""Passes over loaders of one set-up below which these say nothing: a validation may be one pass."""


def _are_made_anew(loaders: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether most passes have a loader of their own; None: those of some set-ups, or not known."""
    if not all(one.get("passes") and "objects" in one for one in loaders):
        return None
    few = _of_few_passes(loaders)
    found = {one["objects"] > one["passes"] / 2 for one in loaders if one not in few}
    if len(few) >= FEW_PASSES:
        found.add(True)
    return None if len(found) > 1 else True in found


def _of_few_passes(loaders: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Set-ups of few passes: several are loaders of parts of the data, of other lengths."""
    return [one for one in loaders if (one.get("passes") or FEW_PASSES) < FEW_PASSES]


def _tell_opening(loaders: Sequence[Mapping[str, Any]]) -> bool:
    """Not of a stream, which begins anew with each pass, as may what is read ahead in order.

    Nor of a data set that may be told of each pass, and open something for it, whoever reads it.
    """
    are_mapped = all(one.get("iterable") is False for one in loaders)
    if not all(one.get("told_of_passes") is False for one in loaders):
        return False
    return are_mapped and any(one.get("shuffle") is True for one in loaders)  # not to validate


def _usable_cpus(host: Mapping[str, Any], ranks_here: int) -> float | None:
    """CPUs of this rank: what affinity and quota leave to it, shared with the ranks beside it.

    Where nobody says how many ranks are on this machine, all of them may be: advice that goes by
    this number is then too small, never too large.
    """
    limits = [host.get(key) for key in ("usable_cpu_count", "cpu_quota", "cpu_count")]
    known = [float(limit) for limit in limits if limit]
    return min(known) / ranks_here if known else None


def _memory_bytes(host: Mapping[str, Any], ranks_here: int) -> float | None:
    """Memory of this rank: what its control groups leave of the machine's, shared as CPUs are."""
    known = [host[key] for key in ("memory_bytes", "memory_limit_bytes") if host.get(key)]
    return min(known) / ranks_here if known else None
