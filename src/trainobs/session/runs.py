"""A session with the sinks that every entry point has: the run log, and TensorBoard on rank 0."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from trainobs.session.accelerator import Accelerator
from trainobs.session.session import Session
from trainobs.session.settings import Settings
from trainobs.sinks.files import claim, give_back, next_free
from trainobs.sinks.runlog import RunLogSink
from trainobs.sinks.sink import Sink
from trainobs.sinks.tensorboard import EventFile, EventWriter, TensorBoardSink


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
    log_every_n_steps: int,
    rank: int = 0,
    world_size: int = 1,
    accelerator: Accelerator | None = None,
) -> tuple[Session, Path]:
    """Start to observe the calling process.

    Args:
        settings: what the user chose.
        run_dir: where the run log goes; if a run is there already, a directory beside it.
        writer: where TensorBoard events go; None: into `tensorboard/` of the run directory.
        log_every_n_steps: steps between two points in TensorBoard.
        rank: this process in the job.
        world_size: processes in the job.
        accelerator: the torch side of the GPU; None for none.

    Returns:
        The session, and the run directory in use.
    """
    run_dir, claimed = _place(run_dir, rank)
    sinks: list[Sink] = [RunLogSink(run_dir, rank, claimed=claimed)]
    if rank == 0:
        writer = writer or EventFile(run_dir / "tensorboard")
        sinks.append(TensorBoardSink(writer, log_every_n_steps))
    try:
        session = Session(
            settings, sinks, rank=rank, world_size=world_size, accelerator=accelerator
        )
        return session, run_dir
    except BaseException:
        if claimed:
            give_back(run_dir, rank)
        raise


def _place(run_dir: Path, rank: int) -> tuple[Path, bool]:
    """The directory for the run, and whether it is claimed: not before its disk lets us.

    Here, and not when the run log begins in the observer's thread: a job that begins at the same
    moment would choose the same one meanwhile, and TensorBoard's events have to go there as well.
    """
    with suppress(OSError):
        return claim(run_dir, rank), True
    with suppress(OSError):  # the run log will meet the same, tell of it and try again
        return next_free(run_dir, rank), False
    return run_dir, False
