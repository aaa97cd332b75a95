"""A run directory that no other run uses."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainobs.runlog.schema import RUN_FILE, rank_dir

BESIDE = "beside"
"""Setting in `run.json` of a run that did not get the directory it was to have: its name."""

TRIAL_BYTES = 1 << 16
"""What a run writes as it begins, and some more."""

LAST_NAME = 10_000
"""Number in the last name that is tried for a run directory: some 0.1 s on a local disk."""


def next_free(run_dir: Path, rank: int) -> Path:
    """`run_dir`, or the first of `run_dir-2`, `run_dir-3`, ... in which `rank` can begin a run.

    The ranks of a job ask without talking to each other, and agree: each passes over directories
    that hold itself already, or a run that has ended. They can disagree only if an earlier job was
    killed there before all its ranks had begun, or if two jobs begin at once; a directory of its
    own for each job rules that out.

    Raises:
        OSError: a directory cannot be read, or too many are taken.
    """
    return next(path for path in _names(run_dir) if _is_free(path, rank))


def claim(run_dir: Path, rank: int) -> Path:
    """Make the directory of `rank` in the run directory that `next_free` names, and return that.

    Of jobs that begin at the same moment only one makes it; the others go on to the next name. Such
    jobs share no directory, but the ranks of each may be spread over several: see `next_free`.

    Raises:
        OSError: a directory cannot be read or made, or too many are taken.
    """
    return next(path for path in _names(run_dir) if _is_free(path, rank) and _make(path, rank))


def try_to_write(run_dir: Path, rank: int) -> None:
    """Write some bytes into a claimed directory, and remove them again.

    Raises:
        OSError: the disk refused them.
    """
    trial = rank_dir(run_dir, rank) / ".trial"
    try:
        trial.write_bytes(os.urandom(TRIAL_BYTES))  # no file system can make less of these
    finally:
        with suppress(OSError):
            trial.unlink()


def give_back(run_dir: Path, rank: int) -> None:
    """Undo `claim` for a run that did not begin; what is in use, or not empty, stays."""
    with suppress(OSError):
        rank_dir(run_dir, rank).rmdir()
        run_dir.rmdir()


def _names(run_dir: Path) -> Iterator[Path]:
    """Not for ever: there are file systems on which every name exists."""
    yield run_dir
    for number in range(2, LAST_NAME + 1):
        yield Path(f"{run_dir}-{number}")
    raise FileExistsError(errno.EEXIST, f"so are {LAST_NAME:,} names like it", str(run_dir))


def _make(run_dir: Path, rank: int) -> bool:
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        rank_dir(run_dir, rank).mkdir()
    except FileExistsError:
        return False
    return True


def _is_free(run_dir: Path, rank: int) -> bool:
    if rank_dir(run_dir, rank).exists():
        return False
    try:
        begun = json.loads((run_dir / RUN_FILE).read_bytes())
    except FileNotFoundError:
        return True
    except ValueError:
        return False  # not a run of ours, so not a place for one either
    return rank > 0 and isinstance(begun, dict) and begun.get("summary") is None
