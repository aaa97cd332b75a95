"""A case that can be seen through, and its batches."""

from __future__ import annotations

from dataclasses import replace

import torch
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.batches import batches, packed
from tests.fae.cases import Case, Table, profile_of
from trainobs.fae import FAEProfile
from trainobs.fae.kjt.split import SlotMap, read_mark


def case(sharding: str = "row_wise", world_size: int = 1, **changes: object) -> Case:
    """Two tables, half of whose rows are hot."""
    tables = (
        Table("t0", 20, 8, PoolingType.SUM, ("f0",), sharding, tuple(range(0, 20, 2))),
        Table("t1", 30, 8, PoolingType.MEAN, ("f1", "f2"), "table_wise", tuple(range(10))),
    )
    plain = Case(5, world_size, tables, "rowwise_adagrad", False, False, ("mixed",) * 6, 4)
    return replace(plain, **changes)  # type: ignore[arg-type]


def fed(one: Case, rank: int = 0) -> list[KeyedJaggedTensor]:
    """The case's batches, packed."""
    slots = SlotMap.from_profile(profile_of(one))
    return [packed(kind, kjt, slots) for kind, kjt in batches(one, rank)]


def whole(kjt: KeyedJaggedTensor, profile: FAEProfile) -> KeyedJaggedTensor:
    """A packed batch of one table as it came."""
    mark = read_mark(kjt)
    if mark is None:
        return kjt
    _, hot = kjt.split([len(mark.features), len(mark.hot_features)])
    ids = torch.from_numpy(profile.table("t0").hot_ids)
    return KeyedJaggedTensor(list(mark.features), ids[hot.values()], lengths=hot.lengths())
