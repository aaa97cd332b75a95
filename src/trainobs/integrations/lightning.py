"""`ObsCallback`: observing a Lightning Trainer, of `lightning.pytorch` or `pytorch_lightning`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainobs.core.abi import Phase
from trainobs.core.errors import MissingPackageError, TrainobsError, shown
from trainobs.core.log import logger
from trainobs.core.switch import switched_off
from trainobs.hooks.cuda import Cuda
from trainobs.hooks.datasets import data_roots_of, workers_of
from trainobs.hooks.distributed import TorchJob
from trainobs.hooks.watch import LoaderWatch
from trainobs.integrations.board import SummaryWriterEvents
from trainobs.integrations.guard import ObservingCallback, harmless, tell_unrecorded
from trainobs.integrations.lightning_fetcher import (
    StreamMatcher,
    fetches_for_the_step,
    has_torch_loaders_only,
)
from trainobs.integrations.manual import ManualBackward
from trainobs.integrations.models import watch_lookups
from trainobs.integrations.phase_scopes import PhaseScopes
from trainobs.integrations.profiler_tee import ProfilerTee
from trainobs.session.runs import default_run_dir, open_session
from trainobs.session.session import Session
from trainobs.session.settings import LOG_EVERY_N_STEPS, is_remote

_NAMESPACES = ("lightning.pytorch", "pytorch_lightning")

_MARKED = frozenset(Phase) - {Phase.LOGGING}
"""Phases that the tee and the hooks mark: Lightning tells nobody when its loggers work."""

_LENT = frozenset({"log", "log_dict"})
"""Attributes that a Trainer gives to its callbacks as it begins."""

_OF_A_RUN = _LENT | {
    *(
        "run_dir",
        "_session",
        "_phases",
        "_trainer",
        "_tee",
        "_manual",
        "_watch",
        "_stream_matcher",
        "_epoch",
        "_steps_done",
    ),
}
"""Attributes that copies go without."""


def _callback_bases() -> tuple[type, ...]:
    """`Callback` of each Lightning namespace in use; of an installed one if none is loaded."""
    loaded = [name for name in _NAMESPACES if name in sys.modules]
    if not loaded:
        loaded = [n for n in _NAMESPACES if importlib.util.find_spec(n.partition(".")[0])][:1]
    return tuple(importlib.import_module(name).Callback for name in loaded)


def _callback_in_use() -> Any:
    try:
        bases = _callback_bases() or (object,)
    except ImportError:  # a Lightning that cannot be used: told where a callback is made
        bases = (object,)
    return bases[0] if len(bases) == 1 else type("Callback", bases, {})


_Callback: Any = _callback_in_use()
"""What makes the class itself a callback, as LightningCLI asks; for a type checker it is of any."""


class ObsCallback(ObservingCallback, _Callback):  # type: ignore[misc]
    """Observes `Trainer.fit`: `Trainer(callbacks=[ObsCallback()])`.

    The record goes to a run log (Parquet) and to TensorBoard: through the Trainer's TensorBoard
    logger where there is one, else into the run directory. Its x-axis is that of Lightning's own
    loggers. `validate`, `test`, `predict`, `fast_dev_run` and the trials of a `Tuner` are left
    alone.

    Args:
        probes: "auto" for all that this machine offers, "off" for timing only, or a list: names of
            probes that must work, and each `Probe` of your own.
        data_roots: directories and files that hold training data. By default they are found from
            the data sets, and what loaders read from regular files that are no libraries counts as
            data: their workers, or the training thread where it waits for a batch.
        run_dir: where the run log goes; by default `trainobs/` under the logger's directory, or
            without a logger `trainobs/<date and time>` under the Trainer's root directory; in a job
            of several ranks `trainobs/run` there. If a run is there already, a directory beside it.
        log_every_n_steps: steps between two points in TensorBoard, once each of the first 200 steps
            has one; by default the Trainer's.
        embedding_every: lookups of embedding rows are counted in every step; their ids are taken,
            for what needs them, in every so many: "auto" for about 1 step in 17, 1 for all, "off"
            to count nothing.
        tensorboard: "default" for the 40 curves, at most, that tell most; "all" for every metric
            that has a value, and for the embedding tables that are read most.
        io: whether to count what is read and written of each file, for `trainobs report --io`.
        quiet: nothing on standard error at the end, where rank 0 prints the verdict, the run
            directory and the commands for more; no warning where less than eBPF is observed, and no
            word of what is not recorded, such as `validate`. Other warnings stay: they are of the
            logger "trainobs".

    Attributes:
        run_dir: directory of the last run log; None before the first fit.

    Raises:
        SettingError: a parameter has a bad value; at the beginning of fit, a variable of the
            environment has, or the `run_dir` given cannot be written.
        ProbeError: at the beginning of fit, a probe that `probes` names cannot run.

    Notes:
        * `dataloader_iter` training steps, and several loaders without a length, of which Lightning
          fetches one batch ahead: which step consumed which batch is not known.
        * Under manual optimization a backward pass is known that `manual_backward` makes; what the
          training step does beside that and the optimizers is `phase/forward_ns`. If optimizers
          step without one, both are unknown.
    """

    _trainer: Any | None = None
    _tee: ProfilerTee | None = None
    _manual: ManualBackward | None = None
    _stream_matcher: StreamMatcher | None = None

    def __reduce__(self) -> tuple[Callable[[type], ObsCallback], tuple[type], dict[str, Any]]:
        """Copies and pickles hold the settings and what a subclass adds, never a run."""
        state = {name: value for name, value in vars(self).items() if name not in _OF_A_RUN}
        return _restore, (getattr(type(self), "_plain", type(self)),), state

    def _fit_in(self) -> None:
        """A Trainer takes only callbacks of its own namespace, so this is one of every loaded."""
        self.__class__ = _as_callback(type(self))

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start to observe, before the Trainer makes its loaders."""
        if switched_off():
            return
        if left_alone := _left_alone(trainer, stage):
            self._tell_unrecorded(trainer, *left_alone)
            return
        if self._session is not None:
            self._stop("not ended")
        if type(trainer.profiler) is ProfilerTee:
            logger.warning(
                "a second ObsCallback in one Trainer stays idle\n"
                "  found: the Trainer is observed already\n  do:    give it one ObsCallback"
            )
            return
        try:
            self._start(trainer)
        except TrainobsError:
            raise
        except Exception:
            self._give_up("does not observe this run")

    @harmless
    def on_fit_start(self, session: Session, trainer: Any, pl_module: Any) -> None:
        """Other ranks may be children of rank 0; behind this barrier it has begun to observe."""
        if trainer.world_size > 1:
            session.detach()

    @harmless
    def on_train_start(self, session: Session, trainer: Any, pl_module: Any) -> None:
        """Find the data, the checkpoint directories and the embedding tables, which exist now."""
        if self._settings.data_roots is None:
            session.add_data_roots(data_roots_of(trainer.train_dataloader))
        session.note_workers(workers_of(trainer.train_dataloader))
        directories = [getattr(c, "dirpath", None) for c in trainer.checkpoint_callbacks]
        existing = [Path(d) for d in directories if d and Path(d).is_dir()]
        session.add_checkpoint_roots(existing)
        # Only now is the model as it will train: configured, set up, and moved to its device.
        watch_lookups(session, pl_module, self._settings)
        self._steps_done = trainer.global_step
        self._epoch = trainer.current_epoch  # one that is resumed in its middle has no start
        if not pl_module.automatic_optimization and self._tee is not None:
            self._manual = ManualBackward(session.clock, self._tee)

    @harmless
    def on_train_epoch_start(self, session: Session, trainer: Any, pl_module: Any) -> None:
        """Loaders may be new with every epoch, and their workers are started after this."""
        self._epoch = trainer.current_epoch
        session.clock.read_for(trainer.current_epoch)
        session.clock.delivering = fetches_for_the_step(trainer)
        session.clock.other_loaders = not has_torch_loaders_only(trainer)

    @harmless
    def on_train_batch_start(self, session: Session, trainer: Any, *_: Any, **__: Any) -> None:
        """The step's batch is there."""
        # The x-axis of Lightning's loggers has no public name; DeviceStatsMonitor takes it, too.
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        session.clock.begin_batch(step, self._epoch)
        if self._stream_matcher is not None and not session.clock.delivering:
            self._stream_matcher.got(trainer)

    def on_before_backward(self, *_: Any, **__: Any) -> None:
        """Of a backward pass of automatic optimization the tee hears."""
        if self._manual is not None:
            self._mark(self._manual.begin)

    def on_after_backward(self, *_: Any, **__: Any) -> None:
        """Likewise."""
        if self._manual is not None:
            self._mark(self._manual.end)

    @harmless
    def _mark(self, session: Session, mark: Callable[[], None]) -> None:
        mark()

    @harmless
    def on_train_batch_end(self, session: Session, trainer: Any, *_: Any, **__: Any) -> None:
        """Under gradient accumulation only some batches end a step."""
        steps_done = trainer.global_step
        if self._manual is not None:
            self._manual.end_batch(stepped=steps_done != self._steps_done)
        if steps_done != self._steps_done:
            self._steps_done = steps_done
            session.clock.end_step()

    @harmless
    def on_train_epoch_end(self, session: Session, trainer: Any, pl_module: Any) -> None:
        """A fetch that found the loader exhausted began no step."""
        session.clock.cancel()

    @harmless
    def on_validation_start(self, session: Session, trainer: Any, pl_module: Any) -> None:
        """Validation, the sanity check included, is one phase."""
        assert self._tee is not None
        session.clock.cancel()
        session.clock.enter(Phase.VALIDATION)
        self._tee.trainobs_paused = True
        session.clock.delivering = False

    @harmless
    def on_validation_end(self, session: Session, trainer: Any, pl_module: Any) -> None:
        """Back to training."""
        assert self._tee is not None
        self._tee.trainobs_paused = False
        session.clock.leave()
        session.clock.delivering = fetches_for_the_step(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lightning calls no teardown after an exception, SIGTERM or Ctrl-C."""
        self._leave(_failure(exception))

    @harmless
    def _fail(self, session: Session) -> None:
        """The same, told by the tee before any callback hears of the exception."""
        self._stop(_failure())

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stop observing, and put the profiler back."""
        self._leave("ok")

    def _tell_unrecorded(self, trainer: Any, what: str, why: str) -> None:
        if trainer.is_global_zero:
            tell_unrecorded(what, why, self._settings)

    def _leave(self, outcome: str) -> None:
        self._end(outcome)
        for lent in _LENT:  # each leads to the module, and so to the Trainer
            self.__dict__.pop(lent, None)

    def _place(self, trainer: Any) -> tuple[Path, SummaryWriterEvents | None]:
        """Where the run log goes, and where TensorBoard's events go if not beside it."""
        tensorboard = _tensorboard_logger(trainer)
        run_dir = self._settings.run_dir or _default_run_dir(trainer, tensorboard)
        if tensorboard is None or not trainer.is_global_zero:
            return run_dir, None
        return run_dir, SummaryWriterEvents(tensorboard.experiment)

    def _start(self, trainer: Any) -> None:
        run_dir, writer = self._place(trainer)
        self._session, self.run_dir = open_session(
            self._settings,
            run_dir,
            writer=writer,
            curves=writer.log_dir if writer else None,
            log_every_n_steps=self._settings.log_every_n_steps
            or trainer.log_every_n_steps
            or LOG_EVERY_N_STEPS,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            accelerator=Cuda(),
            job=TorchJob(),
        )
        self._session.clock.measured.update(_MARKED)
        self._phases = PhaseScopes(self._session.clock, self._fault)
        self._watch = LoaderWatch(
            self._session.clock,
            self._session.ledger,
            self._session.info,
            opens_steps=True,
            on_fault=self._fault,
        )
        self._stream_matcher = StreamMatcher(self._watch)
        self._tee = ProfilerTee(trainer.profiler, self._session.clock, self._fail, self._fault)
        self._trainer, trainer.profiler = trainer, self._tee
        self._steps_done = trainer.global_step

    def _let_go(self) -> None:
        self._manual = self._stream_matcher = None
        trainer, self._trainer = self._trainer, None  # not always the one that ends the run
        tee, self._tee = self._tee, None
        if tee is not None:
            tee.trainobs_paused = True
            if trainer is not None and trainer.profiler is tee:
                trainer.profiler = tee.trainobs_inner


def _failure(exception: BaseException | None = None) -> str:
    """The outcome of a run that ended with an exception, or with the one that is being handled."""
    kind = sys.exc_info()[0] if exception is None else type(exception)
    return f"exception: {kind.__name__ if kind else 'unknown'}"


def _tensorboard_logger(trainer: Any) -> Any | None:
    """The first TensorBoard logger; by its class's name, since there are two namespaces."""
    for candidate in trainer.loggers:
        if any(base.__name__ == "TensorBoardLogger" for base in type(candidate).__mro__):
            return candidate
    return None


def _default_run_dir(trainer: Any, tensorboard: Any | None) -> Path:
    """Under the logger's directory; with several ranks, under one that needs no agreement.

    Lightning writes to object stores, too: then it goes to the next of these that is a directory.
    """
    remote = None
    if trainer.world_size == 1:
        loggers = [tensorboard] if tensorboard else trainer.loggers
        for candidate in loggers:
            directory = candidate.log_dir or candidate.save_dir
            if is_remote(directory):
                remote = remote or directory
            elif isinstance(directory, str | os.PathLike) and directory:
                return Path(directory, "trainobs").absolute()
    root = trainer.default_root_dir
    if is_remote(root):
        root, remote = "", remote or root
    run_dir = default_run_dir(Path(root), trainer.world_size)
    if remote is not None and trainer.is_global_zero:
        logger.warning("trainobs writes to %s, since %s is no directory", run_dir, shown(remote))
    return run_dir


def _left_alone(trainer: Any, stage: str) -> tuple[str, str] | None:
    """What is not observed of a Trainer as it begins, and why; None: it is."""
    if stage != "fit":
        name = getattr(stage, "value", stage)  # Lightning's is an enumeration of strings
        return f"`{name}`", "only `fit` is observed"
    if trainer.fast_dev_run:
        return "`fast_dev_run`", "Lightning writes no logs and no checkpoints in it either"
    # What a Tuner puts in front ends the fit behind its trials.
    if any(getattr(callback, "_early_exit", False) for callback in trainer.callbacks):
        return "the trials of a `Tuner`", "Lightning takes the callbacks away for them"
    return None


def _as_callback(cls: type[ObsCallback]) -> type[ObsCallback]:
    """`cls` with the bases that it lacks; one class for each such pair, so that types compare."""
    found = _callback_bases()
    if not found:
        why = ModuleNotFoundError("neither lightning nor pytorch_lightning is installed")
        raise MissingPackageError.for_extra("ObsCallback", "lightning", why)
    bases = tuple(base for base in found if not issubclass(cls, base))
    if not bases:
        return cls
    if (cls, bases) not in _combined:
        namespace = {"__module__": cls.__module__, "_plain": cls}
        _combined[cls, bases] = type(cls.__name__, (cls, *bases), namespace)
    return _combined[cls, bases]


_combined: dict[tuple[type, tuple[type, ...]], type[ObsCallback]] = {}


def _restore(cls: type[ObsCallback]) -> ObsCallback:
    return object.__new__(_as_callback(cls))
