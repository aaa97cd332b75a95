"""Files that programs of the user's name, as a process that is observed from outside has them."""

from __future__ import annotations

import os
from pathlib import Path

from trainobs.attach.process import Target, mapped_at, mappings
from trainobs.attach.roots import inside
from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.host.procfs import PROC


def file_of(process: Target, name: str) -> str:
    """Where this process finds a file of another one, which may be in a container.

    Args:
        process: the other one.
        name: a path as that one names it; or the name of a library or program that it has mapped,
            also without the end of its version: `libc.so.6`, `libstdc++.so`.

    Raises:
        ProbeError: it has mapped no such file. A file of that name elsewhere is not the one whose
            code it runs.
        OSError: the process has ended.
    """
    place = f"{PROC}/{process.tgid}"
    for address, path in mappings(place):
        base = os.path.basename(path)
        if name in (path, base) or base.startswith(f"{name}."):
            return mapped_at(place, address, path).file
    if "/" in name:
        return str(inside(process, Path(name)))
    raise ProbeError(
        ProbeCause.REFUSED,
        f"cannot find {name}",
        f"process {process.tgid} has mapped no file of that name",
        "give its path, as that process names it, or attach when it is mapped",
    )
