"""A ready object, first loaded by a process of its own: `python -m trainobs.probes.trial FILE ...`.

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
from trainobs.probes.extra import ExtraObject

_TIMEOUT_S = 60.0


def try_object(parts: Sequence[Path], name: str) -> None:
    """Load an object with maps of its own, in another process; what else is wrong is told later.

    Raises:
        ProbeError: REFUSED: that process was killed by it, or did not end.
        OSError: there can be no process.
    """
    command = [sys.executable, "-m", __name__, *map(str, parts)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _refused(name, f"libbpf was not done with it after {_TIMEOUT_S:.0f} s") from error
    if done.returncode < 0:
        raise _refused(name, f"libbpf crashes on it: {signal.Signals(-done.returncode).name}")


def _refused(name: str, found: str) -> ProbeError:
    do = "compile it again: it is damaged; or give the source"
    return ProbeError(ProbeCause.REFUSED, f"cannot use {name}", found, do)


if __name__ == "__main__":
    with suppress(ProbeError):
        ExtraObject(list(map(Path, sys.argv[1:])), {}, "").close()
