"""`ObsCallback`: observing a Lightning Trainer, of `lightning.pytorch` or `pytorch_lightning`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from torch.utils.data import DataLoader

from trainobs.core.errors import TrainobsError
from trainobs.core.kernel import Phase
from trainobs.hooks.cuda import Cuda
from trainobs.hooks.datasets import data_roots_of, workers_of
from trainobs.hooks.watch import LoaderWatch
from trainobs.integrations.profiler_tee import ProfilerTee
from trainobs.session.runs import default_run_dir, open_session
from trainobs.session.session import Session
from trainobs.session.settings import PathLike, Settings, switched_off

logger = logging.getLogger("trainobs")

_NAMESPACES = ("lightning.pytorch", "pytorch_lightning")

_MARKED = frozenset(Phase) - {Phase.LOGGING}
"""Phases that the tee and the hooks mark: Lightning tells nobody when its loggers work."""

_OF_A_RUN = frozenset({"run_dir", "_session", "_tee", "_watch", "_steps_done", "log", "log_dict"})
"""Attributes that copies go without; `log` and `log_dict` are lent by the Trainer."""

Hook = Callable[..., None]


def _harmless(hook: Hook) -> Hook:
    """A fault in a hook disarms the callback; it never reaches the training."""

    @functools.wraps(hook)
    def guarded(self: ObsCallback, *args: Any, **kwargs: Any) -> None:
        if self._session is None:
            return
        try:
            hook(self, *args, **kwargs)
        except Exception:
            logger.warning(
                "trainobs stops observing this run; the training goes on\n"
                "  found: the fault below\n  do:    please report it",
                exc_info=True,
            )
            self._stop(args[0], "fault in a hook")

    return guarded


class ObsCallback:
    """Observes `Trainer.fit`: `Trainer(callbacks=[ObsCallback()])`.

    The record goes to a run log (Parquet) and to TensorBoard: through the Trainer's TensorBoard
    logger where there is one, else into the run directory. Its x-axis is that of Lightning's own
    loggers. `validate`, `test`, `predict` and `fast_dev_run` are left alone.

    Args:
        probes: "auto" for all that this machine offers, "off" for timing only, or names of probes
            that must work.
        data_roots: directories and files that hold training data. By default they are found from
            the data sets, and what loader workers read from regular files that are no libraries
            counts as data.
        run_dir: where the run log goes; by default `trainobs/` under the logger's directory, or
            without a logger `trainobs/<date and time>` under the Trainer's root directory. If a run
            is there already, a directory beside it.
        log_every_n_steps: steps between two points in TensorBoard; by default the Trainer's.

    Attributes:
        run_dir: directory of the last run log; None before the first fit.

    Raises:
        SettingError: a parameter has a bad value.
        ProbeError: at the beginning of fit, a probe that `probes` names cannot run.

    Notes:
        * `dataloader_iter` training steps, and loaders without a length, of which Lightning fetches
          one batch ahead: which step consumed which batch is not known.
        * Under manual optimization all of the training step is `phase/forward_ns`: Lightning does
          not tell where backward and optimizer begin.
    """

    run_dir: Path | None = None
    _session: Session | None = None
    _tee: ProfilerTee | None = None
    _watch: LoaderWatch | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> ObsCallback:
        """A Trainer takes only callbacks of its own namespace, so this is one of every loaded."""
        return object.__new__(_as_callback(cls))

    def __init__(
        self,
        *,
        probes: str | Iterable[str] = "auto",
        data_roots: PathLike | Iterable[PathLike] | None = None,
        run_dir: PathLike | None = None,
        log_every_n_steps: int | None = None,
    ) -> None:
        super().__init__()
        self._settings = Settings.parse(probes, data_roots, run_dir, log_every_n_steps)

    def __reduce__(self) -> tuple[Callable[[type], ObsCallback], tuple[type], dict[str, Any]]:
        """Copies and pickles hold the settings and what a subclass adds, never a run."""
        state = {name: value for name, value in vars(self).items() if name not in _OF_A_RUN}
        return _restore, (_plain_class(type(self)),), state

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start to observe, before the Trainer makes its loaders."""
        if stage != "fit" or trainer.fast_dev_run or switched_off():
            return
        if self._session is not None:
            self._stop(trainer, "not ended")
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
            logger.warning(
                "trainobs does not observe this run; the training goes on\n"
                "  found: the fault below\n  do:    please report it",
                exc_info=True,
            )

    @_harmless
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Other ranks may be children of rank 0; behind this barrier it has begun to observe."""
        assert self._session is not None
        if trainer.world_size > 1:
            self._session.secede()

    @_harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Find the data and the checkpoint directories, which exist now."""
        assert self._session is not None
        if self._settings.data_roots is None:
            self._session.add_data_roots(data_roots_of(trainer.train_dataloader))
        self._session.note_workers(workers_of(trainer.train_dataloader))
        directories = [getattr(c, "dirpath", None) for c in trainer.checkpoint_callbacks]
        existing = [Path(d) for d in directories if d and Path(d).is_dir()]
        self._session.add_checkpoint_roots(existing)
        self._steps_done = trainer.global_step

    @_harmless
    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Loaders may be new with every epoch."""
        assert self._watch is not None
        self._watch.delivering = _fetches_for_the_step(trainer)
        self._watch.mixed = not _has_torch_loaders_only(trainer)

    @_harmless
    def on_train_batch_start(
        self,
        trainer: Any,
        pl_module: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """The step's batch is there."""
        assert self._session is not None
        # The x-axis of Lightning's loggers has no public name; DeviceStatsMonitor takes it, too.
        step = trainer.fit_loop.epoch_loop._batches_that_stepped
        self._session.clock.begin_batch(step, trainer.current_epoch)

    @_harmless
    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Under gradient accumulation only some batches end a step."""
        assert self._session is not None
        if trainer.global_step != self._steps_done:
            self._steps_done = trainer.global_step
            self._session.clock.end_step()

    @_harmless
    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """A fetch that found the loader exhausted began no step."""
        assert self._session is not None
        self._session.clock.cancel()

    @_harmless
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation, the sanity check included, is one phase."""
        assert self._session is not None
        assert self._tee is not None
        assert self._watch is not None
        self._session.clock.cancel()
        self._session.clock.enter(Phase.VALIDATION)
        self._tee.trainobs_paused = True
        self._watch.delivering = False

    @_harmless
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Back to training."""
        assert self._session is not None
        assert self._tee is not None
        assert self._watch is not None
        self._tee.trainobs_paused = False
        self._session.clock.leave()
        self._watch.delivering = _fetches_for_the_step(trainer)

    @_harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Lightning calls no teardown after an exception, SIGTERM or Ctrl-C."""
        self._stop(trainer, f"exception: {type(exception).__name__}")

    @_harmless
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stop observing, and put the profiler back."""
        self._stop(trainer, "ok")

    def _start(self, trainer: Any) -> None:
        tensorboard = _tensorboard_logger(trainer)
        self._session, self.run_dir = open_session(
            self._settings,
            self._settings.run_dir or _default_run_dir(trainer, tensorboard),
            writer=_LoggerEvents(tensorboard) if tensorboard and trainer.is_global_zero else None,
            log_every_n_steps=self._settings.log_every_n_steps or trainer.log_every_n_steps or 50,
            rank=trainer.global_rank,
            world_size=trainer.world_size,
            accelerator=Cuda(),
        )
        self._session.clock.measured.update(_MARKED)
        self._watch = LoaderWatch(self._session.clock, self._session.ledger, opens_steps=True)
        self._tee = ProfilerTee(trainer.profiler, self._session.clock)
        trainer.profiler = self._tee
        self._steps_done = trainer.global_step

    def _stop(self, trainer: Any, outcome: str) -> None:
        session, self._session = self._session, None
        tee, self._tee = self._tee, None
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()
        if tee is not None:
            tee.trainobs_paused = True
            if trainer.profiler is tee:
                trainer.profiler = tee.trainobs_inner
        if session is not None:
            session.stop(outcome)


def _fetches_for_the_step(trainer: Any) -> bool:
    """Whether Lightning fetches the batch of a step right before it.

    Of a loader without a length it fetches one batch ahead, to know which is the last. The fetcher
    has no public name: where it is another one, nothing is said of batches.
    """
    fetcher = getattr(trainer.fit_loop, "_data_fetcher", None)
    ahead = type(fetcher).__name__ != "_PrefetchDataFetcher"
    return not ahead and getattr(fetcher, "length", None) is not None


def _has_torch_loaders_only(trainer: Any) -> bool:
    """Whether all that Lightning fetches from is a loader of torch; False where that is hidden."""
    combined = getattr(trainer.fit_loop, "_combined_loader", None)
    loaders = getattr(combined, "flattened", ())
    return bool(loaders) and all(isinstance(loader, DataLoader) for loader in loaders)


class _LoggerEvents:
    """The writer of Lightning's TensorBoard logger, which the logger flushes and closes itself."""

    def __init__(self, tensorboard: Any) -> None:
        self._events = tensorboard.experiment._get_file_writer()

    def add_event(self, event: Event) -> None:
        self._events.event_writer.add_event(event)

    def flush(self) -> None:
        self._events.flush()

    def close(self) -> None:
        self.flush()


