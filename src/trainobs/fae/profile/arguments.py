"""Whether arguments are of the kind that the public functions take."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from numbers import Real
from typing import Any

from trainobs.core.errors import SettingError, a_type, shown
from trainobs.core.text import size
from trainobs.fae.profile.profile import FAEProfile

_UNITS = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}


def check_profile(profile: Any) -> FAEProfile:
    """The profile, if it is one.

    Raises:
        SettingError: it is something else, such as the path of one.
    """
    if isinstance(profile, FAEProfile):
        return profile
    raise SettingError(
        "cannot tell which rows are hot",
        f"{a_type(profile)} in the place of a profile",
        "give what calibrate() or FAEProfile.load(path) returns",
    )


def check_loader(loader: Any) -> None:
    """Whether batches can be read from it.

    Raises:
        SettingError: they cannot.
    """
    is_sequence = hasattr(loader, "__getitem__") and not hasattr(loader, "keys")
    if not isinstance(loader, Iterable) and not is_sequence:  # a KeyedJaggedTensor is neither
        raise SettingError(
            "cannot read batches",
            f"{a_type(loader)} in the place of a loader",
            "give a DataLoader, or anything that can be iterated and yields batches",
        )


def is_within(number: Any, low: float, high: float) -> bool:
    """Whether an argument is a number from `low` to below `high`."""
    return isinstance(number, Real) and low <= float(number) < high


def check_confidence(confidence: Any) -> float:
    """The probability that intervals are to hold with.

    Raises:
        SettingError: it is none.
    """
    if not is_within(confidence, 0.5, 1):
        raise SettingError(
            "confidence is no probability to state intervals with",
            shown(confidence),
            "give a number from 0.5 to below 1; the default is 0.99",
        )
    return float(confidence)


def is_fatal(bounds_check_mode: Any) -> bool:
    """Whether an id outside of its table ends the training, by FBGEMM's mode or its name.

    Raises:
        SettingError: it is neither of these, nor None.
    """
    if bounds_check_mode is None:
        return False
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode

    name = getattr(bounds_check_mode, "name", bounds_check_mode)
    modes = {mode.name for mode in BoundsCheckMode}
    if isinstance(name, str) and name.upper() in modes:
        return name.upper().endswith("FATAL")
    raise SettingError(
        "bounds_check_mode is none that FBGEMM has",
        shown(bounds_check_mode),
        f"give the training's: {', '.join(sorted(modes))}",
    )


def told_bytes(count: int) -> str:
    """Bytes that somebody gave, in GiB or MiB where these are whole, else as all sizes are told."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if count and count % factor == 0:
            return f"{count // factor:,} {unit}"
    return size(count)


def byte_count(amount: float | str, what: str) -> int:
    """Bytes of `4 * 2**30`, `"4GiB"`, `"512 MB"` or `"1.5e9"`.

    MB is a million bytes, MiB 1,048,576. Case does not matter; a bare "4G" is refused, since it
    is read either way.

    Args:
        amount: number or text.
        what: name of the parameter, for the message.

    Raises:
        SettingError: it is not a positive amount.
    """
    given = amount
    if isinstance(amount, str):
        match = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-z]*)\s*", amount.lower())
        if match and match[2] in _UNITS and match[1].count(".") < 2 and match[1] != ".":
            number = float(match[1]) * _UNITS[match[2]]
            amount = int(number) if math.isfinite(number) else amount
    is_number = isinstance(amount, Real) and not isinstance(amount, bool)
    if not is_number or not float(amount).is_integer() or float(amount) <= 0:
        raise SettingError(
            f"{what} is no amount of memory",
            repr(given),
            'give whole bytes as a number, or text such as "4GiB" or "512MB"',
        )
    return int(amount)
