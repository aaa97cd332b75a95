"""Ids outside of their table: what TorchRec and FBGEMM make of them, where rows are hot."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
from torch import Tensor
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.jagged import by_lookup, with_values
from trainobs.fae.kjt.split import ids_of, tell_of_bad_ids
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.mode import Mode

_REPLACING = ("WARNING", "IGNORE", "V2_WARNING", "V2_IGNORE")
_MODE = "FBGEMM_TBE_BOUNDS_CHECK_MODE"  # a number, which FBGEMM prefers to what it is given


class _Blocks(NamedTuple):
    """How TorchRec finds the shard of an id: its block, or its remainder by their number."""

    size: int  # rows
    number: int
    rows: int  # of the table


class BoundsCheck:
    """Puts rows in the place of bad ids, as the stock collection does.

    TorchRec sends a bad id to some shard, and FBGEMM there takes the shard's first row. That row
    may be a hot one, of which the tables have an older copy, so the id is replaced before hot
    lookups are split from the others. Under FBGEMM's mode FATAL, and under none, nothing is
    replaced, and the tables do what they do. A feature of tables that are split differently, over
    several ranks, has no one row to put in. If it has hot rows, its bad ids are refused, except in
    mode "paper", where tables serve hot lookups too.

    Args:
        infos: of the collection's tables.
        mode: in which hot rows are kept.
    """

    def __init__(self, infos: Iterable[EmbeddingShardingInfo], mode: Mode) -> None:
        self._blocks: dict[str, _Blocks] = {}
        split: dict[str, set[_Blocks]] = {}
        self._quiet: set[str] = set()
        self._modes: dict[str, list[str]] = {}
        apart: set[str] = set()
        for info in infos:
            bounds, blocks = _mode(info), _blocks(info)
            for feature in info.embedding_config.feature_names:
                if bounds not in _REPLACING:
                    apart.add(feature)
                split.setdefault(feature, set()).add(blocks)
                self._blocks[feature] = blocks
                table = f"{bounds} of table {info.embedding_config.name!r}"
                self._modes.setdefault(feature, []).append(table)
                if "IGNORE" in bounds:
                    self._quiet.add(feature)
        differing = {f for f, blocks in split.items() if len(blocks) > 1}
        refused = () if mode == "paper" else differing - apart
        self._refused = sorted(refused)  # in one order on all ranks
        apart |= differing
        self._blocks = {f: blocks for f, blocks in self._blocks.items() if f not in apart}

    def takes_first(self, feature: str) -> bool:
        """Whether the tables take the first row of a shard for bad ids of a feature."""
        return feature in self._blocks

    def replaced(self, kjt: KeyedJaggedTensor, is_bad: Tensor) -> KeyedJaggedTensor:
        """The batch with a row for each bad id, where one can be told.

        Args:
            kjt: a batch that is not split.
            is_bad: bool[values].
        """
        keys, values = kjt.keys(), kjt.values()
        blocks = [self._blocks.get(key, _Blocks(1, 1, 0)) for key in keys]
        size, number, rows = by_lookup(kjt, *zip(*blocks, strict=True))
        ids = values.long()
        shift = torch.full_like(number, 2 ** (8 * values.element_size() - 2)).remainder(number) * 4
        left_over = (ids.remainder(number) + shift * (ids < 0)).remainder(number)  # of unsigned ids
        is_in_block = (ids >= 0) & (ids < size * number)
        found = torch.where(is_in_block, ids.div(size, rounding_mode="floor"), left_over) * size
        # -1 in a table that is one block stays: FBGEMM takes it for a row that was pruned
        is_replaced = is_bad & (found < rows) & ((ids != -1) | (number > 1))
        self._tell(kjt, ~is_replaced)
        return with_values(kjt, torch.where(is_replaced, found, ids).to(ids_of(kjt).dtype))

    def refused(self, kjt: KeyedJaggedTensor, is_bad: Tensor, profile: FAEProfile) -> int:
        """What to tell all ranks of a batch: 0, or which feature has bad ids that are refused.

        Args:
            kjt: a batch that is not split.
            is_bad: bool[values].
            profile: which rows are hot.
        """
        if not self._refused:
            return 0
        hot = {f for table in profile.tables if len(table.hot_ids) for f in table.features}
        refused = hot.intersection(self._refused)
        parts = zip(kjt.keys(), torch.split(is_bad, kjt.length_per_key()), strict=True)
        for feature, are_bad in parts:
            if feature in refused and are_bad.any():
                return 1 + self._refused.index(feature)
        return 0

    def check(self, told: Mapping[int, int]) -> None:
        """Raise an FAEError if a rank has bad ids that are refused.

        Args:
            told: what each rank found `refused`.
        """
        for rank, number in told.items():
            if number:
                raise FAEError(
                    "cannot look up the hot rows of a batch",
                    f"ids of feature {self._refused[number - 1]!r} on rank {rank} that are outside "
                    "of its tables, which are split by row in different ways: each takes another "
                    "row for such an id",
                    "repair the data, plan tables that share a feature alike, or take mode 'paper'",
                )

    def _tell(self, kjt: KeyedJaggedTensor, is_row: Tensor) -> None:
        counts = kjt.length_per_key()
        of_keys = (torch.split(column, counts) for column in (kjt.values(), is_row))
        parts = zip(kjt.keys(), *of_keys, strict=True)
        for feature, ids, are_rows in parts:
            if feature not in self._quiet and not are_rows.all():
                modes = ", ".join(self._modes[feature])
                others = f"Others take their place (bounds_check_mode {modes})"
                tell_of_bad_ids(feature, ids, are_rows, others)


def _mode(info: EmbeddingShardingInfo) -> str:
    """Name of a table's mode."""
    given = (info.fused_params or {}).get("bounds_check_mode", BoundsCheckMode.WARNING)
    return str(BoundsCheckMode(int(os.environ.get(_MODE, given.value))).name)


def _blocks(info: EmbeddingShardingInfo) -> _Blocks:
    """The blocks of a table; one where the plan does not split its rows."""
    rows = info.embedding_config.num_embeddings
    spec: Any = info.param_sharding.sharding_spec
    starts = {shard.shard_offsets[0] for shard in spec.shards}
    by_column = [shard for shard in spec.shards if shard.shard_offsets[1] == 0]
    if len(starts) < 2 and len(by_column) < 2:
        return _Blocks(rows, 1, rows)
    return _Blocks(-(-rows // len(by_column)), len(by_column), rows)