def _tensorboard_logger(trainer: Any) -> Any | None:
    """The first TensorBoard logger; by its class's name, since there are two namespaces."""
    for candidate in trainer.loggers:
        if any(base.__name__ == "TensorBoardLogger" for base in type(candidate).__mro__):
            return candidate
    return None


def _default_run_dir(trainer: Any, tensorboard: Any | None) -> Path:
    """Under the logger's directory; with several ranks, under one that needs no agreement."""
    if trainer.world_size == 1:
        loggers = [tensorboard] if tensorboard else trainer.loggers
        for candidate in loggers:
            directory = candidate.log_dir or candidate.save_dir
            if directory:
                return Path(directory, "trainobs").absolute()
    return default_run_dir(Path(trainer.default_root_dir), trainer.world_size)


def _callback_bases() -> tuple[type, ...]:
    """`Callback` of each Lightning namespace in use; of an installed one if none is loaded."""
    loaded = [name for name in _NAMESPACES if name in sys.modules]
    if not loaded:
        loaded = [n for n in _NAMESPACES if importlib.util.find_spec(n.partition(".")[0])][:1]
    if not loaded:
        raise ImportError(
            "cannot make an ObsCallback\n  found: neither lightning nor pytorch-lightning\n"
            "  do:    pip install lightning, or observe a plain loop with trainobs.observe"
        )
    return tuple(importlib.import_module(name).Callback for name in loaded)


def _as_callback(cls: type[ObsCallback]) -> type[ObsCallback]:
    """`cls` with the bases that it lacks; one class for each such pair, so that types compare."""
    bases = tuple(base for base in _callback_bases() if not issubclass(cls, base))
    if not bases:
        return cls
    if (cls, bases) not in _combined:
        namespace = {"__module__": cls.__module__, "_plain": cls}
        _combined[cls, bases] = type(cls.__name__, (cls, *bases), namespace)
    return _combined[cls, bases]


_combined: dict[tuple[type, tuple[type, ...]], type[ObsCallback]] = {}


def _plain_class(cls: type) -> type:
    return getattr(cls, "_plain", cls)


def _restore(cls: type[ObsCallback]) -> ObsCallback:
    return cls.__new__(cls)
