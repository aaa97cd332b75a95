"""A session with the sinks that every entry point has: the run log, and TensorBoard on rank 0."""

from __future__ import annotations

import errno
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, Protocol

from trainobs.core.errors import MissingPackageError, SettingError
from trainobs.core.log import logger
from trainobs.core.sink import Sink
from trainobs.runlog.arrivals import ArrivalsSink, Row
from trainobs.runlog.counts import SavedCounts
from trainobs.runlog.directory import (
    BESIDE,
    JOB,
    claim,
    give_back,
    next_free,
    refuse_foreign,
    try_to_write,
)
from trainobs.runlog.io import IoSink
from trainobs.runlog.writer import RunLogSink
from trainobs.session.accelerator import Accelerator
from trainobs.session.ending import tell_end, tell_place
from trainobs.session.exchange import Exchange, Store
from trainobs.session.file_watch import FileWatch
from trainobs.session.lookups import LookupWatch
from trainobs.session.session import Session
from trainobs.session.settings import Settings
from trainobs.session.sink_router import SinkRouter, process_is_wanted
from trainobs.session.writer_proxies import EventReceiver, Source
from trainobs.tensorboard.layout import LayoutWriter
from trainobs.tensorboard.rank_spread import RanksSink
from trainobs.tensorboard.sink import EventFile, EventWriter, TensorBoardSink, tell_nobody

