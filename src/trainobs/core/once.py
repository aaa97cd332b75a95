"""What is to be said once, however often it is so."""

from __future__ import annotations

from collections.abc import Hashable


class Once:
    """Knows what was said already: in a process, of a run, of one table."""

    def __init__(self) -> None:
        self._said: set[Hashable] = set()

    def first(self, what: Hashable = None) -> bool:
        """Whether this is the first time that it is asked for.

        Args:
            what: what is said once, where there is more than one thing to say.
        """
        is_first = what not in self._said
        self._said.add(what)
        return is_first
