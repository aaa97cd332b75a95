"""Changes of the model while it trains: what its hooks would not notice is no 0.

A table may be replaced, grow, get a forward of its own or lose its hooks. Each time before rows are
told, this looks at the tables themselves, in some microseconds; at the whole model now and then.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from threading import RLock

from torch import nn

from trainobs.core.log import logger
from trainobs.core.now import now_s
from trainobs.embeddings.buffer import LookupCapture
from trainobs.embeddings.find import has_own_forward, sites_of
from trainobs.embeddings.hooks import SiteHook
from trainobs.embeddings.sites import NEVER, NEW_RUN, ModelEmbeddings, Site, SiteKind, some_of

LOOK_S = 10.0
"""Least time between two walks through the model: one of 10,000 modules takes some 10 ms."""

_TRIES = 5

_GONE = "that module was replaced, or has left the model"


class ModelWatch:
    """Notices what becomes of the tables of a model after observation began.

    Args:
        model: the model; it is not kept alive.
        found: its tables and the modules that look rows up.
        hooks: what is on these modules.
        forget_bytes: is told of tables whose rows are no longer known to be so wide, and there.
    """

    def __init__(
        self,
        model: nn.Module,
        found: ModelEmbeddings,
        hooks: Sequence[SiteHook],
        forget_bytes: Callable[[Sequence[int]], None],
    ) -> None:
        self._model = weakref.ref(model)
        self._sites = found.sites
        self._forget_bytes = forget_bytes
        self._watched = [_Watched(hook, found) for hook in hooks]
        self._place_all(model)
        self._told: set[str] = set()
        self._next_look_s = 0.0
        self._known_until = -1
        self._over = False
        self._pid = os.getpid()
        self._lock = RLock()

    def look(self, captures: Sequence[LookupCapture], last_serial: int) -> None:
        """Look at the model, and tell of what is not as it was.

        Args:
            captures: what was asked for in the steps since the last look.
            last_serial: the last of these steps.
        """
        for capture in captures:
            for call in capture.calls:
                call.site.called_serial = capture.serial
        self._see()
        for one in self._watched:
            one.judge(self._known_until + 1, last_serial)
            if (one.resized or one.site.moved) and not one.told_size:
                one.told_size = True
                self._tell_size(one.site)
        self._known_until = last_serial

    def close(self) -> None:
        """Take a last look, in the thread that trains: the model may be gone afterwards.

        Not in a forked child, which only lets go.
        """
        if os.getpid() == self._pid:
            self._see(at_end=True)

    def _see(self, at_end: bool = False) -> None:
        """See how the model is now; no more after the end, when the hooks come off."""
        model = self._model()
        with self._lock:
            over, self._over = self._over, self._over or at_end
            if model is None or over:
                return
            for _ in range(_TRIES):
                with suppress(RuntimeError):  # the training thread changes it at this moment
                    self._see_all(model, at_end)
                    return

    def _see_all(self, model: nn.Module, at_end: bool) -> None:
        moved = [one for one in self._watched if one.see()]
        if moved:
            self._place_all(model)
            there = set(map(id, model.modules()))
            for one in moved:
                one.gone = id(one.site.module) not in there
        now = now_s()
        if at_end or now >= self._next_look_s:
            self._next_look_s = now + LOOK_S
            self._look_for_late(model)

    def _place_all(self, model: nn.Module) -> None:
        """Where the watched modules are: each parent, down from the model."""
        parents: dict[int, tuple[weakref.ref[nn.Module], str]] = {}
        for module in model.modules():
            for name, child in module.named_children():
                parents.setdefault(id(child), (weakref.ref(module), name))
        for one in self._watched:
            one.place, module = [], one.site.module
            while id(module) in parents and module is not model and len(one.place) < 1000:
                parent, name = parents[id(module)]
                one.place.append((parent, name, weakref.ref(module)))
                held = parent()
                if held is None:
                    break
                module = held

    def _look_for_late(self, model: nn.Module) -> None:
        self._told.update(one.site.path for one in self._watched if one.gone)  # in its place
        known = {id(site.module) for site in self._sites}
        late = [path for module, path in sites_of(model) if id(module) not in known]
        new = [path for path in late if path not in self._told]
        self._told.update(new)
        tell_late(new)

    def _tell_size(self, site: Site) -> None:
        self._forget_bytes(site.tables)
        site.tell(
            "size",
            "trainobs counts bytes of %r no more, only its lookups; the training goes on\n"
            "  found: its weights have another type, width or device than when it was found\n"
            "  do:    observe the model once it is as it trains",
        )


def tell_late(paths: Sequence[str]) -> None:
    """Modules that look rows up have come too late to be observed, if there are any."""
    if paths:
        logger.warning(
            "trainobs does not count lookups of %s; the training goes on\n"
            "  found: what came into the model after observation began\n"
            "  do:    observe a new run to have them counted",
            some_of(paths),
        )


class _Watched:
    """One module that looks rows up, and how it was when it was found."""

    def __init__(self, hook: SiteHook, found: ModelEmbeddings) -> None:
        self.site = hook.site
        self.place: list[tuple[weakref.ref[nn.Module], str, weakref.ref[nn.Module]]] = []
        self.gone = self.resized = self.told_size = False
        self._hook = hook
        self._changed: tuple[str, str] | None = None
        self._is_plain = self.site.kind in (SiteKind.EMBEDDING, SiteKind.BAG)
        self._rows = self._width = None
        size = _size(self.site.module) if self._is_plain else None
        if size is not None and size[0] == found.tables[self.site.tables[0]].info.row_count:
            self._rows, self._width = size
            weight = self.site.module._parameters["weight"]
            assert weight is not None
            self.site.weight, self.site.rows, self.site.on_cuda = weight, size[0], weight.is_cuda
        if self._is_plain:
            self.site.changed = partial(_changed, self.site.module, self.site.kind, self._rows)

    def see(self) -> bool:
        """See how it is now, and whether it is no longer where it was."""
        site = self.site
        self._changed = None if self._hook.on else ("its hooks were removed", NEW_RUN)
        self._changed = self._changed or site.changed()
        if self._is_plain and self._width is not None:
            size = _size(site.module)
            self.resized = self.resized or (size is not None and size[1] != self._width)
        return not self.gone and not all(_holds(*link) for link in self.place)

    def judge(self, since: int, last_serial: int) -> None:
        """Lose what is not as it was: it was last known to be before the step `since`."""
        site = self.site
        if site.lost_serial != NEVER:
            return
        if self._changed is not None:
            site.lose(max(since, site.verified_serial + 1), *self._changed)
        elif self.gone and site.called_serial < last_serial:
            site.lose(max(since, site.called_serial + 1), _GONE)


def _holds(parent: weakref.ref[nn.Module], name: str, child: weakref.ref[nn.Module]) -> bool:
    held = parent()
    return held is not None and held._modules.get(name) is child()


def _changed(module: nn.Module, kind: SiteKind, rows: int | None) -> tuple[str, str] | None:
    """What makes the ids of a plain module say something else than before, and what to do."""
    size = _size(module) if rows is not None else None
    if size is not None and size[0] != rows:
        return f"its table has {size[0]} rows, and had {rows}", NEW_RUN
    if "forward" in vars(module) and has_own_forward(module, kind):
        return "it was given a forward of its own, which may look up other ids", "nothing"
    return None


def _size(module: nn.Module) -> tuple[int, int] | None:
    """Rows and bytes of a row of a plain weight; None for parts of one, and the like."""
    weight = vars(module)["_parameters"].get("weight")
    if type(weight) is not nn.Parameter or weight.dim() != 2:
        return None
    return weight.shape[0], weight.shape[1] * weight.element_size()
