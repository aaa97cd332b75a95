"""Where the hot rows of a collection's tables lie, the same on every rank.

Hot rows live in *kernels*: FBGEMM tables that hold the hot rows of many tables, one behind the
other. Tables share a kernel where their rows have the same width and precision and are trained by
the same optimizer with the same settings. A table that the plan splits by column is split the same
way here, into *slabs*, since row-wise optimizers keep one state for each row of each slab.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.modules.embedding_configs import DataType

from trainobs.fae.kjt.split import overlaid_tables
from trainobs.fae.profile.profile import FAEProfile

OPTIMIZER_SETTINGS = (
    "optimizer",
    "learning_rate",
    "eps",
    "weight_decay",
    "weight_decay_mode",
    "max_norm",
    "stochastic_rounding",
    "optimizer_state_dtypes",
)


@dataclass(frozen=True)
class Slab:
    """A run of columns of one table's hot rows.

    Attributes:
        table: its name.
        column: first column of the table.
        row: first row of the kernel; the rows are in the order of the profile's hot ids.
        row_count: hot rows of the table.
    """

    table: str
    column: int
    row: int
    row_count: int


@dataclass(frozen=True, eq=False)
class KernelLayout:
    """What lies in one kernel.

    Attributes:
        width: values in a row of it.
        data_type: of the values.
        settings: the optimizer and its settings, as FBGEMM takes them.
        slabs: one behind the other, from row 0.
        features: feature that each block of the output pools, `width` columns a block.
        feature_rows: for each block, the kernel's row of slot 0.
    """

    width: int
    data_type: DataType
    settings: Mapping[str, Any]
    slabs: tuple[Slab, ...]
    features: tuple[str, ...]
    feature_rows: tuple[int, ...]

    @property
    def row_count(self) -> int:
        """Hot rows of all its slabs."""
        return sum(slab.row_count for slab in self.slabs)


class Block(NamedTuple):
    """A run of columns of the collection's output.

    Attributes:
        kernel: that pools it; None where no hot row can be in it.
        number: of the block in the kernel's output.
        width: columns.
    """

    kernel: int | None
    number: int
    width: int


@dataclass(frozen=True, eq=False)
class HotLayout:
    """The kernels of a collection, and how their outputs make up the collection's.

    Attributes:
        kernels: in an order that every rank shares.
        outputs: for each embedding of the collection's output its blocks, side by side.
    """

    kernels: tuple[KernelLayout, ...]
    outputs: tuple[tuple[Block, ...], ...]

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Of the collection's output, in its order."""
        return tuple(block for output in self.outputs for block in output)

    @property
    def is_one_output(self) -> bool:
        """Whether the first kernel's output is the collection's, of bags."""
        return all(block[:2] == (0, i) for i, block in enumerate(self.blocks))

    @property
    def is_one_run(self) -> bool:
        """Whether the first kernel's output is the collection's, of sequences."""
        return self.is_one_output and all(len(output) == 1 for output in self.outputs)


def lay_out(
    infos: Iterable[EmbeddingShardingInfo],
    outputs: Sequence[tuple[str, str]],
    profile: FAEProfile,
) -> HotLayout:
    """Lay out the hot rows of the tables of a plan.

    Args:
        infos: of the collection's tables.
        outputs: feature and table of each embedding, in the order of the collection's output.
        profile: which rows are hot.
    """
    drafts: dict[tuple[Any, ...], _Draft] = {}
    of_table: dict[str, list[tuple[_Draft, Slab]]] = {}
    dims: dict[str, int] = {}
    overlaid = overlaid_tables(profile)
    for info in infos:
        config = info.embedding_config
        dims[config.name] = config.embedding_dim
        if config.name not in overlaid:
            continue
        settings = {k: v for k, v in (info.fused_params or {}).items() if k in OPTIMIZER_SETTINGS}
        hot_count = len(profile.table(config.name).hot_ids)
        for column, width in _columns(info):
            key = (width, config.data_type, repr(sorted(settings.items(), key=lambda x: x[0])))
            if key not in drafts:
                drafts[key] = _Draft(len(drafts), width, config.data_type, settings)
            slab = drafts[key].add(config.name, column, hot_count)
            of_table.setdefault(config.name, []).append((drafts[key], slab))
    blocks: list[tuple[Block, ...]] = []
    for feature, table in outputs:
        if table in of_table:
            slabs = of_table[table]
            blocks.append(tuple(draft.add_feature(feature, slab) for draft, slab in slabs))
        else:
            blocks.append((Block(None, 0, dims[table]),))
    return HotLayout(tuple(draft.finish() for draft in drafts.values()), tuple(blocks))


class _Draft:
    """A kernel's layout while tables are added to it."""

    def __init__(
        self, number: int, width: int, data_type: DataType, settings: Mapping[str, Any]
    ) -> None:
        self._number = number
        self._width = width
        self._data_type = data_type
        self._settings = settings
        self._row_count = 0
        self._slabs: list[Slab] = []
        self._features: list[str] = []
        self._feature_rows: list[int] = []

    def add(self, table: str, column: int, row_count: int) -> Slab:
        slab = Slab(table, column, self._row_count, row_count)
        self._slabs.append(slab)
        self._row_count += row_count
        return slab

    def add_feature(self, feature: str, slab: Slab) -> Block:
        self._features.append(feature)
        self._feature_rows.append(slab.row)
        return Block(self._number, len(self._features) - 1, self._width)

    def finish(self) -> KernelLayout:
        return KernelLayout(
            self._width,
            self._data_type,
            self._settings,
            tuple(self._slabs),
            tuple(self._features),
            tuple(self._feature_rows),
        )


def _columns(info: EmbeddingShardingInfo) -> list[tuple[int, int]]:
    """First column and width of each run of columns that the plan makes of a table."""
    spec: Any = info.param_sharding.sharding_spec
    return sorted({(shard.shard_offsets[1], shard.shard_sizes[1]) for shard in spec.shards})
