"""Which kernel side a process gets: the service's, or one of its own."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.probes.backend import ProbeBackend
from trainobs.probes.local_backend import LocalBackend
from trainobs.probes.obstacles import may_load
from trainobs.probes.own_programs import OwnProbe
from trainobs.probes.programs import PROBES
from trainobs.probes.protocol import socket_path
from trainobs.probes.service_backend import ServiceBackend

_PROC = "/proc/self"


def open_backend(
    probes: Collection[str] = tuple(PROBES),
    *,
    required: bool = False,
    tid: int | None = None,
    own: Sequence[OwnProbe] = (),
    counts_files: bool = False,
) -> ProbeBackend:
    """The service first, since one set of programs a node costs less than one a process.

    But programs of the user's are loaded by this process alone, beside a set of its own, and files
    are counted by such a set only.

    Args:
        probes: names of probes.
        required: whether each of them must work.
        tid: the training thread; None: the calling one.
        own: programs of the user's.
        counts_files: whether each file is to be counted, if this process may have that.

    Raises:
        ProbeError: neither serves, or there is no `/proc`; it has what the service said,
            if there is one.
    """
    if not os.path.exists(_PROC):  # our thread could not be told from the training's
        raise ProbeError(
            ProbeCause.NO_PERMISSION,
            "cannot tell the threads of this process apart",
            f"no {_PROC}",
            "mount /proc where the training runs",
        )
    alone = (own or counts_files) and may_load()
    backend = _open(probes, required, tid, serves=not alone, counts_files=counts_files)
    if own:
        backend.load_own(own)
    return backend


def _open(
    probes: Collection[str], required: bool, tid: int | None, *, serves: bool, counts_files: bool
) -> ProbeBackend:
    path = socket_path() if serves else None
    if path is None or not os.path.exists(path):  # nor may the way there be closed to us
        return LocalBackend(probes, required=required, counts_files=counts_files)
    try:
        return ServiceBackend(path, probes, required=required, tid=tid)
    except ProbeError as error:  # not kept, since it would keep all that its frames know
        found, do = error.found, error.do
    try:
        return LocalBackend(probes, required=required, counts_files=counts_files)
    except ProbeError as error:
        raise ProbeError(error.cause, error.failed, f"{error.found}; and {found}", do) from error
