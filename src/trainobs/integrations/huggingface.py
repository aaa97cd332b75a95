"""`ObsTrainerCallback`: observing a `Trainer` of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from trainobs.core.abi import Phase
from trainobs.core.errors import MissingPackageError, TrainobsError
from trainobs.core.log import logger
from trainobs.core.switch import switched_off
from trainobs.hooks.cuda import Cuda
from trainobs.hooks.datasets import data_roots_of, workers_of
from trainobs.hooks.distributed import TorchJob
from trainobs.hooks.watch import LoaderWatch
from trainobs.integrations.board import SummaryWriterEvents
from trainobs.integrations.guard import ObservingCallback, harmless, tell_unrecorded
from trainobs.integrations.models import watch_lookups
from trainobs.integrations.phase_scopes import PhaseScopes
from trainobs.integrations.trainer_taps import TrainerTaps, calling_trainer, is_tapped
from trainobs.session.runs import default_run_dir, open_session
from trainobs.session.session import Session
from trainobs.session.settings import LOG_EVERY_N_STEPS

try:
    from transformers.trainer_callback import TrainerCallback
except ImportError as error:
    raise MissingPackageError.for_extra("ObsTrainerCallback", "huggingface", error) from error

_OF_A_RUN = frozenset(
    {"run_dir", "_session", "_phases", "_taps", "_watch", "_epoch", "_optimizing", "_trains"}
)
"""Attributes that copies go without."""


class ObsTrainerCallback(ObservingCallback, TrainerCallback):  # type: ignore[misc]  # untyped here
    """Observes `Trainer.train`: `Trainer(callbacks=[ObsTrainerCallback()])`.

    The record goes to a run log (Parquet) and to TensorBoard: through the writer of the Trainer's
    TensorBoard callback where there is one, else into the run directory. A step is an update step,
    and has the number that the Trainer logs it with: the first is 1. `evaluate` and `predict`
    outside of `train` are left alone.

    Args:
        probes: "auto" for all that this machine offers, "off" for timing only, or a list: names of
            probes that must work, and each `Probe` of your own.
        data_roots: directories and files that hold training data. By default they are found from
            the data sets, and what loaders read from regular files that are no libraries counts as
            data: their workers, or the training thread where it waits for a batch.
        run_dir: where the run log goes; by default `trainobs/` under TensorBoard's directory, or
            `trainobs/<date and time>` under the Trainer's output directory; in a job of several
            ranks `trainobs/run` there. If that is pushed to the Hub, under the current directory: a
            run log names the machine. If a run is there already, a directory beside it.
        log_every_n_steps: steps between two points in TensorBoard, once each of the first 200 steps
            has one; by default the Trainer's `logging_steps`, or 50 where it does not log by steps.
        embedding_every: lookups of embedding rows are counted in every step; their ids are taken,
            for what needs them, in every so many: "auto" for about 1 step in 17, 1 for all, "off"
            to count nothing.
        tensorboard: "default" for the 40 curves, at most, that tell most; "all" for every metric
            that has a value, and for the embedding tables that are read most.
        io: whether to count what is read and written of each file, for `trainobs report --io`.
        quiet: nothing on standard error at the end, where rank 0 prints the verdict, the run
            directory and the commands for more; no warning where less than eBPF is observed, and no
            word of what is not recorded, such as `evaluate`. Other warnings stay: they are of the
            logger "trainobs".

    Attributes:
        run_dir: directory of the last run log; None before the first `train`.

    Raises:
        SettingError: a parameter has a bad value; at the beginning of `train`, a variable of the
            environment has, or the `run_dir` given cannot be written.
        ProbeError: at the beginning of `train`, a probe that `probes` names cannot run.

    Notes:
        * Accelerate moves a batch to the device inside the fetch, and fetches one batch ahead: a
            step waits for the batch of the next one.
        * A training step of one's own that does not call `compute_loss` or `accelerator.backward`
          leaves `phase/forward_ns` or `phase/backward_ns` unknown.
    """

    _taps: TrainerTaps | None = None
    _epoch: int | None = None
    _optimizing = False
    _trains = False

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles hold the settings and what a subclass adds, never a run."""
        return {name: value for name, value in vars(self).items() if name not in _OF_A_RUN}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start to observe."""
        self._trains = True
        self._end("not ended")  # by an exception that nothing of ours saw
        if switched_off():
            return
        trainer = calling_trainer(state)
        if trainer is not None and is_tapped(trainer):
            logger.warning(
                "a second ObsTrainerCallback in one Trainer stays idle\n"
                "  found: the Trainer is observed already\n  do:    give it one ObsTrainerCallback"
            )
            return
        try:
            self._start(args, state, trainer, kwargs.get("train_dataloader"), kwargs.get("model"))
        except TrainobsError:
            raise
        except Exception:
            self._give_up("does not observe this run")

    @harmless
    def on_epoch_begin(self, session: Session, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """The Trainer's own number of the epoch is a fraction, rounded."""
        self._epoch = int(state.epoch or 0) if self._epoch is None else self._epoch + 1
        session.clock.read_for(self._epoch)

    @harmless
    def on_step_begin(self, session: Session, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """All batches of the step are there."""
        session.clock.begin_batch(state.global_step + 1, self._epoch)

    @harmless
    def on_pre_optimizer_step(self, session: Session, *_: Any, **__: Any) -> None:
        """Gradients are there, and clipped."""
        session.clock.measured.add(Phase.OPTIMIZER.value)
        session.clock.enter(Phase.OPTIMIZER.value)
        self._optimizing = True

    @harmless
    def on_optimizer_step(self, session: Session, *_: Any, **__: Any) -> None:
        """The optimizer has stepped."""
        if self._optimizing:
            self._optimizing = False
            session.clock.leave()

    @harmless
    def on_step_end(self, session: Session, *_: Any, **__: Any) -> None:
        """What follows (logging, evaluation, a checkpoint) belongs to the step as well."""
        session.clock.end_step()

    @harmless
    def on_epoch_end(self, session: Session, *_: Any, **__: Any) -> None:
        """A fetch that found the loader exhausted began no step."""
        session.clock.cancel()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Outside of `train`, nobody observes."""
        self._tell_unrecorded(args, "`evaluate`")

    def on_predict(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Likewise."""
        self._tell_unrecorded(args, "`predict`")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop observing, if no tap did so before TensorBoard's writer was closed."""
        self._trains = False
        self._end("ok")

    def _tell_unrecorded(self, args: Any, what: str) -> None:
        if not self._trains and args.process_index == 0 and not switched_off():
            tell_unrecorded(what, "only `train` is observed", self._settings)

    def _start(
        self, args: Any, state: Any, trainer: Any | None, loader: Any, model: Any | None
    ) -> None:
        board = _tensorboard_writer(trainer)
        writer = SummaryWriterEvents(board) if board and args.process_index == 0 else None
        by_steps = args.logging_strategy == "steps"
        self._epoch, self._optimizing = None, False
        self._session, self.run_dir = open_session(
            self._settings,
            self._settings.run_dir or _default_run_dir(args, board),
            writer=writer,
            curves=writer.log_dir if writer else None,
            log_every_n_steps=self._settings.log_every_n_steps
            or (max(1, int(state.logging_steps)) if by_steps else LOG_EVERY_N_STEPS),
            first_step=1,
            rank=args.process_index,
            world_size=args.world_size,
            accelerator=Cuda(),
            job=TorchJob(),
        )
        self._phases = PhaseScopes(self._session.clock, self._fault)
        # Accelerate fetches one batch ahead: the taps say which batch a step gets, not the fetch.
        self._watch = LoaderWatch(
            self._session.clock,
            self._session.ledger,
            self._session.info,
            on_fault=self._fault,
        )
        self._session.note_workers(workers_of(loader))
        if self._settings.data_roots is None:
            self._session.add_data_roots(data_roots_of(loader))
        watch_lookups(self._session, model, self._settings)
        if trainer is not None:
            self._taps = TrainerTaps(
                trainer,
                self._watch,
                later=_after(self, trainer.callback_handler.callbacks),
                on_end=self._end,
                on_fault=self._fault,
            )

    def _let_go(self) -> None:
        taps, self._taps = self._taps, None
        if taps is not None:
            taps.remove()


def _after(one: object, callbacks: Sequence[object]) -> Iterator[object]:
    """What comes after `one`; nothing if a callback of somebody else's calls it."""
    places = (place for place, callback in enumerate(callbacks, 1) if callback is one)
    return islice(callbacks, next(places, len(callbacks)), None)


def _tensorboard_writer(trainer: Any | None) -> Any | None:
    """The writer of the Trainer's TensorBoard callback, where that was called before us."""
    for callback in trainer.callback_handler.callbacks if trainer is not None else ():
        if any(base.__name__ == "TensorBoardCallback" for base in type(callback).__mro__):
            writer = getattr(callback, "tb_writer", None)
            if hasattr(writer, "_get_file_writer"):
                return writer
    return None


def _default_run_dir(args: Any, board: Any | None) -> Path:
    """Not below what is pushed to the Hub; with several ranks, where they need not agree."""
    if args.push_to_hub:
        return default_run_dir(Path(), args.world_size)
    if board is not None and args.world_size == 1:
        return Path(board.log_dir, "trainobs").absolute()
    return default_run_dir(Path(args.output_dir), args.world_size)