_NEVER = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Why a directory cannot be written, now or later."""


class Job(Protocol):
    """What is asked of the job that this process is a rank of."""

    def name(self) -> str:
        """What tells it from others that write to the same place; "" where nothing does."""

    def waits_on_host(self) -> bool:
        """Whether the training thread sleeps while it waits in a collective."""

    def store(self, prefix: str) -> Store | None:
        """Its key-value store; None while there is none."""

    def arrivals(self, at_once: bool = False) -> Sequence[Row]:
        """Collectives that this rank came to since the last call, if it is time to look again."""


def default_run_dir(base: Path, world_size: int) -> Path:
    """Where a run goes that nobody gave a place: a dated directory under `base`.

    The ranks of a job need one name, and do not look at the clock at the same time.
    """
    name = time.strftime("%Y-%m-%d_%H-%M-%S") if world_size == 1 else "run"
    return Path(base, "trainobs", name).absolute()


def open_session(
    settings: Settings,
    run_dir: Path,
    *,
    writer: EventWriter | None = None,
    curves: str | None = None,
    log_every_n_steps: int,
    first_step: int = 0,
    rank: int = 0,
    world_size: int = 1,
    accelerator: Accelerator | None = None,
    job: Job | None = None,
) -> tuple[Session, Path]:
    """Start to observe the calling process.

    Args:
        settings: what the user chose.
        run_dir: where the run log goes; if a run is there already, a directory beside it.
        writer: where TensorBoard events go; None: into `tensorboard/` of the run directory.
        curves: the directory that `writer` writes to, which is told at the end.
        log_every_n_steps: steps between two points in TensorBoard, after the first.
        first_step: number that the framework gives the first step of a training.
        rank: this process in the job.
        world_size: processes in the job.
        accelerator: the torch side of the GPU; None for none.
        job: the other ranks, for a job of several.

    Returns:
        The session, and the run directory in use.

    Raises:
        SettingError: the directory cannot be written, and is one that a user named.
        ProbeError: a probe that was asked for by name cannot run.
        MissingPackageError: one that the first flush will import is not there.
    """
    _look_for_packages()
    others = job if world_size > 1 else None
    this = _Rank(rank, world_size, others, others.name() if others else "")
    points = _Points(log_every_n_steps, first_step, settings.tensorboard == "all")
    tells = rank == 0 and not settings.quiet and not settings.unasked
    with ExitStack() as undo:
        run_dir, place, claimed = _place(run_dir, this, settings.run_dir is not None, undo)
        # Absolute, since a writer process has another working directory.
        home, asked = place.absolute(), run_dir.absolute()
        lookups = LookupWatch(home)
        files = FileWatch() if settings.io and settings.probes else None
        events = EventReceiver(writer) if writer else None
        sources = _sources(files, others)
        sinks = [RunLogSink(home, rank, claimed=claimed), *_asking(home, this, sources, points)]
        if rank == 0:
            board = LayoutWriter(events or EventFile(home / "tensorboard"))
            told = partial(tell_end, home, asked, curves or str(home))
            at_end = told if tells else tell_nobody
            counts = SavedCounts(home, rank) if process_is_wanted() else lookups.counts
            sinks.append(TensorBoardSink(board, *points, counts, at_end))
        # From its beginning, for a run that is killed.
        noted = {JOB: this.job_name} if this.job_name else {}
        noted |= {BESIDE: run_dir.name} if place != run_dir else {}
        session = Session(
            settings,
            SinkRouter(sinks, sources, events),
            rank=rank,
            world_size=world_size,
            noted=noted,
            accelerator=accelerator,
            lookups=lookups,
            files=files,
            waits_on_host=others.waits_on_host if others else lambda: False,
        )
        undo.callback(session.stop, "not begun")
        if place != run_dir and tells:
            tell_place(place, run_dir)
        undo.pop_all()
    return session, place


def _look_for_packages() -> None:
    for name in ("pyarrow", "tensorboard"):
        if find_spec(name) is None:
            raise MissingPackageError(
                "A run cannot be recorded here.", f"no package {name}", f"pip install {name}"
            )


class _Points(NamedTuple):
    """Which points TensorBoard gets: see `TensorBoardSink`."""

    every: int
    first_step: int
    has_all: bool


class _Rank(NamedTuple):
    """This process among the ranks of its job, which is None for a single one."""

    rank: int
    world_size: int
    job: Job | None
    job_name: str


def _sources(files: FileWatch | None, job: Job | None) -> dict[str, Source]:
    """What sinks ask of this process, by name."""
    files_of = {"files": Source(files.take)} if files else {}
    return files_of | ({"arrivals": Source(job.arrivals)} if job else {})


def _asking(
    home: Path, this: _Rank, sources: Mapping[str, Source], points: _Points
) -> Iterator[Sink]:
    """The sinks that ask this process, or other ranks."""
    if "files" in sources:
        yield IoSink(home, this.rank, sources["files"])
    if this.job:
        yield ArrivalsSink(home, this.rank, sources["arrivals"])
        yield RanksSink(
            Exchange(this.job.store, this.rank, this.world_size),
            world_size=this.world_size,
            every=points.every,
            first_step=points.first_step,
            logs=this.rank == 0,
            every_tag=points.has_all,
        )


def _place(run_dir: Path, this: _Rank, refuses: bool, undo: ExitStack) -> tuple[Path, Path, bool]:
    """Where the run was to go, the directory for it, and whether that is claimed.

    Not before its disk lets us. Here, and not when the run log begins in the observer's thread: a
    job that begins at the same moment would choose the same one meanwhile, and TensorBoard's
    events have to go there as well.
    """
    rank, name = this.rank, this.job_name
    try:
        if refuses:
            refuse_foreign(run_dir)
        place = claim(run_dir, rank, name)
        undo.callback(give_back, place, rank)
        if refuses:
            try_to_write(place, rank)
        return run_dir, place, True
    except OSError as error:
        if refuses:
            raise SettingError(
                "The run directory cannot be written.",
                str(error),
                "give a `run_dir` of your own that can be written, with room on its disk",
            ) from error
        if this.world_size == 1 and error.errno in _NEVER:  # ranks would not find each other's
            with suppress(OSError):
                place = claim(Path(tempfile.mkdtemp(prefix="trainobs-"), run_dir.name), rank)
                undo.callback(give_back, place, rank)
                logger.warning(
                    "The run goes to %s\n  found: %s\n"
                    "  do:    give a `run_dir` that can be written",
                    place,
                    error,
                )
                return place, place, True
    with suppress(OSError):  # the run log will meet the same, tell of it and try again
        return run_dir, next_free(run_dir, rank, name), False
    return run_dir, run_dir, False
