"""Faults of our own, one by one: in each function that a loop ends up in."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from trainobs.hooks import loader_facts, observed_loader, wrapping
from trainobs.hooks.loader_listener import LoaderListener
from trainobs.hooks.loader_pass import LoaderPass
from trainobs.hooks.loop_pass import LoopPass
from trainobs.hooks.marks import Marks
from trainobs.steps.clock import StepClock
from trainobs.steps.fetch_steps import FetchSteps
from trainobs.steps.ledger import Ledger

OWNERS = (LoaderListener, LoaderPass, LoopPass, Marks, StepClock, FetchSteps, Ledger)
MODULES = (wrapping, observed_loader, loader_facts)

NOT_IN_A_LOOP = {
    LoaderListener: {"abandon", "fault", "safely", "here"},  # guards
    wrapping: {
        *("tell", "tell_no_more", "unwrap_if_unwatched", "is_told_of"),
        *("_safely", "_fault", "_watched_iter", "_watched_next", "_marking"),  # guards
    },
}
"""What is called before and after a loop, or is what catches faults."""


class Place(NamedTuple):
    """Where a fault is put."""

    owner: Any
    name: str

    def __str__(self) -> str:
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.name}"

    def spoil(self, monkeypatch: pytest.MonkeyPatch, counts: list[str]) -> None:
        """Have the function fail from now on; notes in `counts` that it did."""

        def fail(*_: Any, **__: Any) -> Any:
            counts.append(self.name)
            raise RuntimeError("injected")

        is_property = isinstance(inspect.getattr_static(self.owner, self.name), property)
        monkeypatch.setattr(self.owner, self.name, property(fail) if is_property else fail)


def places() -> Iterator[Place]:
    """All of them, found in the code."""
    for owner in OWNERS + MODULES:
        for name, member in vars(owner).items():
            member = getattr(member, "__func__", getattr(member, "fget", member))
            ours = inspect.isfunction(member) and (
                owner in OWNERS or member.__module__ == owner.__name__
            )
            if ours and not name.startswith("__") and name not in NOT_IN_A_LOOP.get(owner, ()):
                yield Place(owner, name)
