"""Observing a plain PyTorch loop.

Usage::

    with observe(run_dir="runs/first") as obs:
        for batch in obs.loader(loader):
            with obs.step():
                with obs.phase("forward"):
                    loss = model(batch)
"""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, SupportsIndex, TypeVar

from torch.nn import Module

from trainobs.core.abi import Phase
from trainobs.core.errors import TrainobsError, shown
from trainobs.core.switch import switched_off
from trainobs.hooks.cuda import Cuda
from trainobs.hooks.datasets import data_roots_of, workers_of
from trainobs.hooks.distributed import TorchJob
from trainobs.hooks.observed_loader import ObservedLoader
from trainobs.hooks.watch import LoaderWatch
from trainobs.integrations.guard import tell_fault
from trainobs.integrations.models import check_model, watch_lookups
from trainobs.session.runs import default_run_dir, open_session
from trainobs.session.session import Session
from trainobs.session.settings import PathLike, Settings
from trainobs.steps.clock import LAST_STEP

logger = logging.getLogger("trainobs")

Batch = TypeVar("Batch")

LOG_EVERY_N_STEPS = 50
"""Lightning's default."""


class Observation(Protocol):
    """What `observe` gives to a training loop."""

    run_dir: Path | None
    """Where the run log is; None where trainobs is switched off."""

    level: str
    """"ebpf", "procfs", "timing" or "off"."""

    def loader(self, loader: Iterable[Batch]) -> Iterable[Batch]:
        """The loader, observed: fetches are timed, and begin the steps."""

    def step(self, number: int | None = None) -> Scope:
        """Context of one optimizer step. Its exit says that the optimizer has stepped.

        It may hold the whole step, or, under gradient accumulation, only the optimizer's part:
        what came before, from the first fetch on, belongs to the step too.

        Args:
            number: the step's number; by default one more than the last, from 0.
        """

    def phase(self, name: str) -> Scope:
        """Context of a phase of the step; phases may nest, and the inner one's time is its own.

        Args:
            name: "loader", "transfer", "forward", "backward", "optimizer", "checkpoint",
                "validation", "logging" or "other"; anything else counts as "other", and is told.
        """


class Scope(Protocol):
    """A context manager that yields nothing and swallows no exception."""

    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


@dataclass(eq=False, slots=True)
class _Between:
    """A step or phase, whose two ends a clock is told of."""

    begin: Callable[[Any], object]
    what: int | None
    end: Callable[[], object]

    def __enter__(self) -> None:
        self.begin(self.what)

    def __exit__(self, *exception: object) -> None:
        self.end()


_NOTHING = nullcontext()
"""A step or phase of which nothing is wanted."""

_PHASES = {phase.name.lower(): phase.value for phase in Phase}


def _phase_of(name: str) -> int:
    """A name that is no phase counts as `other`: a misspelt word must not end a training."""
    if not isinstance(name, str) or name not in _PHASES:
        _tell_once("name that is no phase", name, f"use one of {', '.join(map(repr, _PHASES))}")
        return Phase.OTHER.value
    return _PHASES[name]


def _step_number(value: SupportsIndex | None) -> int | None:
    """A number that the record cannot hold gives way to the next number in turn."""
    try:
        number = -1 if value is None else operator.index(value)
    except Exception:  # of what somebody calls a number
        number = -1
    if 0 <= number <= LAST_STEP:
        return number
    if value is not None:
        _tell_once("bad step number", value, "give a whole number from 0")
    return None


def _tell_once(what: str, value: object, do: str) -> None:
    if what not in _told:
        _told.add(what)
        logger.warning(
            "trainobs takes no notice of a %s\n  found: %s\n  do:    %s", what, shown(value), do
        )


_told: set[str] = set()


class _Observed:
    def __init__(self, session: Session, run_dir: Path, find_data: bool) -> None:
        self.run_dir: Path | None = run_dir
        self.level = session.level
        self._session = session
        self._find_data = find_data
        self.watch = LoaderWatch(session.clock, session.ledger, session.info)

    def loader(self, loader: Iterable[Batch]) -> Iterable[Batch]:
        if self._find_data:
            self._session.add_data_roots(data_roots_of(loader))
        self._session.note_workers(workers_of(loader))
        return ObservedLoader(loader, self._session.clock, self.watch)

    def step(self, number: int | None = None) -> Scope:
        clock = self._session.clock
        return _Between(clock.begin_batch, _step_number(number), clock.end_step)

    def phase(self, name: str) -> Scope:
        clock, phase = self._session.clock, _phase_of(name)
        clock.measured.add(phase)
        return _Between(clock.enter, phase, clock.leave)


