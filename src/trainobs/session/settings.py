"""What a user may set, checked before anything starts; and where code lies, which nobody sets."""

from __future__ import annotations

import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from trainobs.core.errors import SettingError, shown
from trainobs.probes.own_probe import Probe
from trainobs.probes.own_programs import OwnProbe
from trainobs.probes.programs import PROBES, WHAT_TO_GIVE, check_names
from trainobs.steps.clock import LAST_STEP

PathLike = str | os.PathLike[str]
Probes = str | OwnProbe | Iterable[str | OwnProbe]

LOG_EVERY_N_STEPS = 50
"""Steps between two TensorBoard points where nobody says: Lightning's default."""

SYSTEM = ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/lib", "/lib64", "/usr/share", "/etc")
"""Where a system has its code and settings."""

SYSTEM_PREFIXES = frozenset({Path("/"), Path("/usr"), Path("/usr/local")})
"""Directories that hold more than that."""


@dataclass(frozen=True)
class Settings:
    """Checked settings of a run.

    Attributes:
        probes: names of the probes to load; empty for none.
        required: whether a probe that cannot be loaded is an error.
        own: programs of the user's, beside these.
        data_roots: directories and files that hold training data; None: to be found.
        run_dir: where the run log goes; None: the entry point decides.
        log_every_n_steps: steps between two TensorBoard points, after the first 200; None: the
            entry point decides.
        embedding_every: steps from one whose lookups' ids are taken to the next; None: found while
            training runs; 0: no lookups are counted.
        tensorboard: which curves TensorBoard gets, "default" or "all".
        io: whether each file that is read or written is counted.
        quiet: whether the end of the run is not told on standard error, and a lower level is no
            warning.
        unasked: whether nobody asked for this observer, so that a lower level is no warning.
    """

    probes: frozenset[str] = frozenset(PROBES)
    required: bool = False
    own: tuple[OwnProbe, ...] = ()
    data_roots: tuple[Path, ...] | None = None
    run_dir: Path | None = None
    log_every_n_steps: int | None = None
    embedding_every: int | None = None
    tensorboard: str = "default"
    io: bool = False
    quiet: bool = False
    unasked: bool = False

    @classmethod
    def parse(
        cls,
        probes: Probes = "auto",
        data_roots: PathLike | Iterable[PathLike] | None = None,
        run_dir: PathLike | None = None,
        log_every_n_steps: int | None = None,
        embedding_every: int | str = "auto",
        tensorboard: str = "default",
        io: bool = False,
        quiet: bool = False,
    ) -> Settings:
        """Check what a user gave.

        Raises:
            SettingError: naming the parameter, the value and the choices.
        """
        names, own = _probes(probes)
        return cls(
            probes=frozenset(PROBES) if names is None else names,
            required=names is not None and not isinstance(probes, str),
            own=own,
            data_roots=_data_roots(data_roots),
            run_dir=None if run_dir is None else run_dir_at(run_dir),
            log_every_n_steps=_count("log_every_n_steps", log_every_n_steps),
            embedding_every=_every(embedding_every),
            tensorboard=_curves(tensorboard),
            io=_switch("io", io),
            quiet=_switch("quiet", quiet),
        )


def all_with(files: Iterable[str]) -> list[str | OwnProbe]:
    """All probes of ours, and programs of the user's from some files: a value for `probes`."""
    return ["auto", *map(Probe, files)]


def is_remote(path: object) -> bool:
    """Whether a path is the URL of an object store, or what `pathlib` makes of one."""
    return _URL.match(str(path)) is not None


_URL = re.compile(r"[A-Za-z][\w+.:-]+:/")
"""`s3://bucket`, `simplecache::s3://bucket`, `s3:/bucket`; the letter of a drive is none."""

_MANY = 100_000
"""Paths or names in a list; an iterator may have no end."""

_NAME_BYTES, _PATH_BYTES = 255, 4095
"""What Linux takes (limits.h); a run log needs some of the latter for its files."""


def _bad(name: str, found: str, do: str) -> SettingError:
    return SettingError(f"bad value for `{name}`", found, do)


