"""Whether arguments are of the kind that the public functions take."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any

from trainobs.core.errors import SettingError
from trainobs.fae.profile.profile import FAEProfile


def check_profile(profile: Any) -> FAEProfile:
    """The profile, if it is one.

    Raises:
        SettingError: it is something else, such as the path of one.
    """
    if isinstance(profile, FAEProfile):
        return profile
    raise SettingError(
        "cannot tell which rows are hot",
        f"a {type(profile).__name__} in the place of a profile",
        "give what calibrate() or FAEProfile.load(path) returns",
    )


def check_loader(loader: Any) -> None:
    """Whether batches can be read from it.

    Raises:
        SettingError: they cannot.
    """
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise SettingError(
            "cannot read batches",
            f"a {type(loader).__name__} in the place of a loader",
            "give a DataLoader, or anything that can be iterated and yields batches",
        )


def is_within(number: Any, low: float, high: float) -> bool:
    """Whether an argument is a number from `low` to below `high`."""
    return isinstance(number, Real) and low <= float(number) < high
