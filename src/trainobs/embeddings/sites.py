"""The modules of a model that look embedding rows up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import nn

from trainobs.core.hot_rows import COLLECTION, HOT_SUFFIX, ServedBy
from trainobs.core.log import logger
from trainobs.core.once import Once
from trainobs.embeddings.table import Gradient, WatchedTable

MAX_KEYS = 4096
"""Keys whose tables are remembered; marks in keys may make new ones for ever."""


NEVER = 2**63
"""The serial of no step."""

NEW_RUN = "observe a new run to have them counted"


class ServedKey(NamedTuple):
    """What a key looks up.

    Attributes:
        tables: as indices into those of the model.
        rows: the row of each slot, if its values are slots.
        by: where they are read.
    """

    tables: list[int]
    rows: NDArray[np.int64] | None = None
    by: ServedBy = ServedBy.TABLE


class SiteKind(Enum):
    """How a module is asked for rows."""

    EMBEDDING = "embedding"
    """A tensor of ids, as `nn.Embedding`."""
    BAG = "bag"
    """Ids and offsets, as `nn.EmbeddingBag`."""
    JAGGED = "jagged"
    """A KeyedJaggedTensor, as TorchRec's collections."""
    BATCHED = "batched"
    """Ids and offsets of many features, as FBGEMM's table-batched kernels."""
    SCRIPTED = "scripted"
    """By TorchScript, in code that calls no hooks."""


@dataclass
class Site:
    """A module of the model that looks rows up.

    Attributes:
        module: itself.
        kind: how it is asked.
        path: its qualified name.
        tables: its tables, as indices into those of the model.
        features: feature -> the tables that it looks up; of a batched kernel, its number.
        blind: lookups may go unseen: its tables are unmeasured where none was seen.
        unseen: nobody knows which ids it looks up: it has no hook, and its tables no numbers.
        lost_serial: the first step from which on nobody knows what it looks up.
        called_serial: the last step known to have called it.
        verified_serial: the last step in which it was seen to be as it was.
        changed: what is found where it is not, and what to do; None where it is.
        weight: the weight of a plain module, if `rows` are all of it.
        rows: of that weight.
        on_cuda: whether it was on a GPU.
        moved: whether it was elsewhere in a later call. Between calls, it may be anywhere.
        passed_over: an id that is not looked up (`padding_idx` of a bag).
        near: memory of this rank's device, one of `MEMORIES`.
        names: of its tables, as the module calls them.

    Notes:
        A module may keep copies of rows on its device, and take lookups of them under keys of
        their own, whose values are slots and no rows. It says so by a method
        `slots_of_key(key: str) -> tuple[str, NDArray[np.int64], ServedBy] | None`: the feature
        that the key belongs to, the row of each slot, and where they are read. The observer's
        thread asks. Such lookups belong to the bags of the feature.
    """

    module: nn.Module
    kind: SiteKind
    path: str
    tables: list[int] = field(default_factory=list)
    features: dict[str, list[int]] = field(default_factory=dict)
    blind: bool = False
    unseen: bool = False
    lost_serial: int = NEVER
    called_serial: int = -1
    verified_serial: int = -1
    changed: Callable[[], tuple[str, str] | None] = lambda: None
    weight: Any = field(default=None, repr=False)
    rows: int = 0
    on_cuda: bool = False
    moved: bool = False
    passed_over: int | None = None
    near: str = ""
    names: list[str] = field(default_factory=list)
    _once: Once = field(default_factory=Once)
    _served: dict[str, ServedKey] = field(default_factory=dict)

    @property
    def collection(self) -> nn.Module:
        """The module that has the tables: the one that `module` holds, or itself."""
        collection: nn.Module = getattr(self.module, COLLECTION, self.module)
        return collection

    def lose(self, serial: int, found: str, do: str = NEW_RUN) -> None:
        """Its tables are unmeasured from a step on; the first time, say so and why."""
        self.blind = True
        self.lost_serial = min(serial, self.lost_serial)
        self.tell(
            "lost",
            "trainobs counts lookups of %r no more; the training goes on\n"
            f"  found: {found}\n  do:    {do}",
        )

    def verify(self, serial: int) -> None:
        """In the thread that calls it: see whether it still is what it was."""
        of_module = self.module.__dict__
        weight = of_module["_parameters"].get("weight")
        if (
            weight is not self.weight
            or "forward" in of_module
            or (
                weight is not None
                and (weight.size(0) != self.rows or weight.is_cuda is not self.on_cuda)
            )
        ):
            found = self.changed()
            if weight is not None and self.weight is not None:
                self.moved = self.moved or weight.is_cuda is not self.on_cuda
            if found is not None:
                self.lose(serial, *found)
                return
        self.verified_serial = serial

    def tell(self, what: str, text: str) -> None:
        """Warn, once of the same; the text has a place for the path."""
        if self._once.first(what):
            logger.warning(text, self.path or type(self.module).__name__)

    def served(self, key: str) -> ServedKey:
        """What a key looks up."""
        known = self._served.get(key)
        if known is None:
            if len(self._served) >= MAX_KEYS:
                self._served.clear()
            known = self._served[key] = self._find(key)
        return known

    def _find(self, key: str) -> ServedKey:
        if key in self.features:
            return ServedKey(self.features[key])
        slots_of_key = getattr(self.module, "slots_of_key", None)
        answer = slots_of_key(key) if slots_of_key is not None else None
        if answer is None:
            if slots_of_key is None and key.partition(HOT_SUFFIX)[0] in self.features:
                self._warn_of_lost()
            return ServedKey([])
        feature, rows, by = answer
        return ServedKey(self.features.get(feature, []), rows, by)

    def _warn_of_lost(self) -> None:
        """Nothing fails where a stock collection takes a batch that was packed for another one."""
        if self._once.first():
            logger.warning(
                "lookups of hot rows are lost, and the model trains without them\n  found: packed "
                "batches in %s, which keeps no hot rows\n  do:    shard it with one of FAE's "
                "sharders and the profile that the batches were packed with, or do not pack",
                f"module {self.path!r}" if self.path else "the model",
            )


