"""A run directory that no other run uses."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from trainobs.core.errors import RunLogError
from trainobs.core.files import open_regular
from trainobs.runlog.info import read_info
from trainobs.runlog.schema import RUN_FILE, rank_dir

BESIDE = "beside"
"""Setting in `run.json` of a run that did not get the directory it was to have: its name."""

JOB = "job"
"""Setting of each rank of several: what tells its job from others that write to the same place."""

_JOB_FILE = "job"
"""Has the same, and is made by the rank that comes first."""

_NAME_BYTES = 64
_LOOKS, _LOOK_S = 10, 0.01

TRIAL_BYTES = 1 << 16
"""What a run writes as it begins, and some more."""

LAST_NAME = 10_000
"""Number in the last name that is tried for a run directory: some 0.1 s on a local disk."""


def next_free(run_dir: Path, rank: int, job: str = "") -> Path:
    """`run_dir`, or the first of `run_dir-2`, `run_dir-3`, ... in which `rank` can begin a run.

    The ranks of a job ask without talking to each other, and agree: each passes over directories
    that hold itself already, a run that has ended, or ranks of a job that has another name. They
    can disagree only where jobs have the same name: if an earlier one was killed there before all
    its ranks had begun, or if two begin at once. A directory of its own for each job rules that
    out.

    Raises:
        OSError: a directory cannot be read, or too many are taken.
    """
    return next(path for path in _names(run_dir) if _is_free(path, rank, job))


def claim(run_dir: Path, rank: int, job: str = "") -> Path:
    """Make the directory of `rank` in the run directory that `next_free` names, and return that.

    Of jobs that begin at the same moment only one makes it; the others go on to the next name. Such
    jobs share no directory, but the ranks of each may be spread over several: see `next_free`.

    Raises:
        OSError: a directory cannot be read or made, or too many are taken.
    """
    names = (path for path in _names(run_dir) if _is_free(path, rank, job))
    return next(path for path in names if _make(path, rank, job))


def try_to_write(run_dir: Path, rank: int) -> None:
    """Write some bytes into a claimed directory, and remove them again.

    Raises:
        OSError: the disk refused them.
    """
    trial = rank_dir(run_dir, rank) / ".trial"
    try:
        with open(trial, "xb") as file:
            file.write(os.urandom(TRIAL_BYTES))  # no file system can make less of these
    finally:
        with suppress(OSError):
            trial.unlink()


def refuse_foreign(run_dir: Path) -> None:
    """Refuse a directory of another user, who could lead what is written there to other places.

    Raises:
        PermissionError: it is one.
    """
    if _is_foreign(run_dir):
        raise PermissionError(errno.EPERM, "Another user owns it", str(run_dir))


def give_back(run_dir: Path, rank: int) -> None:
    """Undo `claim` for a run that did not begin; what is in use, or not empty, stays."""
    with suppress(OSError):
        rank_dir(run_dir, rank).rmdir()
        if [path.name for path in run_dir.iterdir()] == [_JOB_FILE]:
            (run_dir / _JOB_FILE).unlink()
        run_dir.rmdir()


def _names(run_dir: Path) -> Iterator[Path]:
    """Not for ever: there are file systems on which every name exists."""
    yield run_dir
    for number in range(2, LAST_NAME + 1):
        yield Path(f"{run_dir}-{number}")
    raise FileExistsError(errno.EEXIST, f"so are {LAST_NAME:,} names like it", str(run_dir))


def _make(run_dir: Path, rank: int, job: str) -> bool:
    run_dir.mkdir(parents=True, exist_ok=True)
    if job and not _joins(run_dir, job):
        return False
    own = rank_dir(run_dir, rank)
    try:
        own.mkdir()
    except FileExistsError:
        return False
    if not job and _job_in(run_dir):  # one with a name came in between
        own.rmdir()
        return False
    return True


def _is_foreign(run_dir: Path) -> bool:
    """Whether another user owns a directory that is there, or a link to it."""
    try:
        owners = {os.lstat(run_dir).st_uid, os.stat(run_dir).st_uid}
    except FileNotFoundError:
        return False
    return owners != {os.geteuid()} and owners != {_uid_in(run_dir)}


def _uid_in(directory: Path) -> int | None:
    """Who we are there: some file systems give all files to one user, or root's to nobody."""
    trial = directory / f".{secrets.token_hex(8)}.tmp"
    try:
        trial.mkdir()
    except OSError:
        return None
    uid = os.lstat(trial).st_uid
    with suppress(OSError):
        trial.rmdir()
    return uid


def _is_free(run_dir: Path, rank: int, job: str) -> bool:
    if os.path.lexists(rank_dir(run_dir, rank)) or _is_foreign(run_dir):
        return False
    has_ranks = _has_ranks(run_dir)  # before the name, which is there before its first rank
    found = _job_in(run_dir)
    if found != job and (found or has_ranks):  # of another; one rank alone has no name
        return False
    if not os.path.lexists(run_dir / RUN_FILE):
        return True
    try:
        return rank > 0 and read_info(run_dir / RUN_FILE).get("summary") is None
    except RunLogError:
        return False  # not a run of ours, so not a place for one either


def _has_ranks(run_dir: Path) -> bool:
    return any(run_dir.glob("rank=*"))


def _joins(run_dir: Path, job: str) -> bool:
    """Whether a directory is of this job: of the one that comes to it first."""
    file = run_dir / _JOB_FILE
    try:
        with open(file, "x") as own:
            own.write(job)
        return True
    except FileExistsError:
        return _job_in(run_dir) in ("", job)


def _job_in(run_dir: Path) -> str:
    """Name of the job that a directory is of; empty where none tells."""
    found = ""
    with suppress(OSError):
        for _ in range(_LOOKS):
            with open_regular(run_dir / _JOB_FILE) as file:
                found = file.read(_NAME_BYTES).decode(errors="replace")
            if found:
                break
            time.sleep(_LOOK_S)  # whoever made it has yet to write into it
    return found
