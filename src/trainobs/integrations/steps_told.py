"""What a user is told of the steps of a loop that marks none, and of its ranks, at its end."""

from __future__ import annotations

import time
from pathlib import Path

from trainobs.core.abi import Phase
from trainobs.core.records import SETUP
from trainobs.core.text import counted, duration, percent
from trainobs.hooks.distributed import rank_and_size
from trainobs.integrations.found_steps import OptimizerSteps
from trainobs.integrations.user_warnings import warn_once
from trainobs.session.ending import tell_no_step
from trainobs.session.session import Session
from trainobs.session.settings import Settings
from trainobs.steps.clock import StepClock
from trainobs.steps.rule import ALONE
from trainobs.steps.states import StepsBy

_MARK = "`with obs.step():`"

_FIRST_USED = "`obs.step()` was first used after them"

_LONG_NS = 1_000_000_000
"""What a last step, or a run without one, takes at least that is worth a word."""


def tell_if_none(session: Session, settings: Settings, run_dir: Path | None) -> None:
    """After a run: one line where it has no step, so that nobody tells a verdict on it."""
    is_told = session.info.rank == 0 and not settings.quiet and not settings.unasked
    if is_told and run_dir is not None and not _has_steps(session.clock):
        tell_no_step(run_dir)


def _tell_of_rank(session: Session) -> None:
    """After a run of one rank that was taken for a job of its own."""
    rank, size = rank_and_size()
    if session.info.world_size == 1 < size:
        failed = f"trainobs took rank {rank} of {size} for a job of its own"
        found = "the process group was made after `observe()`, and no `RANK` was set"
        warn_once(failed, found, "make the process group first", kind=found)


def _tell_of_thread(session: Session) -> None:
    """After a run whose loop waited for batches where nobody saw it."""
    if Phase.LOADER.value not in session.clock.measured:
        failed = "trainobs does not know how long the loop waited for its batches"
        found = "another thread went through what `obs.loader` returned"
        do = "give `obs.loader` what the loop itself goes through, as that thread's object; or put "
        warn_once(failed, found, f'{do}the wait into `obs.phase("loader")`')


def _has_steps(clock: StepClock) -> bool:
    return clock.step != SETUP and not clock.no_steps


def tell_of_steps(
    session: Session, optimizers: OptimizerSteps | None, *, elsewhere: bool = False
) -> None:
    """At the end of a loop, whose steps may not be what its author means.

    Args:
        session: of the loop.
        optimizers: what ended its steps; None where it marked them.
        elsewhere: whether another thread has gone through its loaders.
    """
    _tell_of_rank(session)
    if elsewhere:
        _tell_of_thread(session)
    clock = session.clock
    fetches, last_ns = clock.fetches, clock.goes_on_ns
    if not _has_steps(clock):
        if optimizers is not None:
            _tell_of_none(session, optimizers.count, last_ns)
    elif fetches.in_phases and not fetches.has_led:
        _tell_of_phase(session)
    elif clock.unended_batches > 1:
        found = f"{_batches(clock.unended_batches)}, and nothing that ends a step"
        do = f"put each step into {_MARK}"
        warn_once("trainobs takes the whole loop for one step", found, do)
    elif fetches.count and clock.steps_by == StepsBy.OPTIMIZER and optimizers is not None:
        found = f"{_batches(fetches.count)} before the first step of an optimizer, each now a step"
        do = 'put a validation into `obs.phase("validation")`, or each step into `obs.step()`'
        warn_once("trainobs took batches for steps", found, do)
    elif clock.steps_by == StepsBy.OPTIMIZER and optimizers is not None:
        _tell_of_rest(optimizers, last_ns)
    elif fetches.count and clock.steps_by != StepsBy.FETCHES:
        failed = f"trainobs took the first {_batches(fetches.count)} for steps"
        warn_once(failed, _FIRST_USED, "use it from the first step on", kind=_FIRST_USED)
    elif clock.steps_by == StepsBy.FETCHES and 0 < fetches.took_ns < last_ns and last_ns > _LONG_NS:
        failed = f"the last step includes {duration(last_ns)} after the last fetch"
        share = last_ns / (last_ns + fetches.took_ns)
        found = f"{percent(share)} of the run came after the last fetch"
        do = f"call `obs.close()` behind the loop, or put each step into {_MARK}"
        warn_once(failed, found, do, kind="after the last fetch")


