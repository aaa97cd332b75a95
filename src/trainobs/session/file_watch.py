"""What was read and written of each file, taken from the kernel side as epochs end."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from trainobs.core.coverage import CALLS, Coverage
from trainobs.core.file_rows import CACHE_ROW, NOTHING, IoRows
from trainobs.core.log import logger
from trainobs.core.now import now_s
from trainobs.core.records import RunInfo
from trainobs.host.page_cache import DataSetCache

if TYPE_CHECKING:
    from trainobs.probes.backend import ProbeBackend

FILES = "files"
"""Name of this part among the capabilities of a run; not there in a run that was not to have it."""

REST_S = 1.0
"""How long an epoch is over before it is taken: a call that began in it may end later."""


class FileWatch:
    """Asks the kernel side for the epochs that are over, and what is in memory of their data."""

    def __init__(self) -> None:
        self._roots: list[Path] = []
        self._cache: DataSetCache | None = None
        self._backend: ProbeBackend | None = None
        self._looks: list[tuple[int, ...]] = []
        self._epoch = self._before = 0
        self._since_s: float | None = None

    def attach(self, backend: ProbeBackend | None, why_not: str, info: RunInfo) -> None:
        """Begin, where the kernel side counts files; else say why it does not."""
        if backend is None:
            state = why_not
            logger.warning("cannot count what is read of each file: %s", why_not)
        elif backend.files is not None:
            self._backend, state = backend, "on"
        else:
            calls = Coverage(backend.status).knows(CALLS)
            state = _SERVED if calls else _NO_CALLS
            logger.warning(
                "cannot count what is read of each file; the rest is observed\n  found: %s\n"
                "  do:    %s; see `trainobs doctor`",
                state,
                _RIGHTS if calls else 'leave `probes` at "auto", or have "syscalls" among them',
            )
        info.capabilities = {**info.capabilities, FILES: state}

    def add_roots(self, roots: Iterable[Path]) -> None:
        """Training data lies there, too."""
        self._roots += roots

    def tick(self) -> None:
        """Notice that an epoch is over; for the observer's thread, which does not follow itself."""
        if self._backend is None:
            return
        epoch = int(self._backend.clock[EPOCH])
        if epoch > self._epoch:
            self._look(epoch - 1)
            self._epoch = epoch
        if self._since_s is None and epoch > self._before:
            self._before, self._since_s = epoch, now_s()

    def take(self, is_last: bool = False) -> IoRows:
        """What epochs that are over did, each told once; for the observer's thread.

        Raises:
            OSError: the kernel does not tell.
        """
        if self._backend is None or self._backend.files is None:
            return NOTHING
        if is_last:
            self._look(int(self._backend.clock[EPOCH]))
            return self._with_looks(self._backend.files.take())
        if self._since_s is None or now_s() - self._since_s < REST_S:
            return NOTHING
        counted = self._with_looks(self._backend.files.take(self._before))
        self._since_s = None
        return counted

    def release(self) -> None:
        """The run is over; sinks may keep this."""
        self._backend = None

    def _look(self, epoch: int) -> None:
        """Roots that come up later are not among the files that are asked about."""
        if self._cache is None and self._roots:
            self._cache = DataSetCache(self._roots)
        with suppress(OSError):  # a file system that fails
            if self._cache and (content := self._cache.look()):
                self._looks.append((epoch, *content))

    def _with_looks(self, counted: IoRows) -> IoRows:
        looks, self._looks = self._looks, []
        return counted._replace(cache=np.array(looks, CACHE_ROW))


EPOCH = 1
"""Word of the clock that says which epoch files are read for."""

_SERVED = "the service of this machine counts no files, and this process may load no programs"
_NO_CALLS = "system calls are not observed, by which files are counted"
_RIGHTS = "run as root, or with CAP_BPF and CAP_PERFMON"
