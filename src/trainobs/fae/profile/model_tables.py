"""The embedding tables of a model, and the bytes that a row of each takes on a device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from trainobs.core.errors import FAEError, SettingError, a_type, shown

DEFAULT_OPTIMIZER = "rowwise_adagrad"

_ASKED = ("name", "num_embeddings", "embedding_dim", "feature_names", "data_type")
_FLOAT_BYTES = 4  # FBGEMM keeps optimizer state as float32, whatever the weights are
STATE_FLOATS = {  # of a row: (for each of its values, beside them)
    "sgd": (0, 0),
    "adagrad": (1, 0),
    "rowwise_adagrad": (0, 1),
    "adam": (2, 0),
    "adamw": (2, 0),
    "partial_rowwise_adam": (1, 1),
}
"""State of the optimizers that the sharder trains hot rows with (`fae/sharding/checks.py`)."""


class ModelTable(NamedTuple):
    """An embedding table as `calibrate` sees it.

    Attributes:
        name: unique in the model.
        row_count: rows of the whole table.
        dim: values in a row.
        features: features that look it up.
        weight_bytes: bytes of a row's weights.
        row_bytes: the same and its optimizer state.
        is_sequence: whether lookups are not pooled, as in an `EmbeddingCollection`.
        is_positional: whether a lookup's place in its bag counts, as under a feature processor.
    """

    name: str
    row_count: int
    dim: int
    features: tuple[str, ...]
    weight_bytes: int
    row_bytes: int
    is_sequence: bool = False
    is_positional: bool = False

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole table: weights and optimizer state."""
        return self.row_count * self.row_bytes


def tables_of(tables: Any, optimizer: Any = None) -> tuple[ModelTable, ...]:
    """The tables that were meant.

    Args:
        tables: a model or a part of it, not sharded yet, or its `EmbeddingBagConfig`s or
            `EmbeddingConfig`s: one, or several.
        optimizer: of all tables: a name such as "sgd", "adagrad" or "rowwise_adagrad", FBGEMM's
            `EmbOptimType`, or an optimizer class. None: what `apply_optimizer_in_backward` said of
            the model's tables, else `DEFAULT_OPTIMIZER`.

    Raises:
        SettingError: the sharder knows no such optimizer or rows, there are no tables, or something
            else is among them.
        FAEError: there are two of one name.
    """
    found = [_table(config, optimizer or own, at) for config, own, at in _configs(tables)]
    names = [table.name for table in found]
    if not found:
        raise SettingError(
            "cannot tell the embedding tables",
            f"none in tables=, a {type(tables).__name__}",
            "give tables=model.embedding_bag_configs(), or the model before it is sharded",
        )
    if len(set(names)) < len(names):
        raise FAEError(
            "cannot calibrate these tables together",
            f"tables of one name: {sorted({name for name in names if names.count(name) > 1})}",
            "name each table of the model differently",
        )
    return tuple(found)


def features_of(tables: Iterable[OfFeatures]) -> tuple[str, ...]:
    """Every feature that looks up one of the tables, once."""
    return tuple(dict.fromkeys(feature for table in tables for feature in table.features))


def _configs(tables: Any) -> Iterator[tuple[Any, Any, bool]]:
    """Each table's config, its optimizer as far as the model says it, and `is_positional`."""
    if hasattr(tables, "modules"):
        processed = _processed(tables)
        for module in tables.modules():
            for config, optimizer in _configs_of_module(module):
                yield config, optimizer, module in processed
    elif hasattr(tables, "num_embeddings"):
        yield tables, None, False
    elif isinstance(tables, Iterable):
        yield from ((config, None, False) for config in tables)


def _processed(model: Any) -> set[Any]:
    """Collections of a model that are under feature processors."""
    from torchrec.modules.fp_embedding_modules import FeatureProcessedEmbeddingBagCollection

    outer = (m for m in model.modules() if isinstance(m, FeatureProcessedEmbeddingBagCollection))
    return {collection for _, collection in (module.split() for module in outer)}


def _configs_of_module(module: Any) -> Iterator[tuple[Any, Any]]:
    for ask, parts in (
        ("embedding_bag_configs", "embedding_bags"),
        ("embedding_configs", "embeddings"),
    ):
        if hasattr(module, ask):
            tables = getattr(module, parts, {})
            for config in getattr(module, ask)():
                weight = getattr(tables[config.name], "weight", None) if tables else None
                yield config, getattr(weight, "_optimizer_classes", [None])[0]