@dataclass
class ModelEmbeddings:
    """What a model has. Of modules that share one weight, that is one table."""

    tables: list[WatchedTable] = field(default_factory=list)
    sites: list[Site] = field(default_factory=list)

    def add(self, site: Site, tables: list[WatchedTable]) -> None:
        """Another site, whose `tables` and `features` count from 0."""
        if site.kind in (SiteKind.EMBEDDING, SiteKind.BAG):
            for index, known in enumerate(self.tables):
                if known.weight is not None and known.weight is tables[0].weight:
                    self._share(site, tables[0], index)
                    return
        taken = {table.info.name for table in self.tables}
        first = len(self.tables)
        site.names = [table.info.name for table in tables]
        for table in tables:
            name = _free(table.info.name, site.path, taken)
            taken.add(name)
            self.tables.append(replace(table, info=replace(table.info, name=name)))
        site.tables = list(range(first, len(self.tables)))
        site.features = {f: [first + t for t in ts] for f, ts in site.features.items()}
        self.sites.append(site)

    def _share(self, site: Site, table: WatchedTable, index: int) -> None:
        """Another site of a table that is there; what one looks up unseen, the table lacks."""
        known = self.tables[index]
        if known.untrained != table.untrained:
            known.untrained = None
        if known.gradient is not table.gradient:
            known.gradient = Gradient.DENSE  # which a sum of a dense and a sparse one is
        site.names, site.tables, site.features = [known.info.name], [index], {"": [index]}
        self.sites.append(site)
        sharing = [one for one in self.sites if index in one.tables]
        if any(one.unseen for one in sharing):
            for one in sharing:
                one.unseen = one.blind = True


def _free(name: str, path: str, taken: set[str]) -> str:
    """A name that no table has yet."""
    if name in taken and path:
        name = f"{path}.{name}"
    number, first = 2, name
    while name in taken:
        name, number = f"{first}#{number}", number + 1
    return name


def some_of(paths: Sequence[str]) -> str:
    """Names of modules, for a message: the first of them."""
    first = ", ".join(map(repr, paths[:5]))
    return first if len(paths) <= 5 else f"{first} and {len(paths) - 5} more"
