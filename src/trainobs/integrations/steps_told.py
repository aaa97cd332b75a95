"""What a user is told of the steps of a loop that marks none, at its end."""

from __future__ import annotations

import time
from pathlib import Path

from trainobs.core.records import SETUP
from trainobs.core.text import counted
from trainobs.integrations.found_steps import ALONE, OptimizerSteps
from trainobs.integrations.user_warnings import warn_ignored, warn_once
from trainobs.session.ending import tell_no_step
from trainobs.session.session import Session
from trainobs.session.settings import Settings
from trainobs.steps.clock import StepClock

_LONG_NS = 1_000_000_000
"""What a last step, or a run without one, takes at least that is worth a word."""


def tell_if_none(session: Session, settings: Settings, run_dir: Path | None) -> None:
    """After a run: one line where it has no step, so that nobody tells a verdict on it."""
    is_told = session.info.rank == 0 and not settings.quiet and not settings.unasked
    if is_told and run_dir is not None and not _has_steps(session.clock):
        tell_no_step(run_dir)


def _has_steps(clock: StepClock) -> bool:
    return clock.step != SETUP and not clock.no_steps


def tell_of_steps(clock: StepClock, optimizers: OptimizerSteps | None) -> None:
    """At the end of a loop, whose steps may not be what its author means.

    Args:
        clock: of the loop.
        optimizers: what ended its steps; None where it marked them.
    """
    fetches, last_ns = clock.fetches, clock.goes_on_ns
    if not _has_steps(clock):
        if optimizers is not None and (optimizers.count or last_ns > _LONG_NS):
            _tell_of_none(optimizers.count, was_given=clock.by_fetches)
    elif clock.unended_batches > 1:
        warn_ignored("loop without steps", "no `with obs.step():`", "put each step into one")
    elif fetches.count and clock.by_optimizer:
        found = f"{fetches.count} batches before the first step of an optimizer, each now a step"
        do = 'put a validation into `obs.phase("validation")`, or each step into `obs.step()`'
        warn_once("trainobs took batches for steps", found, do)
    elif clock.by_optimizer and optimizers is not None:
        share = last_ns / (time.monotonic_ns() - optimizers.first_ns)
        if last_ns > _LONG_NS and share > 0.5:
            found = f"since the last step of an optimizer {share:.0%} of the time was spent"
            do = "close the run after its loop; put steps that no optimizer of torch's takes, as "
            do += "replays of a CUDA graph, into `with obs.step():`"
            warn_ignored("loop that went on without an optimizer", found, do)
    elif fetches.count and not clock.by_fetches:
        found = f"`obs.step()` was first used after {fetches.count} steps from fetches"
        warn_ignored("missing mark of the first steps", found, "use it from the first step on")
    elif clock.by_fetches and 0 < fetches.took_ns < last_ns and last_ns > _LONG_NS:
        share = last_ns / (last_ns + fetches.took_ns)
        found = f"the last step, from the last fetch to the end, took {share:.0%} of the run"
        do = "close the run after its loop, or put each step into `with obs.step():`"
        warn_ignored("loop that went on without a fetch", found, do)


def _tell_of_none(count: int, *, was_given: bool) -> None:
    found = "no batch was fetched from what" if was_given else "no batch of a loader that"
    found += " was given to `obs.loader`, no `obs.step()`, and "
    found += f"{counted(count, 'step')} of optimizers" if count else "no step of an optimizer"
    found += f"; the first {ALONE + 1} make none, without a loader of torch's" if count else ""
    do = "iterate over what `obs.loader` returns" if was_given else "give the loop's loader to"
    do += ", or put" if was_given else " `obs.loader(...)`, or put"
    do += " each step into `obs.step()`"
    warn_once("trainobs found no step in this run", found, do)
