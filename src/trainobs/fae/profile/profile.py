"""The hot rows of a model's tables: what `calibrate` makes, and `pack` and the sharder use."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainobs.core.errors import FAEError, a_type, shown
from trainobs.core.log import logger
from trainobs.core.once import Once
from trainobs.core.text import quantity, size
from trainobs.fae.profile.archive import ArchiveKind, check_is, read_archive, write_archive
from trainobs.fae.profile.model_tables import sharing, some_of
from trainobs.fae.profile.predictions import Predictions, from_archive, required, to_archive

if TYPE_CHECKING:
    from trainobs.fae.profile.cache_statistics import TableCacheStatistics

_KIND = ArchiveKind(
    name="FAE profile",
    schema=1,
    remedy="give the path of FAEProfile.save(), or calibrate again and save",
)
_OTHER_MODEL = "calibrate again with the tables of this model"
_FACTS = ("name", "row_count", "dim", "features", "row_bytes", "is_sequence", "is_positional")
_ROWS_TO_GIVE = "give row numbers as int64, ascending, each once (np.unique does that)"
_once = Once()


@dataclass(frozen=True, eq=False)
class TableProfile:
    """The hot rows of one table.

    Attributes:
        name: of the table, unique in the model.
        row_count: rows of the whole table, over all ranks.
        dim: values in a row.
        features: features that look the table up.
        hot_ids: rows to keep on the device, ascending; the position is a row's slot. Not to be
            written to.
        row_bytes: bytes that a hot row takes: weights and optimizer state.
        is_sequence: whether its lookups are not pooled but keep their order, as in an
            `EmbeddingCollection`.
        is_positional: whether the place of a lookup in its bag counts, as under TorchRec's
            feature processors.

    Raises:
        FAEError: the hot ids are not ascending rows of the table, or another field is none.
    """

    name: str
    row_count: int
    dim: int
    features: tuple[str, ...]
    hot_ids: NDArray[np.int64]
    row_bytes: int
    is_sequence: bool = False
    is_positional: bool = False

    def __post_init__(self) -> None:
        for what, least in (("row_count", 0), ("dim", 1), ("row_bytes", 0)):
            number = getattr(self, what)
            is_whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
            if not is_whole or number < least:
                self._refuse(f"{what}={shown(number)}", f"give a whole number from {least}")
            object.__setattr__(self, what, int(number))  # a number of NumPy cannot be saved
        named = isinstance(self.features, tuple) and (self.name, *self.features)
        if not named or not all(isinstance(name, str) for name in named):
            found = f"table {shown(self.name)} with features {shown(self.features)}"
            self._refuse(found, "give a name, and a tuple of names")
        ids = self.hot_ids
        if not isinstance(ids, np.ndarray):
            self._refuse(a_type(ids))
        if ids.dtype != np.int64 or ids.ndim != 1:
            self._refuse(f"an array of {ids.dtype} with {ids.ndim} dimensions")
        if len(ids) and not (ids[0] >= 0 and ids[-1] < self.row_count):
            self._refuse(f"ids from {ids[0]} to {ids[-1]} for {self.row_count} rows")
        if np.any(ids[1:] <= ids[:-1]):
            self._refuse("ids that are repeated or not in order")

    @property
    def hot_bytes(self) -> int:
        """Bytes of all its hot rows: weights and optimizer state."""
        return len(self.hot_ids) * self.row_bytes

    @property
    def is_wholly_hot(self) -> bool:
        """Whether no row of it is cold."""
        return len(self.hot_ids) == self.row_count

    def is_alike(self, other: TableProfile) -> bool:
        """Whether each row is hot in both tables or in none, in the same slot."""
        return self.row_count == other.row_count and np.array_equal(self.hot_ids, other.hot_ids)

    def _refuse(self, found: str, do: str = _ROWS_TO_GIVE) -> None:
        raise FAEError(f"cannot make hot rows of table {shown(self.name)}", found, do)


@dataclass(frozen=True, eq=False)
class FAEProfile:
    """Which rows of which tables are hot.

    Attributes:
        tables: in the model's order.
        budget_bytes: what the hot rows were allowed to take on a device.
        predictions: what is expected of them; None where hot rows were given, not calibrated.
        made: how they were chosen: source, inputs read, seed, and so on.

    Raises:
        FAEError: two tables have one name.
    """

    tables: tuple[TableProfile, ...]
    budget_bytes: int
    predictions: Predictions | None = None
    made: Mapping[str, str | int | float] = field(default_factory=dict)
    _slots: dict[str, NDArray[np.int32]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget_bytes", int(self.budget_bytes))
        if len(self._by_name) < len(self.tables):
            names = [table.name for table in self.tables]
            raise FAEError(
                "cannot make a profile of these tables",
                f"tables of one name: {sorted(n for n in set(names) if names.count(n) > 1)}",
                "name each table of the model differently; TorchRec asks for that too",
            )

    def __repr__(self) -> str:
        """In one line; `summary` says more, and the attributes the rest."""
        hot_count = sum(len(table.hot_ids) for table in self.tables)
        return f"<FAEProfile {self.fingerprint}: {hot_count} hot rows of {len(self.tables)} tables>"

    def __getstate__(self) -> dict[str, Any]:
        """Without slots: they are made again where they are needed, and are long."""
        return {**self.__dict__, "_slots": {}}

    @property
    def hot_bytes(self) -> int:
        """Bytes that the hot rows take on a device: weights and optimizer state."""
        return sum(table.hot_bytes for table in self.tables)

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that stand for the tables and their hot rows, and nothing else."""
        digest = hashlib.blake2b(digest_size=8)
        for table in self.tables:
            shape = (table.name, table.row_count, table.dim, table.features)
            kind = " sequence" * table.is_sequence + " positional" * table.is_positional
            digest.update(f"{shape} {len(table.hot_ids)}{kind}".encode())
            digest.update(np.ascontiguousarray(table.hot_ids).data)
        return digest.hexdigest()

    @cached_property
    def overlaid(self) -> frozenset[str]:
        """Names of the tables whose hot rows can be told apart in a batch.

        A feature that looks up several tables is paired with one hot key, so its lookups must be
        hot in all of them or in none, as `calibrate` chooses them. Where a profile has other hot
        rows in two tables that share a feature, all rows of these stay where they are, and so do
        those of tables that share features with them.
        """
        groups = sharing(self.tables)
        alike = (g for g in groups if all(table.is_alike(g[0]) for table in g))
        return frozenset(table.name for group in alike for table in group)

    def table(self, name: str) -> TableProfile:
        """The table of that name.

        Raises:
            FAEError: there is none.
        """
        if name not in self._by_name:
            self._refuse(f"table {name!r}; the profile has {some_of(self._by_name)}")
        return self._by_name[name]

    def slots(self, table: str) -> NDArray[np.int32]:
        """Slot of each row of a table among its hot rows, -1 for a cold row; made once and kept.

        Returns:
            One number a row, to be read only.

        Raises:
            FAEError: the profile has no such table.
        """
        if table not in self._slots:
            profile = self.table(table)
            slots = np.full(profile.row_count, -1, dtype=np.int32)
            slots[profile.hot_ids] = np.arange(len(profile.hot_ids), dtype=np.int32)
            self._slots[table] = slots
        return self._slots[table]

    def check(self, configs: Iterable[Any]) -> None:
        """Whether the profile was made for these tables.

        Tables of the profile beyond these are let pass: a model may have several collections.

        Args:
            configs: TorchRec's `EmbeddingBagConfig` or `EmbeddingConfig`.

        Raises:
            FAEError: a table is unknown, or has another number of rows, dimension or features, or
                is pooled in one of both only.
        """
        for config in configs:
            table = self.table(config.name)
            for what, now, then in (
                ("rows", config.num_embeddings, table.row_count),
                ("dimension", config.embedding_dim, table.dim),
                ("features", tuple(config.feature_names), table.features),
                ("is_sequence", not hasattr(config, "pooling"), table.is_sequence),
            ):
                if now != then:
                    self._refuse(f"table {config.name!r} with {what} {now}, calibrated with {then}")

    def cache_statistics(self, table: str, batch_size: int) -> TableCacheStatistics:
        """What TorchRec's planner may know of a table that it puts under `fused_uvm_caching`.

        Give it as `CacheParams(stats=...)` in the table's `ParameterConstraints`. Neither hot rows
        nor packing are needed for that.

        Args:
            table: its name.
            batch_size: inputs of a step, over all ranks.

        Raises:
            FAEError: the profile has no such table, or hot rows were given, not calibrated.
        """
        from trainobs.fae.profile.cache_statistics import TableCacheStatistics

        rows = self.table(table).row_count
        expected = required(self.predictions, f"cannot tell how table {table!r} uses a cache")
        return TableCacheStatistics(expected.tables[table], rows, batch_size)

    def summary(self) -> str:
        """What is hot and what is expected of it, in a few lines."""
        hot_count = sum(len(table.hot_ids) for table in self.tables)
        row_count = sum(table.row_count for table in self.tables)
        whole_count = sum(table.is_wholly_hot for table in self.tables)
        apart = [table.name for table in self.tables if table.name not in self.overlaid]
        lines = {
            "hot rows": f"{quantity(hot_count)} of {quantity(row_count)}",
            "tables": f"{len(self.tables)}, {whole_count} of them wholly hot",
            **({"left out": f"{some_of(apart)}, which share features and differ"} if apart else {}),
            "memory": f"{size(self.hot_bytes)} of {size(self.budget_bytes)}",
            **(self.predictions.summary() if self.predictions else {}),
        }
        width = max(len(name) for name in lines)
        told = [f"  {name:<{width}}  {text}" for name, text in lines.items()]
        return "\n".join([f"FAE profile {self.fingerprint}", *told])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the profile to a file (npz, no pickle); what was there is replaced.

        Raises:
            OSError: the directory is missing or not writable, or the disk is full; the file is as
                before.
        """
        facts: dict[str, Any] = {
            "tables": [[getattr(table, name) for name in _FACTS] for table in self.tables],
            "budget_bytes": self.budget_bytes,
            "made": dict(self.made),
            "predictions": None,
        }
        arrays: dict[str, NDArray[Any]] = {
            f"hot-ids-{i}": table.hot_ids for i, table in enumerate(self.tables)
        }
        if self.predictions is not None:
            facts["predictions"], more = to_archive(self.predictions)
            arrays.update(more)
        write_archive(path, _KIND, facts, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> FAEProfile:
        """The profile that `save` wrote.

        Raises:
            FAEError: there is no such file, or it holds something else, is damaged, or comes from
                another version of trainobs.
        """
        return read_archive(path, _KIND, cls._from_archive)

    @classmethod
    def _from_archive(cls, facts: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> FAEProfile:
        tables = tuple(
            TableProfile(
                check_is(str, name),
                check_is(int, rows),
                check_is(int, dim),
                tuple(check_is(str, feature) for feature in features),
                arrays[f"hot-ids-{i}"],
                *more,
            )
            for i, (name, rows, dim, features, *more) in enumerate(facts["tables"])
        )
        for table in tables:
            check_is(int, table.row_bytes)
            check_is(bool, table.is_sequence)
            check_is(bool, table.is_positional)
        expected = facts["predictions"]
        predictions = None if expected is None else from_archive(expected, arrays)
        budget, made = check_is(int, facts["budget_bytes"]), check_is(dict, facts["made"])
        return cls(tables, budget, predictions, made)

    @cached_property
    def _by_name(self) -> dict[str, TableProfile]:
        return {table.name: table for table in self.tables}

    def _refuse(self, found: str) -> None:
        raise FAEError("the FAE profile was not made for this model", found, _OTHER_MODEL)


def warn_of_unused(profile: FAEProfile, tables: Collection[str]) -> None:
    """Tell of tables whose hot rows are not used, as each lookup of them is cold: once of each.

    Args:
        profile: which rows are hot.
        tables: of which to tell.
    """
    known = (table for table in profile.tables if table.name in tables)
    unused = [t.name for t in known if t.name not in profile.overlaid and len(t.hot_ids)]
    if unused and _once.first((profile.fingerprint, *unused)):
        logger.warning(
            "hot rows of %s are not used\n  found: tables that share features and differ in their "
            "hot rows: a lookup is hot in all tables of its feature or in none\n"
            "  do:    calibrate these tables together, or give other features other names",
            some_of(unused),
        )