def tell_of_first_mark(before: int) -> str:
    """At the first `obs.step()` of a loop; returns what its steps are from then on.

    Args:
        before: steps that were taken from optimizers until then.
    """
    told = "the loop marks its steps"
    if not before:
        return told
    failed = f"trainobs took the first {counted(before, 'step')} of an optimizer for steps"
    warn_once(failed, _FIRST_USED, "use it from the first step on", kind=told)
    return f"{told}, but not the first {before}: these are an optimizer's"


def tell_of_marks(session: Session, ignored: int) -> None:
    """At the end of a loop that marks its steps.

    Args:
        session: of the loop.
        ignored: calls that ended no step, at least.
    """
    if not ignored:
        return
    calls = counted(ignored, "call")
    found = f"at least {calls} without `with`, after a first use with it"
    do = f"keep to one of the two: {_MARK}, or `obs.step()` at the end of each step"
    warn_once("trainobs took no notice of calls of `obs.step()`", found, do)
    session.note_steps(
        f"the loop marks its steps by `with`; at least {calls} without it ended none"
    )


def _tell_of_phase(session: Session) -> None:
    failed = "trainobs does not know which step waited for which batch, nor what is an epoch"
    found = "batches were fetched inside of `obs.phase`, where no fetch begins a step"
    do = "fetch them outside of phases (the wait is known all the same), as by `obs.phase` inside "
    warn_once(failed, found, f"{do}of the loop over the loader")
    if session.clock.steps_by == StepsBy.MARKS:
        told = "the loop marks its steps; what was fetched inside of a phase before one counts for"
        session.note_steps(f"{told} the step before it")


def _batches(count: int) -> str:
    return counted(count, "batch", "batches")


def _tell_of_rest(optimizers: OptimizerSteps, last_ns: int) -> None:
    """Of what came after the last step of an optimizer, but for validations and the like."""
    now_ns = time.monotonic_ns()
    rest_ns = min(now_ns - optimizers.last_ns, last_ns)
    share = rest_ns / max(now_ns - optimizers.first_ns, 1)
    if rest_ns > _LONG_NS and share > 0.5:
        failed = f"the last step includes {duration(rest_ns)} after the last optimizer step"
        found = f"{percent(share)} of the time since the first optimizer step came after the last"
        do = "call `obs.close()` behind the loop; put steps that no optimizer of torch's takes, as "
        do += f"replays of a CUDA graph, into {_MARK}"
        warn_once(failed, found, do, kind="after the last optimizer step")


def _tell_of_none(session: Session, count: int, last_ns: int) -> None:
    clock, failed = session.clock, "trainobs found no step in this run"
    was_given, batches = clock.steps_by == StepsBy.FETCHES, clock.unended_batches
    validated = clock.fetches.validated  # the report tells what an evaluation alone is
    if was_given and batches:  # such a pass leads no steps, and no other one came
        found = f"{counted(batches, 'batch was', 'batches were')} fetched without gradients "
        found += "(no_grad, inference_mode); no step begins there"
        session.info.settings["no_step"] = found
        warn_once(failed, found, f"put each step into {_MARK}")
    elif was_given and clock.fetches.in_phases:
        found = "what `obs.loader` returned was gone through inside of `obs.phase`; no step begins "
        found += "there"
        session.info.settings["no_step"] = found
        warn_once(failed, found, f"put each step into {_MARK}")
    elif count or (last_ns > _LONG_NS and not validated):
        whose = " of training" if validated else ""
        found = (
            f"no batch{whose} was fetched from what" if was_given else "no batch of a loader that"
        )
        found += " was given to `obs.loader`, no `obs.step()`, and "
        found += f"{counted(count, 'step')} of optimizers" if count else "no step of an optimizer"
        alone = f"; the first {ALONE + 1} make none, without a loader of torch's"
        found += alone if count else ""
        do = "iterate over what `obs.loader` returns" if was_given else "give the loop's loader to"
        do += ", or put" if was_given else " `obs.loader(...)`, or put"
        warn_once(failed, found, f"{do} each step into `obs.step()`")
