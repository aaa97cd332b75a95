"""What a user may set, checked before anything starts."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from trainobs.core.errors import SettingError
from trainobs.probes.programs import PROBES, check_names

SWITCH = "TRAINOBS"
"""Environment variable; `off` turns every entry point into a no-op."""

_OFF = frozenset({"off", "0", "false", "no"})
_ON = frozenset({"on", "1", "true", "yes", ""})

PathLike = str | os.PathLike[str]


def switched_off() -> bool:
    """Whether the environment turns trainobs off.

    Raises:
        SettingError: the variable has a value that means nothing.
    """
    value = os.environ.get(SWITCH, "on").lower()
    if value not in _ON | _OFF:
        raise SettingError(
            f"bad value in the environment for {SWITCH}", repr(value), 'set it to "on" or "off"'
        )
    return value in _OFF


@dataclass(frozen=True)
class Settings:
    """Checked settings of a run.

    Attributes:
        probes: names of the probes to load; empty for none.
        required: whether a probe that cannot be loaded is an error.
        data_roots: directories and files that hold training data; None: to be found.
        run_dir: where the run log goes; None: the entry point decides.
        log_every_n_steps: steps between two TensorBoard points; None: the entry point decides.
        quiet: whether nobody asked for this observer, so that what it lacks is no warning.
    """

    probes: frozenset[str] = frozenset(PROBES)
    required: bool = False
    data_roots: tuple[Path, ...] | None = None
    run_dir: Path | None = None
    log_every_n_steps: int | None = None
    quiet: bool = False

    @classmethod
    def parse(
        cls,
        probes: str | Iterable[str] = "auto",
        data_roots: PathLike | Iterable[PathLike] | None = None,
        run_dir: PathLike | None = None,
        log_every_n_steps: int | None = None,
    ) -> Settings:
        """Check what a user gave.

        Raises:
            SettingError: naming the parameter, the value and the choices.
        """
        return cls(
            probes=_probes(probes),
            required=not isinstance(probes, str),
            data_roots=_data_roots(data_roots),
            run_dir=None if run_dir is None else _path("run_dir", run_dir),
            log_every_n_steps=_count("log_every_n_steps", log_every_n_steps),
        )


def _probes(value: str | Iterable[str]) -> frozenset[str]:
    if value == "auto":
        return frozenset(PROBES)
    if value == "off":
        return frozenset()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SettingError(
            "bad value for `probes`",
            repr(value),
            f'give "auto", "off", or a list of {", ".join(map(repr, PROBES))}',
        )
    return check_names(map(str, value))


def _data_roots(value: PathLike | Iterable[PathLike] | None) -> tuple[Path, ...] | None:
    if value is None:
        return None
    many = (value,) if isinstance(value, str | os.PathLike) else value
    if not isinstance(many, Iterable):
        raise SettingError("bad value for `data_roots`", repr(value), "give paths that exist")
    roots = tuple(_path("data_roots", root) for root in many)
    for root in roots:
        if not _exists(root):
            raise SettingError(
                "bad value for `data_roots`",
                f"{str(root)!r} does not exist",
                "give directories or files that exist, or leave it out to have them found",
            )
    return roots


def _exists(path: Path) -> bool:
    """Whether it can be seen: no system call takes a name of any length."""
    try:
        return path.exists()
    except OSError:
        return False


def _path(name: str, value: object) -> Path:
    if not isinstance(value, str | os.PathLike) or isinstance(value, bytes):
        raise SettingError(f"bad value for `{name}`", repr(value), "give a path")
    if not os.fspath(value):
        raise SettingError(f"bad value for `{name}`", "an empty path", "give a path")
    if "\0" in os.fspath(value):  # which no file system has, and no call takes
        raise SettingError(f"bad value for `{name}`", repr(value), "give a path")
    try:
        return Path(value).expanduser().absolute()
    except RuntimeError as error:  # nobody of that name has a home
        raise SettingError(
            f"bad value for `{name}`", f"{value!r}: {error}", "give a path"
        ) from None


def _count(name: str, value: int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise SettingError(f"bad value for `{name}`", repr(value), "give a whole number from 1")
    return value
