"""Which runs can be replayed, and the replay of one."""

from __future__ import annotations

import numpy as np

from trainobs.replay.changes import MOST_WORKERS
from trainobs.replay.handover import NO_DRAW
from trainobs.replay.predict import Replay
from trainobs.replay.trace import Given, trace_of
from trainobs.verdict import metric_names as names
from trainobs.verdict.asleep import helpers_ns, why_kept
from trainobs.verdict.cpus import FULL, cpus_used, free_cpus, within_quota
from trainobs.verdict.evidence import WORTH_SHOWING
from trainobs.verdict.facts import Facts
from trainobs.verdict.handover import asleep_for_nobody
from trainobs.verdict.parts import Situation, batches_of, known, parts_of
from trainobs.verdict.summed_steps import WINDOW, SummedSteps
from trainobs.verdict.unpredictable import unpredictable

FEWEST_STEPS = 6
"""Steps below which nothing is told."""

SLEEPS_BESIDE = 0.25
"""Share of the step that the training thread sleeps in its wait for batches that are made, from
which on it is for something that no replay has. A sampler that slept 30 ms in steps of 40 had 0.6;
of 52 other runs with workers none had 0.1, but for one of which the interpreter's lock was kept:
0.24."""

HELPED = 0.2
"""Share of a data set's sleep in which others of the run may compute, that is no waiting alone."""

HELPS = 0.05
"""Share of the step that they have to compute for that: with less, a prediction that takes all of
their work to go on beside the step is off by less than what is worth advice."""

REPLAYED_WINDOWS = 4
"""Windows of the sample that are replayed: what a replay takes grows with them."""

FEWEST_REPLAYED = 6
"""Steps of each that are, at least: fewer than all where a step gets several batches, each of which
takes as long to replay as a step."""

MOST_BATCHES = 64
"""Batches of a step of which a replay is made."""

SEVERAL = 1.1
"""Loaders that give batches to a step, on average, from which on a run has several: not only in the
steps after which there is a validation."""


def why_no_replay(facts: Facts, summed: SummedSteps) -> str | None:
    """What a run has that a replay does not bring forth, whatever is recorded of it."""
    if facts.world_size > 1:
        return "there are several ranks, and a replay of one does not tell what the others would do"
    if facts.has_accelerator:
        return "a GPU is in use, and what it would do is not replayed"
    if len(summed) and known(summed.mean()[names.LOADERS]) > SEVERAL:
        return "a step gets batches of several loaders or passes, and a replay knows one"
    if len(summed) and batches_of(summed.mean()) > MOST_BATCHES:
        return f"a step gets more than {MOST_BATCHES} batches, which takes too long to replay"
    if len(summed) and (why := why_kept(summed.mean())):
        return why
    if len(summed) and _sleeps_beside_the_loader(summed.mean(), facts):
        return (
            "the training thread sleeps in its wait for batches that are made (in a sampler, or in "
            "what is around the loader), and a replay does not tell for what"
        )
    if len(summed) and _is_helped(summed.mean(), facts):
        return (
            "other threads or processes of the run may compute while it waits for data, on CPUs "
            "that are short, and a replay does not tell what they do beside a loader's workers"
        )
    return None


def _sleeps_beside_the_loader(mean: dict[str, float], facts: Facts) -> bool:
    now = Situation(mean, parts_of(mean, facts), facts, None)
    return bool(facts.workers) and asleep_for_nobody(now) >= SLEEPS_BESIDE * now.parts.step


def _is_helped(mean: dict[str, float], facts: Facts) -> bool:
    """Whether others of the run may compute while the training thread sleeps in its data set.

    To overlap that sleep with the step takes the CPUs that these threads and processes need.
    """
    now = Situation(mean, parts_of(mean, facts), facts, None)
    slept, free = known(now.ns("batch/sleep_ns")), free_cpus(now)
    if facts.workers or free is None or slept < WORTH_SHOWING * now.parts.step:
        return False
    helps = helpers_ns(now) >= max(HELPED * slept, HELPS * now.parts.step)
    return helps and cpus_used(now) >= FULL * free


def replay_of(summed: SummedSteps, facts: Facts) -> Replay | None:
    """The replay of a sample of the run; None where too little is known (`why_no_replay`)."""
    cpus, workers = facts.usable_cpus, facts.workers
    if cpus is None or workers is None or len(summed) < FEWEST_STEPS:
        return None
    if why_no_replay(facts, summed):
        return None
    if not 0 <= workers <= MOST_WORKERS or facts.prefetch < 1:  # someone has edited it
        return None
    mean = summed.mean()
    now = Situation(mean, parts_of(mean, facts), facts, None)
    sample = summed.sample()
    count = -(-len(sample.epochs) // WINDOW)
    chosen = np.unique(np.linspace(0, count - 1, min(count, REPLAYED_WINDOWS)).astype(int))
    window, at = np.divmod(np.arange(len(sample.epochs)), WINDOW)
    rows = np.isin(window, chosen) & (at < max(FEWEST_REPLAYED, WINDOW / now.batches))
    given = Given(
        workers=workers,
        prefetch=facts.prefetch,
        cpus=within_quota(now, free_cpus(now) or cpus),
        most_cpus=within_quota(now, cpus),
        threads=facts.torch_threads or 0,
        tensors=facts.tensors or 0,
        draw=facts.draw or NO_DRAW,
        has_new_workers=facts.has_new_workers,
        tells_opening=facts.tells_opening,
    )
    columns = {name: column[rows] for name, column in sample.columns.items()}
    trace = trace_of(columns, sample.epochs[rows], given, summed.first_batch)
    unknown = unpredictable(facts, sample, mean)
    return None if trace is None else Replay(trace, mean[names.STEP], unknown)
