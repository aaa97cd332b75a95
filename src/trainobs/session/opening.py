"""Opening the kernel side where no signal handler can raise in the middle of it.

What was loaded just before Ctrl-C would stay in the kernel until the process ends: nobody had it
yet. Signal handlers run in the main thread alone, so another thread loads, and takes out again what
the main one does not say that it keeps.
"""

from __future__ import annotations

import threading

from trainobs.core.errors import ProbeError
from trainobs.probes.backend import ProbeBackend
from trainobs.probes.choice import open_backend
from trainobs.session.settings import Settings


class Opening:
    """The kernel side of a session, from the first moment on; ended by `keep` or `undo`.

    Args:
        settings: which probes, and whether they must work.
        removing: held by whoever stops the kernel side.
    """

    def __init__(self, settings: Settings, removing: threading.Lock) -> None:
        self._settings = settings
        self._removing = removing
        self._tid = threading.get_native_id()
        self._backend: ProbeBackend | None = None
        self._why_not = ""
        self._error: BaseException | None = None
        self._opened, self._decided = threading.Event(), threading.Event()
        self._kept = False
        self._thread = threading.Thread(target=self._run, name="trainobs", daemon=True)

    def backend(self) -> tuple[ProbeBackend | None, str]:
        """The kernel side, or None and why there is none.

        Raises:
            ProbeError: a probe that was asked for by name cannot run.
        """
        if not self._settings.probes:
            return None, "switched off"
        try:
            self._thread.start()
        except RuntimeError:  # no more threads
            self._open()
        else:
            self._opened.wait()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # it knows this frame
        return self._backend, self._why_not

    def keep(self) -> None:
        """The session has it, and will stop it."""
        self._kept = True
        self._decide()

    def undo(self) -> None:
        """Take it out of the kernel, also while it is being opened. May be called twice."""
        self._decide()

    def _decide(self) -> None:
        self._decided.set()
        if self._thread.ident is None:
            self._close()
        else:
            self._thread.join()

    def _run(self) -> None:
        self._open()
        self._opened.set()
        self._decided.wait()
        self._close()

    def _open(self) -> None:
        try:
            self._backend = open_backend(
                self._settings.probes,
                required=self._settings.required,
                tid=self._tid,
                own=self._settings.own,
                counts_files=self._settings.io,
            )
        except ProbeError as error:
            self._why_not = str(error)
            if self._settings.required:
                self._error = error
        except BaseException as error:
            self._error = error

    def _close(self) -> None:
        backend, self._backend = self._backend, None
        if backend is not None and not self._kept:
            with self._removing:
                backend.stop()
