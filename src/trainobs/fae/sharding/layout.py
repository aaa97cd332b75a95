"""Where the hot rows of a collection's tables lie, the same on every rank.

Hot rows live in *kernels*: FBGEMM tables that hold the hot rows of many tables, one behind the
other. Tables share a kernel where their rows have the same width and precision and are trained by
the same optimizer with the same settings; tables of sequences where their plans are of one kind
too, as in TorchRec, where embeddings in no loss are trained if others of that kind are in one. A
table that the plan splits by column is split the same way here, into *slabs*, since row-wise
optimizers keep one state for each row of each slab.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.modules.embedding_configs import DataType

from trainobs.fae.profile.profile import FAEProfile

SlabRates = list[float]
"""The learning rate of each slab of a kernel; NaN where a rank has none of the table."""

_OPTIMIZER_SETTINGS = (
    "optimizer",
    "learning_rate",
    "eps",
    "beta1",
    "beta2",
    "weight_decay",
    "weight_decay_mode",
    "max_norm",
    "gradient_clipping",
    "max_gradient",
    "stochastic_rounding",
    "optimizer_state_dtypes",
)


class Slab(NamedTuple):
    """A run of columns of one table's hot rows."""

    table: str
    column: int  # first column of the table
    row: int  # first row of the kernel; rows are in the order of the profile's hot ids


@dataclass(eq=False)
class KernelLayout:
    """What lies in one kernel."""

    number: int  # among those of the collection
    width: int  # values in a row
    data_type: DataType
    settings: Mapping[str, Any]  # the optimizer and its settings, as FBGEMM takes them
    slabs: list[Slab] = field(default_factory=list)  # one behind the other, from row 0
    features: list[str] = field(default_factory=list)  # of each block of the output
    feature_rows: list[int] = field(default_factory=list)  # the row of slot 0, for each block
    row_count: int = 0  # of all slabs

    def add_slab(self, table: str, column: int, row_count: int) -> Slab:
        """Put columns of a table's hot rows behind the others."""
        slab = Slab(table, column, self.row_count)
        self.slabs.append(slab)
        self.row_count += row_count
        return slab

    def add_block(self, feature: str, slab: Slab) -> Block:
        """Have a feature look up a slab."""
        self.features.append(feature)
        self.feature_rows.append(slab.row)
        return Block(self.number, len(self.features) - 1, self.width)


class Block(NamedTuple):
    """A run of columns of the collection's output."""

    kernel: int | None  # number of the one that has it; None where no hot row can be in it
    number: int  # of the block in the kernel's output
    width: int  # columns


@dataclass(frozen=True, eq=False)
class HotLayout:
    """The kernels of a collection, and how their outputs make up the collection's."""

    kernels: tuple[KernelLayout, ...]  # in one order on all ranks
    outputs: tuple[tuple[Block, ...], ...]  # the blocks of each embedding, side by side

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Of the collection's output, in its order."""
        return tuple(block for output in self.outputs for block in output)

    @property
    def is_one_output(self) -> bool:
        """Whether the first kernel's output is the collection's, of bags."""
        return all(block[:2] == (0, i) for i, block in enumerate(self.blocks))


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
    kernels: dict[tuple[Any, ...], KernelLayout] = {}
    slabs: dict[str, list[tuple[KernelLayout, Slab]]] = {}
    dims: dict[str, int] = {}
    overlaid = profile.overlaid
    for info in infos:
        config = info.embedding_config
        dims[config.name] = config.embedding_dim
        if config.name not in overlaid:
            continue
        settings = optimizer_settings(info)
        table = profile.table(config.name)
        hot_count = len(table.hot_ids)
        for column, width in _columns(info):
            plan = info.param_sharding.sharding_type if table.is_sequence else ""
            given = repr(sorted(settings.items(), key=lambda x: x[0]))
            kind = (width, config.data_type, given, plan)
            if kind not in kernels:
                kernels[kind] = KernelLayout(len(kernels), width, config.data_type, settings)
            slab = kernels[kind].add_slab(config.name, column, hot_count)
            slabs.setdefault(config.name, []).append((kernels[kind], slab))
    blocks: list[tuple[Block, ...]] = []
    for feature, name in outputs:
        if name in slabs:
            blocks.append(tuple(kernel.add_block(feature, slab) for kernel, slab in slabs[name]))
        else:
            blocks.append((Block(None, 0, dims[name]),))
    return HotLayout(tuple(kernels.values()), tuple(blocks))


def optimizer_settings(info: EmbeddingShardingInfo) -> dict[str, Any]:
    """The optimizer of a table and its settings, as FBGEMM takes them."""
    given = info.fused_params or {}
    return {name: value for name, value in given.items() if name in _OPTIMIZER_SETTINGS}


def _columns(info: EmbeddingShardingInfo) -> list[tuple[int, int]]:
    """First column and width of each run of columns that the plan makes of a table."""
    spec: Any = info.param_sharding.sharding_spec
    return sorted({(shard.shard_offsets[1], shard.shard_sizes[1]) for shard in spec.shards})


def without_weights(info: EmbeddingShardingInfo) -> EmbeddingShardingInfo:
    """The same without the whole table, which would stay in memory."""
    light = copy.copy(info)
    light.param = torch.empty(0)
    return light