def _table(config: Any, optimizer: Any, is_positional: bool) -> ModelTable:
    lacking = [name for name in _ASKED if not hasattr(config, name)]
    if lacking:
        raise SettingError(
            "cannot tell the embedding tables",
            f"{a_type(config)} among them, without {lacking[0]}",
            "give tables=model.embedding_bag_configs(), or the model before it is sharded",
        )
    odd = odd_rows(config)
    if odd:
        raise SettingError(
            "cannot keep these rows hot: the sharder would refuse them",
            f"{odd} in table {config.name!r}",
            "keep them as float32 or float16 in a table of fixed size, or leave the table out of "
            "tables=",
        )
    weight_bytes, state_bytes = _row_bytes(config, optimizer or DEFAULT_OPTIMIZER)
    return ModelTable(
        name=config.name,
        row_count=int(config.num_embeddings),
        dim=int(config.embedding_dim),
        features=tuple(config.feature_names),
        weight_bytes=weight_bytes,
        row_bytes=weight_bytes + state_bytes,
        is_sequence=not hasattr(config, "pooling"),
        is_positional=is_positional,
    )


class OfFeatures(Protocol):
    """A `ModelTable`, or a table of a profile."""

    @property
    def name(self) -> str:
        """Of the table."""

    @property
    def features(self) -> tuple[str, ...]:
        """That look it up."""

    @property
    def row_count(self) -> int:
        """Of the whole table."""


T = TypeVar("T", bound=OfFeatures)


def sharing(tables: Sequence[T]) -> list[list[T]]:
    """Groups of tables of which each shares a feature with another one, in the tables' order."""
    groups: list[list[T]] = []
    for table in tables:
        features = set(table.features)
        joined = [g for g in groups if any(features.intersection(t.features) for t in g)]
        groups = [g for g in groups if g not in joined]
        groups.append([*(t for g in joined for t in g), table])
    return sorted(groups, key=lambda group: tables.index(group[0]))


def left_out(tables: Sequence[OfFeatures]) -> list[str]:
    """Names of tables that share a feature and differ in their number of rows: none may be hot.

    A lookup of that feature is hot in all of them or in none, and FBGEMM takes an id outside of the
    smaller one for another row of it alone.
    """
    return [
        table.name
        for group in sharing(tables)
        if len({table.row_count for table in group}) > 1
        for table in group
    ]


def some_of(names: Iterable[str]) -> str:
    """A few of many names."""
    names = list(names) or ["none"]
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def trained_row_bytes(configs: Iterable[tuple[Any, Any]]) -> dict[str, int]:
    """Bytes of a row of each table, weights and optimizer state, as it is trained.

    Args:
        configs: of tables, each with its optimizer (see `tables_of`); None where that is unknown,
            and the table is left out.
    """
    return {c.name: sum(_row_bytes(c, optimizer)) for c, optimizer in configs if optimizer}


def optimizers_in(model: Any) -> Iterator[tuple[Any, Any]]:
    """Each table's config in a model, and its optimizer as far as the model says it."""
    return ((config, optimizer) for config, optimizer, _ in _configs(model))


def odd_rows(config: Any) -> str | None:
    """Rows of a table that cannot be hot whatever its plan is; None if they can."""
    # here, as workers of a Ray job only count
    from torchrec.modules.embedding_configs import DataType

    if config.data_type not in (DataType.FP32, DataType.FP16):
        return f"rows of {config.data_type}"
    is_virtual = getattr(config, "use_virtual_table", False)
    return f"virtual rows of {config.data_type}" if is_virtual else None


def _row_bytes(config: Any, optimizer: Any) -> tuple[int, int]:
    """Bytes of a row's weights, and of its optimizer state."""
    # here, as workers of a Ray job only count
    from torchrec.modules.embedding_configs import DATA_TYPE_NUM_BITS

    each, beside = STATE_FLOATS[optimizer_name(optimizer)]
    dim = int(config.embedding_dim)
    weights = (dim * DATA_TYPE_NUM_BITS[config.data_type] + 7) // 8
    return weights, (each * dim + beside) * _FLOAT_BYTES


def optimizer_name(optimizer: Any) -> str:
    """`EmbOptimType.EXACT_ROWWISE_ADAGRAD`, `RowWiseAdagrad` or one -> `rowwise_adagrad`."""
    kind = optimizer if isinstance(optimizer, (str, type)) else type(optimizer)
    said = getattr(optimizer, "value", None) or getattr(kind, "__name__", kind)
    plain = re.sub(r"[^a-z]", "", str(said).lower()).removeprefix("exact")
    for name in STATE_FLOATS:
        if plain == name.replace("_", ""):
            return name
    raise SettingError(
        "cannot keep rows hot that this optimizer trains: the sharder would refuse it",
        shown(optimizer),
        f"train them with one of {', '.join(STATE_FLOATS)}, and say so with optimizer=, or leave "
        "their tables out of tables=",
    )
