"""Where a process that is observed from outside has its code and its data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from trainobs.attach.process import Target
from trainobs.core.errors import SettingError
from trainobs.host.procfs import PROC
from trainobs.session.settings import SYSTEM, SYSTEM_PREFIXES


def library_roots_of(process: Target) -> list[Path]:
    """Directories with its Python, its packages and its system files, as this process calls them.

    From what is running there, not from the Python that runs this: it may be another one.
    """
    paths = [Path(path) for path in SYSTEM]
    with suppress(OSError, IndexError):  # it has ended, or has a strange name
        paths.append(Path(os.readlink(PROC / str(process.tgid) / "exe")).parents[1])
    if process.environment.get("VIRTUAL_ENV"):
        paths.append(Path(process.environment["VIRTUAL_ENV"]))
    if process.torch:  # .../site-packages/torch/lib/libtorch_cpu.so
        paths.append(Path(process.torch.path).parents[2])
    own = sorted({path for path in paths if path not in SYSTEM_PREFIXES})
    return [path for path in (inside(process, path) for path in own) if path.is_dir()]


def data_roots(process: Target, given: Sequence[Path]) -> list[Path]:
    """Directories and files with training data, which are named as the process names them.

    Raises:
        SettingError: one is not there.
    """
    roots = [inside(process, path) for path in given]
    for path, root in zip(given, roots, strict=True):
        if not os.path.exists(root):
            raise SettingError(
                "bad value for `--data`",
                f"{path} does not exist for process {process.tgid}",
                "give directories or files as that process names them",
            )
    return roots


def inside(process: Target, path: Path) -> Path:
    """A path of a process; one of its own mounts, where it is in a container."""
    place = PROC / str(process.tgid)
    try:
        is_same = os.readlink(place / "ns/mnt") == os.readlink(PROC / "self/ns/mnt")
    except OSError:
        is_same = True
    path = path.absolute()
    return path if is_same else place / "root" / path.relative_to("/")
