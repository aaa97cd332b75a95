"""How long modules take to look rows up, in sampled steps, where the host does it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn
from torch.utils.hooks import RemovableHandle

from trainobs.embeddings.buffer import LookupCapture
from trainobs.embeddings.registration import DroppedOnCopy
from trainobs.embeddings.sites import Site
from trainobs.embeddings.step_lookups import StepLookups


class ForwardTimer(DroppedOnCopy):
    """Times a call of a module, from its last forward pre-hook to its first forward hook.

    It is on the module during such calls only: a call looks for forward hooks when its forward is
    done, and so finds one that was put on before. Other calls cost nothing, and code that is
    compiled never sees it.

    Args:
        site: the module. Of a sharded one, whose forward ends before its rows are there, and of
            rows on a device, which the host does not wait for, nothing is timed.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._capture: LookupCapture | None = None
        self._handle: RemovableHandle | None = None
        self._since_ns = 0
        self.possible = not any(
            cls.__name__ == "ShardedModule" for cls in type(site.module).__mro__
        )

    def begin(self, capture: LookupCapture) -> None:
        """The forward of this call of the module is about to begin."""
        self.cancel()  # a forward that raised never came to its end
        self._capture = capture
        self._handle = self._site.module.register_forward_hook(self)
        self._since_ns = time.perf_counter_ns()

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        """The forward is done."""
        now_ns = time.perf_counter_ns()
        if self._capture is not None:
            self._capture.times.append((self._site, now_ns - self._since_ns))
        self.cancel()

    def cancel(self) -> None:
        """Come off the module, if it is on it."""
        handle, self._handle, self._capture = self._handle, None, None
        if handle is not None:
            handle.remove()


def lay_times(rows: NDArray[np.void], of: NDArray[np.intp], asked: Sequence[StepLookups]) -> None:
    """Lay the time of modules' forwards on their tables, by the bytes that each read.

    It stays unknown where not all calls of a module of the table were timed.

    Args:
        rows: of `LOOKUP_ROW`; `forward_ns` is filled in.
        of: the step of each row, as an index into `asked`.
        asked: the steps.
    """
    for index, one in enumerate(asked):
        if not one.times:
            continue
        in_step = np.flatnonzero(of == index)
        times, are_asked = np.zeros(len(in_step)), np.zeros(len(in_step), np.bool_)
        for site in {id(call.site): call.site for call in one.calls}.values():
            spent = [ns for timed, ns in one.times if timed is site]
            of_site = np.isin(rows["table"][in_step], site.tables)
            read = rows["bytes"][in_step[of_site]]
            is_known = len(spent) == sum(call.site is site for call in one.calls)
            share = sum(spent) / np.nansum(read) if is_known and np.nansum(read) > 0 else np.nan
            times[of_site] += share * read
            are_asked |= of_site
        rows["forward_ns"][in_step] = np.where(are_asked, times, np.nan)
