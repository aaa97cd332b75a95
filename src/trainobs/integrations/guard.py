"""What callbacks share, and what keeps a fault of our own from reaching the training."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from trainobs.core.errors import REPORT, what_to_do
from trainobs.core.log import logger
from trainobs.core.once import Once
from trainobs.core.signals import let_signals_through
from trainobs.hooks.watch import LoaderWatch
from trainobs.integrations.phase_scopes import PhaseScopes
from trainobs.session.ending import tell
from trainobs.session.session import Session
from trainobs.session.settings import PathLike, Probes, Settings

FAULT = "fault in a hook"
"""Outcome of a run that one of our own faults has ended."""


def harmless(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook of a callback that does nothing without a session, and whose fault disarms it.

    The hook of an `ObservingCallback` gets the session as its first argument.
    """

    @functools.wraps(hook)
    def guarded(self: ObservingCallback, *args: Any, **kwargs: Any) -> None:
        session = self._session
        if session is None:
            return
        try:
            hook(self, session, *args, **kwargs)
        except Exception:
            self._give_up("stops observing this run")

    del guarded.__wrapped__  # it takes one argument more
    return guarded


class ObservingCallback:
    """A framework's callback with settings, and one run at a time.

    Attributes:
        run_dir: directory of the last run log; None before the first run.
    """

    run_dir: Path | None = None
    _session: Session | None = None
    _phases: PhaseScopes | None = None
    _watch: LoaderWatch | None = None

    def __init__(
        self,
        *,
        probes: Probes = "auto",
        data_roots: PathLike | Iterable[PathLike] | None = None,
        run_dir: PathLike | None = None,
        log_every_n_steps: int | None = None,
        embedding_every: int | str = "auto",
        tensorboard: str = "default",
        io: bool = False,
        quiet: bool = False,
    ) -> None:
        super().__init__()
        self._fit_in()
        self._settings = Settings.parse(
            probes, data_roots, run_dir, log_every_n_steps, embedding_every, tensorboard, io, quiet
        )

    def _fit_in(self) -> None:
        """Become a callback that the framework takes, if this is none yet."""

    @harmless
    def _end(self, session: Session, outcome: str) -> None:
        self._stop(outcome)

    def _fault(self) -> None:
        """A mark or a loader's hook has failed, and is being handled: the training goes on."""
        if self._session is not None:
            self._give_up("stops observing this run")

    def _give_up(self, what: str) -> None:
        tell_fault(what)
        try:
            self._stop(FAULT)
        except Exception:  # what fails again was told of
            let_signals_through()

    def _stop(self, outcome: str) -> None:
        session, self._session = self._session, None
        watch, self._watch = self._watch, None
        phases, self._phases = self._phases, None
        if watch is not None:
            watch.close()
        if phases is not None:
            phases.close()
        self._let_go()
        if session is not None:
            session.stop(outcome)

    def _let_go(self) -> None:
        """Leave the framework's objects as they were."""
        raise NotImplementedError


def tell_unrecorded(what: str, why: str, settings: Settings) -> None:
    """Say once, on one line, of what nothing is recorded."""
    if not settings.quiet and not settings.unasked and _once.first(what):
        tell(f"nothing is recorded of {what}: {why}")


_once = Once()


def tell_fault(what: str) -> None:
    """Say what trainobs does because of the exception that is being handled."""
    let_signals_through()
    error = sys.exc_info()[1]
    do = what_to_do(error)
    ours = do == REPORT
    found = "the fault below" if ours else f"{type(error).__name__}: {error}"
    logger.warning(
        "trainobs %s; the training goes on\n  found: %s\n  do:    %s",
        what,
        found,
        do,
        exc_info=ours,
    )
