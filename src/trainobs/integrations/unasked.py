"""The callback that `integrations.auto` puts on every Trainer; see there for what it may do."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from trainobs.core.errors import TrainobsError
from trainobs.core.log import logger
from trainobs.core.text import in_a_file_name
from trainobs.integrations.lightning import ObsCallback
from trainobs.integrations.profiler_tee import ProfilerTee
from trainobs.integrations.user_warnings import warn_once
from trainobs.session.settings import Settings, is_remote

PLACE = "TRAINOBS_DIR"
"""Environment variable: the directory for such runs; by default in the user's state directory."""


class UnaskedCallback(ObsCallback):
    """An `ObsCallback` that gives way to the user's own, and never raises.

    Its record, TensorBoard's included, goes to a directory of its own: the files of a training are
    what they are without it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._settings = replace(Settings.parse(), unasked=True)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Start to observe, unless the user does already, or nothing can be kept."""
        try:
            if stage == "fit" and not _is_observed(trainer, self) and auto_run_dir(1):
                super().setup(trainer, pl_module, stage)
        except TrainobsError as error:  # a bad value of TRAINOBS
            logger.warning("trainobs does not observe this Trainer: %s", error)

    def _place(self, trainer: Any) -> tuple[Path, None]:
        run_dir = auto_run_dir(trainer.world_size)
        assert run_dir is not None, "setup comes first"
        return run_dir, None


def _is_observed(trainer: Any, by: ObsCallback) -> bool:
    """Whether another callback observes it: one of the user's, or of another installation."""
    others = [c for c in trainer.callbacks if isinstance(c, ObsCallback) and c is not by]
    of_user = any(not isinstance(other, UnaskedCallback) for other in others)
    return of_user or type(trainer.profiler) is ProfilerTee


def auto_run_dir(world_size: int) -> Path | None:
    """Where the run of a Trainer goes that nobody gave a place; None if nothing can be written.

    The ranks of a job need one name without talking: that of the address where they meet.
    """
    base = os.environ.get(PLACE) or os.path.join(_state_home(), "trainobs")
    try:
        if is_remote(base):
            raise OSError(f"{base} is no directory of this machine")
        Path(base).mkdir(parents=True, exist_ok=True)
        if not os.access(base, os.W_OK | os.X_OK):
            raise PermissionError(f"{base} is not writable")
    except OSError as error:
        failed = "trainobs does not observe the Trainers of this process, as TRAINOBS_AUTO asks"
        do = f"name a directory that can be written in {PLACE}, or unset TRAINOBS_AUTO"
        warn_once(failed, str(error), do, kind=str(error))
        return None
    return Path(base, _run_name(world_size)).absolute()


def _state_home() -> str:
    """Source: the XDG base directory specification."""
    return os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")


def _run_name(world_size: int) -> str:
    if world_size == 1:
        host = in_a_file_name(socket.gethostname())
        return f"{time.strftime('%Y-%m-%d_%H-%M-%S')}_{host}_{os.getpid()}"
    meeting = (os.environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT"))
    return "job_" + "_".join("".join(c if c.isalnum() else "-" for c in part) for part in meeting)
