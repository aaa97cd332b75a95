"""Observing a plain PyTorch loop.

Usage::

    with observe(run_dir="runs/first") as obs:
        for batch in obs.loader(loader):
            with obs.step():
                with obs.phase("forward"):
                    loss = model(batch)

or, in a notebook::

    obs = observe()
    for batch in obs.loader(loader):
        train_on(batch)
    obs.close()
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Iterable
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any, TypeVar

from torch.nn import Module

from trainobs.core.errors import TrainobsError, shown
from trainobs.core.signals import Ending, let_signals_through, stay_interrupted
from trainobs.core.switch import switched_off
from trainobs.hooks.cuda import Cuda
from trainobs.hooks.datasets import data_roots_of, workers_of
from trainobs.hooks.distributed import TorchJob, rank_and_size
from trainobs.hooks.object_proxy import inner_of
from trainobs.hooks.watch import LoaderWatch
from trainobs.integrations.found_loaders import UnnamedLoaders
from trainobs.integrations.found_steps import OptimizerSteps
from trainobs.integrations.guard import FAULT, tell_fault
from trainobs.integrations.models import check_model, watch_lookups
from trainobs.integrations.phase_scopes import PhaseScopes
from trainobs.integrations.scope import NOTHING, Scope
from trainobs.integrations.step_scopes import StepScopes
from trainobs.integrations.steps_told import (
    tell_if_none,
    tell_of_first_mark,
    tell_of_marks,
    tell_of_steps,
)
from trainobs.integrations.user_warnings import warn_once
from trainobs.session.forks import register_fork_cleanup, unregister_fork_cleanup
from trainobs.session.runs import default_run_dir, open_session
from trainobs.session.session import Session
from trainobs.session.settings import LOG_EVERY_N_STEPS, PathLike, Probes, Settings
from trainobs.steps.rule import BY_FETCH
from trainobs.steps.states import StepsBy

Loader = TypeVar("Loader", bound=Iterable[Any])


class Observation:
    """A training loop that is observed, from `observe` on.

    That ends with `close`, with the `with` statement that it was given to, with the next `observe`
    of the same thread if there was none, or with the interpreter. Then its words do nothing. In a
    forked child or another thread they do nothing either.

    Attributes:
        run_dir: where the run log is; None where trainobs is switched off.
        level: "ebpf", "procfs", "timing" or "off".
    """

    def __init__(self, settings: Settings, model: Module | None) -> None:
        self.run_dir: Path | None = None
        self.level = "off"
        self._settings = settings
        self._model = model
        self._entered = 0
        self._ended = False
        self._session: Session | None = None
        self._watch: LoaderWatch | None = None
        self._optimizers: OptimizerSteps | None = None
        self._end_of_child: Finalize | None = None
        self._begin()

    def _repr_html_(self) -> str:
        """In a notebook, the page of the run as far as it is written."""
        from trainobs.report.notebook import shown

        return "<pre>not observed</pre>" if self.run_dir is None else shown(self.run_dir)

    def loader(self, loader: Loader) -> Loader:
        """The loader, observed: its fetches are timed, and begin the steps, until the run ends.

        A loader of torch is given back itself; for another one stands an object of its class, with
        its attributes and operators.

        In a loop that never uses `step`, a step begins with the first fetch after an optimizer of
        torch's has stepped; where none does, with each fetch of the loader that the loop went to
        first. A loop inside `torch.no_grad()` or `phase`, as a validation may be, begins none.
        """
        session, given = self._session, inner_of(loader)
        if session is None or self._watch is None:
            self._tell_unused()
            return given
        try:
            if self._optimizers is not None and self._optimizers.takes_all:
                self._optimizers.takes_all = False
                session.info.settings.pop("loader_workers", None)
            observed = self._watch.observe(given)
            self._take(given)
            if session.clock.steps_by == StepsBy.FETCHES:
                session.note_steps(BY_FETCH.told)
            return observed
        except Exception:
            self._fault()
            return given

    def step(self, number: int | None = None) -> Scope:
        """Context of one optimizer step, or a call: its end says that the optimizer has stepped.

        It may hold the whole step, or, under gradient accumulation, only the optimizer's part; or
        it is called at the step's end, without `with`, as that of torch's profiler is; what follows
        the last call is part of the last step. What the first use was, all are. What came before,
        from the first fetch on, belongs to the step too. Before the first use, that is up to 32
        batches or two minutes; of more, steps were taken from optimizers.

        Args:
            number: the step's number; by default one more than the last, from 0.
        """
        session = self._session
        if session is None or threading.get_ident() != self._thread:
            return self._tell_unused()
        clock = session.clock
        if self._optimizers is not None:
            self._leave_optimizers()
            self._steps_found(tell_of_first_mark(clock.by_marks()))
        return self._steps.scope(number)

    def phase(self, name: str) -> Scope:
        """Context of a phase of the step; phases may nest, and the inner one's time is its own.

        Args:
            name: "loader", "transfer", "forward", "backward", "optimizer", "checkpoint",
                "validation", "logging", "other", or up to 16 names of one's own, of at most 40
                letters, digits, `_`, `.` and `-`: "augment" becomes `phase/augment_ns`. Anything
                else counts as "other", and is told.
        """
        session = self._session
        if session is None or threading.get_ident() != self._thread:
            return self._tell_unused()
        return self._phases.scope(name)

    def close(self) -> None:
        """End the run, and write what is left of it. May be called twice."""
        handled = sys.exc_info()[0]
        self._end("ok" if handled is None else f"closed while handling {handled.__name__}")

    def __enter__(self) -> Observation:
        """The run ends with the outermost `with`; entered after its end, this is one more run."""
        if self._ended:
            self._begin()
        self._entered += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        """End the run with the outermost `with`."""
        self._entered = max(0, self._entered - 1)
        if not self._entered:
            self._end("ok" if kind is None else f"exception: {kind.__name__}")

    def abandon(self) -> None:
        """In a forked child: the run is the parent's."""
        self._session = self._watch = None
        self._leave_optimizers()
        atexit.unregister(self._end_at_exit)
        _running.clear()

    def _begin(self) -> None:
        self.run_dir, self.level, self._ended = None, "off", False
        self._thread = threading.get_ident()
        for other in list(_running):
            if not other._entered and other._thread == self._thread:
                other._end("the next run began")
        if switched_off():
            return
        try:
            opened = _open(self._settings)
            if opened is None:
                return
            session, self.run_dir = opened
            self._session, self.level = session, session.level
            clock = session.clock
            self._steps = StepScopes(clock, self._fault, self._uses_with)
            self._phases = PhaseScopes(clock, self._fault)
            self._watch = self._new_watch(session)
            _running.append(self)  # nobody else may keep it
            register_fork_cleanup(self)
            atexit.register(self._end_at_exit)
            # A child of multiprocessing calls this, and nothing that is registered with atexit.
            self._end_of_child = Finalize(None, self._end_at_exit, exitpriority=0)
            watch_lookups(session, self._model, self._settings)
        except BaseException as error:  # Ctrl-C too: then nobody has it to close it
            self._end(f"exception: {type(error).__name__}")
            raise

    def _new_watch(self, session: Session) -> LoaderWatch:
        """What is told of loaders, from which steps are found until `step` marks them."""
        session.clock.by_optimizers()
        self._optimizers = OptimizerSteps(session.clock, self._steps_found, self._fault)
        return UnnamedLoaders(self._found, session, self._fault)

    def _found(self, loader: Any) -> None:
        session = self._session
        if session is not None and session.clock.no_steps:  # those before were looked at
            session.info.settings.pop("loader_workers", None)
        self._take(loader)

    def _take(self, loader: Any) -> None:
        """What is to be known of a loader that the loop goes to."""
        session = self._session
        if session is not None:
            if self._settings.data_roots is None:
                session.add_data_roots(data_roots_of(loader))
            session.note_workers(workers_of(loader))

    def _steps_found(self, found: str) -> None:
        """A step goes on: of a loader that the loop trains on, and not one that it looks at."""
        if self._session is None:
            return
        self._session.note_steps(found)
        if (loader := self._session.clock.fetches.loader) is not None:
            self._session.info.settings["loader_workers"] = workers_of(loader)

    def _uses_with(self) -> None:
        if isinstance(self._watch, UnnamedLoaders):
            self._watch.marked()

    def _leave_optimizers(self) -> None:
        optimizers, self._optimizers = self._optimizers, None
        if optimizers is not None:
            optimizers.close()

    def _end_at_exit(self) -> None:
        """The interpreter says what it told last of, which may be long ago in a notebook."""
        kind = getattr(sys, "last_type", None)
        self._end("interpreter exit" + (f", after {kind.__name__}" if kind else ""))
        stay_interrupted()  # what tells of the run has imported more

    def _end(self, outcome: str) -> None:
        session, self._session = self._session, None
        watch, self._watch = self._watch, None
        optimizers = self._optimizers
        self._leave_optimizers()
        if session is None:
            return
        self._ended = True
        self._phases.close()
        atexit.unregister(self._end_at_exit)
        if self._end_of_child is not None:
            self._end_of_child.cancel()
        unregister_fork_cleanup(self)
        if self in _running:
            _running.remove(self)
        try:
            with Ending() as last:
                last.callback(session.stop, outcome)
                if watch is not None:
                    last.callback(watch.close)
                elsewhere = watch is not None and watch.elsewhere
                tell_of_steps(session, optimizers, elsewhere=elsewhere)
                tell_of_marks(session, self._steps.ignored)
            tell_if_none(session, self._settings, self.run_dir)
        except Exception:
            let_signals_through()
            if outcome != FAULT:  # what fails again was told of
                tell_fault("could not end its run")

    def _fault(self) -> None:
        """A mark or a loader's hook has failed, and is being handled: the loop goes on."""
        if self._session is not None:
            tell_fault("stops observing this run")
            self._end(FAULT)
            self._ended = False  # no news for who goes on using it

    def _tell_unused(self) -> Scope:
        if self._ended:
            warn_once(
                "trainobs takes no notice of what is marked after the end of a run",
                f"the run in {self.run_dir} has ended",
                "call `observe` again for another run",
            )
        elif self._session is not None:
            found = f"the thread {shown(threading.current_thread().name)}"
            do = "mark steps and phases in the thread that called `observe`"
            warn_once("trainobs takes no notice of a mark in another thread", found, do)
        return NOTHING