def _probes(value: Probes) -> tuple[frozenset[str] | None, tuple[OwnProbe, ...]]:
    """The names of our probes, None for all that there are; and programs of the user's.

    These come with all of ours, if none of ours has a name beside them.
    """
    if isinstance(value, str) and value in ("auto", "off"):
        return None if value == "auto" else frozenset(), ()
    if isinstance(value, str):
        raise _bad("probes", shown(value), WHAT_TO_GIVE)
    if isinstance(value, OwnProbe):
        return None, (value,)
    listed = _listed("probes", value, WHAT_TO_GIVE)
    own = tuple(one for one in listed if isinstance(one, OwnProbe))
    names = [one for one in listed if not isinstance(one, OwnProbe)]
    others = [name for name in names if not (isinstance(name, str) and name == "auto")]
    if listed and not others:
        return None, own
    if len(others) < len(names):
        raise _bad(
            "probes",
            f'"auto" beside {shown(others[0])}',
            'leave "auto" out, and each that is named must work; or name none, and each may fail',
        )
    return check_names(names), own


def _listed(name: str, value: object, do: str) -> list[object]:
    try:
        listed = list(islice(iter(value), _MANY + 1))  # type: ignore[call-overload]
    except Exception:
        raise _bad(name, shown(value), do) from None
    if len(listed) > _MANY:
        raise _bad(name, f"more than {_MANY:,} of them", do)
    return listed


def _data_roots(value: PathLike | Iterable[PathLike] | None) -> tuple[Path, ...] | None:
    if value is None:
        return None
    is_one = isinstance(value, str | os.PathLike)
    many = [value] if is_one else _listed("data_roots", value, "give paths that exist")
    roots = tuple(_path("data_roots", root) for root in many)
    for root in roots:
        if not os.path.exists(root):
            raise _bad(
                "data_roots",
                f"{shown(str(root))} does not exist",
                "give directories or files that exist, or leave it out to have them found",
            )
    return roots


def run_dir_at(value: object, name: str = "run_dir") -> Path:
    """Where a run log may go, as an absolute path.

    Args:
        value: what the user gave.
        name: of the argument or option, for the error.

    Raises:
        SettingError: it is no path, or one of a file.
    """
    path = _path(name, value)
    if os.path.isfile(path):  # told now: later it would cost the whole record
        raise _bad(name, f"{shown(str(path))}, a file", "give a directory, or a new name for one")
    return path


def _path(name: str, value: object) -> Path:
    """A path that a system call takes."""
    try:
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    except Exception:
        text = None
    if not isinstance(text, str) or "\0" in text:
        raise _bad(name, shown(value), "give a path")
    if not text:
        raise _bad(name, "an empty path", "give a path")
    if is_remote(text):
        raise _bad(name, f"{shown(text)}, a URL", "give a path of a file system of this machine")
    try:
        path = Path(text).expanduser().absolute()
        encoded = [os.fsencode(part) for part in path.parts]
    except (RuntimeError, OSError, ValueError) as error:  # no such user, no place to be, no name
        raise _bad(name, f"{shown(text)}: {error}", "give a path") from None
    if max(map(len, encoded)) > _NAME_BYTES or len(os.fsencode(path)) > _PATH_BYTES:
        raise _bad(name, f"{shown(text)}, which is too long", "give a shorter path")
    return path


def _count(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LAST_STEP:
        raise _bad(name, shown(value), "give a whole number from 1")
    return value


def _every(value: int | str) -> int | None:
    if isinstance(value, str) and value in ("auto", "off"):
        return None if value == "auto" else 0
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LAST_STEP:
        raise _bad(
            "embedding_every",
            shown(value),
            'give "auto", "off", or a whole number of steps from 1; 0 is "off"',
        )
    return value


def _switch(name: str, value: object) -> bool:
    """Numbers and None pass, as for Python; a text such as "off" would be true."""
    with suppress(Exception):  # an array has no truth
        if not isinstance(value, str):
            return bool(value)
    raise _bad(name, shown(value), "give True or False")


def _curves(value: str) -> str:
    if not isinstance(value, str) or value not in ("default", "all"):
        raise _bad("tensorboard", shown(value), 'give "default" or "all"')
    return value


def library_roots() -> list[Path]:
    """Existing directories that hold Python code, shared libraries and system files.

    An interpreter's own prefix counts whole (a virtual environment), a system prefix does not.
    """
    paths = [Path(path) for path in SYSTEM]
    paths += [Path(path) for path in sysconfig.get_paths().values()]
    paths += [Path(site.getusersitepackages())]
    paths += [Path(p) for p in (sys.prefix, sys.base_prefix) if Path(p) not in SYSTEM_PREFIXES]
    # Not Path.is_dir, which raises where the user may not look.
    resolved = {path.resolve() for path in paths if os.path.isdir(path)}
    return sorted(resolved - SYSTEM_PREFIXES)
