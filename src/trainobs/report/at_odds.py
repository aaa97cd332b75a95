"""Options of `trainobs report` and `trainobs compare` that do not go together."""

from __future__ import annotations

import argparse

from trainobs.core.errors import TrainobsError

_AT_ODDS = {
    "watch": ("which shows the brief report alone", ("json", "html", "after", "rank")),
    "after": ("which compares whole runs, each by its lowest rank", ("full", "io", "step", "rank")),
    "html": ("which writes the page of all there is", ("full", "io", "step", "json")),
    "json": ("which prints every number anyway", ("full",)),
}
"""Option -> why others would do nothing beside it, and which ones."""


def refuse_at_odds(options: argparse.Namespace) -> None:
    """Refuse options of which one would be left out.

    Raises:
        TrainobsError: there are two.
    """
    given = {
        name for name, value in vars(options).items() if value is not None and value is not False
    }
    for name, (why, others) in _AT_ODDS.items():
        for other in (one for one in others if {name, one} <= given):
            raise TrainobsError(
                failed="One of these options would be left out.",
                found=f"--{other} with --{name}, {why}",
                do="give one of the two",
            )