_running: list[Observation] = []
"""Those of this process that have not ended."""


def _open(settings: Settings) -> tuple[Session, Path] | None:
    """A session and its run directory; None where a fault of ours keeps the run unobserved."""
    try:
        rank, world_size = rank_and_size()
        return open_session(
            settings,
            settings.run_dir or default_run_dir(Path(), world_size),
            log_every_n_steps=settings.log_every_n_steps or LOG_EVERY_N_STEPS,
            rank=rank,
            world_size=world_size,
            accelerator=Cuda(),
            job=TorchJob(),
        )
    except TrainobsError:
        raise
    except Exception:
        tell_fault("does not observe this run")
        return None


def observe(
    *,
    probes: Probes = "auto",
    data_roots: PathLike | Iterable[PathLike] | None = None,
    run_dir: PathLike | None = None,
    log_every_n_steps: int | None = None,
    model: Module | None = None,
    embedding_every: int | str = "auto",
    tensorboard: str = "default",
    io: bool = False,
    quiet: bool = False,
) -> Observation:
    """Observe a training loop of this thread, from now on.

    Args:
        probes: "auto" for all that this machine offers, "off" for timing only, or a list: names of
            probes that must work, and each `Probe` of your own.
        data_roots: directories and files that hold training data. By default they are found from
            the data sets, and what loaders read from regular files that are no libraries counts as
            data: their workers, or the training thread where it waits for a batch.
        run_dir: where the run log goes; by default `trainobs/<date and time>`, or `trainobs/run` in
            a job of several ranks. If a run is there already, a directory beside it, which is told.
        log_every_n_steps: steps between two points in TensorBoard, once each of the first 200 steps
            has one; 50 by default.
        model: the model that trains, as the loop calls it; the lookups of its embedding tables are
            recorded, if it has any. Give it once it is sharded, where TorchRec shards it.
        embedding_every: lookups of embedding rows are counted in every step; their ids are taken,
            for what needs them, in every so many: "auto" for about 1 step in 17, 1 for all, "off"
            to count nothing.
        tensorboard: "default" for the 40 curves, at most, that tell most; "all" for every metric
            that has a value, and for the embedding tables that are read most.
        io: whether to count what is read and written of each file, for `trainobs report --io`.
        quiet: nothing on standard error at the end, where rank 0 prints the verdict, the run
            directory and the commands for more, and no warning where less than eBPF is observed.
            Other warnings stay, such as that no step was found: they are of the logger "trainobs".

    Returns:
        The `Observation` to wrap the loop with. `with` gives the same object, and ends the run. Of
        two that are to go on at once, the first has to be in a `with` when the second begins.

    Raises:
        SettingError: a parameter or a variable of the environment has a bad value, or the
            `run_dir` given cannot be written.
        ProbeError: a probe that `probes` names cannot run.
    """
    settings = Settings.parse(
        probes, data_roots, run_dir, log_every_n_steps, embedding_every, tensorboard, io, quiet
    )
    return Observation(settings, check_model(model))
