"""A ready object, first loaded by a process of its own.

libbpf trusts what is in an object, and a damaged one, such as half a file, ends the process that
reads it (libbpf issue 823; kernel-patches/bpf pull request 8185, mended in libbpf 1.6).
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.core.interpreter import fresh_python
from trainobs.probes.extra import ExtraObject

_TIMEOUT_S = 60.0

_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)

_DAMAGED = "compile it again: it is damaged; or give the source"


def try_object(parts: Sequence[Path], name: str) -> None:
    """Load an object with maps of its own, in another process; what else is wrong is told later.

    Raises:
        ProbeError: REFUSED: that process crashed, did not end, or could not try it.
        OSError: there can be no process.
    """
    try:
        done = subprocess.run(
            fresh_python("from trainobs.probes.trial import main; main()", *map(str, parts)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        found = f"libbpf was not done with it after {_TIMEOUT_S:.0f} s"
        raise _refused(name, found, _DAMAGED) from error
    if -done.returncode in _CRASHES:
        found = f"libbpf crashes on it: {signal.Signals(-done.returncode).name}"
        raise _refused(name, found, _DAMAGED)
    if done.returncode:
        *_, last = ["", *done.stderr.decode(errors="replace").splitlines()]
        found = f"the process that was to try it ended with status {done.returncode}: {last}"
        raise _refused(name, found, "see that there is memory for another interpreter")


def _refused(name: str, found: str, do: str) -> ProbeError:
    return ProbeError(ProbeCause.REFUSED, f"cannot use {name}", found, do)


def main() -> None:
    """In that process."""
    with suppress(ProbeError):
        ExtraObject(list(map(Path, sys.argv[1:])), {}, "").close()