class _Off:
    run_dir: Path | None = None
    level = "off"

    def loader(self, loader: Iterable[Batch]) -> Iterable[Batch]:
        return loader

    def step(self, number: int | None = None) -> Scope:
        return _NOTHING

    def phase(self, name: str) -> Scope:
        return _NOTHING


def _open(settings: Settings) -> tuple[Session, Path] | None:
    """None where a fault of our own keeps the run from being observed."""
    try:
        rank, world_size = _from_environment("RANK", 0), _from_environment("WORLD_SIZE", 1)
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


def _from_environment(name: str, default: int) -> int:
    """What `torchrun` and its like set, where they do."""
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default


def observe(
    *,
    probes: str | Iterable[str] = "auto",
    data_roots: PathLike | Iterable[PathLike] | None = None,
    run_dir: PathLike | None = None,
    log_every_n_steps: int | None = None,
    model: Module | None = None,
    embedding_every: int | str = "auto",
    tensorboard: str = "default",
    quiet: bool = False,
) -> AbstractContextManager[Observation]:
    """Observe the training loop in the body of a `with` statement.

    Args:
        probes: "auto" for all that this machine offers, "off" for timing only, or names of probes
            that must work.
        data_roots: directories and files that hold training data. By default they are found from
            the data sets, and what loaders read from regular files that are no libraries counts as
            data: their workers, or the training thread where it waits for a batch.
        run_dir: where the run log goes; by default `trainobs/<date and time>`, or `trainobs/run` in
            a job of several ranks. If a run is there already, a directory beside it.
        log_every_n_steps: steps between two points in TensorBoard, once each of the first 200 steps
            has one; 50 by default.
        model: the model that trains, as the loop calls it; the lookups of its embedding tables are
            recorded, if it has any. Give it once it is sharded, where TorchRec shards it.
        embedding_every: lookups of embedding rows are counted in every step; their ids are taken,
            for what needs them, in every so many: "auto" for about 1 step in 17, 1 for all, "off"
            to count nothing.
        tensorboard: "default" for the 40 curves, at most, that tell most; "all" for every metric
            that has a value, and for the embedding tables that are read most.
        quiet: say nothing at the end. Otherwise rank 0 prints the verdict, the run directory and
            the commands for more on standard error.

    Returns:
        A context manager whose value is the `Observation` to wrap the loop with.

    Raises:
        SettingError: a parameter has a bad value.
        ProbeError: on entry, a probe that `probes` names cannot run.
    """
    settings = Settings.parse(
        probes, data_roots, run_dir, log_every_n_steps, embedding_every, tensorboard, quiet
    )
    return _Observing(settings, check_model(model))


class _Observing:
    """A class, since a generator that nobody keeps would end the run as soon as it began."""

    def __init__(self, settings: Settings, model: Module | None) -> None:
        self._settings = settings
        self._model = model
        self._open: list[tuple[Session, LoaderWatch] | None] = []

    def __enter__(self) -> Observation:
        self._open.append(None)  # entered once more before it is left, it observes one more run
        try:
            return self._begin()
        except BaseException as error:  # Ctrl-C too: then nobody calls __exit__
            self.__exit__(type(error))
            raise

    def _begin(self) -> Observation:
        opened = None if switched_off() else _open(self._settings)
        if opened is None:
            return _Off()
        session, place = opened
        observed = _Observed(session, place, find_data=self._settings.data_roots is None)
        self._open[-1] = (session, observed.watch)
        watch_lookups(session, self._model, self._settings)
        return observed

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        opened = self._open.pop() if self._open else None
        if opened is None:
            return
        session, watch = opened
        watch.close()
        if session.clock.unended_batches > 1:
            _tell_once("loop without steps", "no `with obs.step():`", "put each step into one")
        try:
            session.stop("ok" if kind is None else f"exception: {kind.__name__}")
        except Exception:
            tell_fault("could not end its run")
