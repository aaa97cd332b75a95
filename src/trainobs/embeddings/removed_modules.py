"""Tables that leave the model while it trains: their hooks would be silent, and silence is no 0."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Sequence

from torch import nn

from trainobs.core.log import logger
from trainobs.core.now import now_s
from trainobs.embeddings.sites import Site

LOOK_S = 10.0
"""Least time between two walks through the model: one of 10,000 modules takes some 10 ms."""


class RemovedModuleWatch:
    """Notices modules that are no part of the model any more, such as a table that was replaced.

    Only those that nobody calls are looked for. Their tables are unmeasured from then on.

    Args:
        model: the model; it is not kept alive.
        sites: its modules that look rows up.
    """

    def __init__(self, model: nn.Module, sites: Sequence[Site]) -> None:
        self._model = weakref.ref(model)
        self._sites = sites
        self._next_look_s = 0.0

    def look(self, called: Collection[int]) -> None:
        """Look at the model, if it is time to, and tell of what has left.

        Args:
            called: identities of sites that were called in the last steps.
        """
        silent = [site for site in self._sites if not site.blind and id(site) not in called]
        model, now = self._model(), now_s()
        if not silent or model is None or now < self._next_look_s:
            return
        self._next_look_s = now + LOOK_S
        try:
            there = set(map(id, model.modules()))
        except RuntimeError:  # the training thread changes it at this moment
            return
        for site in silent:
            if id(site.module) not in there:
                site.blind = True
                logger.warning(
                    "trainobs counts lookups of %r no more; the training goes on\n"
                    "  found: that module was replaced, or has left the model\n"
                    "  do:    observe a new run to have its successor counted",
                    site.path,
                )
