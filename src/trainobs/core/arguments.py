"""Whether arguments are of the kind that public functions take."""

from __future__ import annotations

import operator
from typing import Any

from trainobs.core.errors import SettingError, shown

MOST = (1 << 63) - 1


def check_whole(number: Any, name: str, least: int = -MOST) -> int:
    """An argument as an int, if it is a whole number, and not too small.

    Raises:
        SettingError: it is not.
    """
    try:
        whole = operator.index(number)
        is_fine = least <= whole <= MOST
    except Exception:  # of what somebody calls a number
        is_fine = False
    if not is_fine:
        raise SettingError(
            f"{name} is no number that can be used",
            f"{name}={shown(number)}",
            "give a whole number below 2^63" + (f", at least {least}" if least > -MOST else ""),
        )
    return whole
