"""A pure forward never waits for the device: seen on a host by what would wait on a GPU."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchrec.modules.embedding_configs import PoolingType
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.batches import Batch, packed
from tests.fae.batches import batches as whole_batches
from tests.fae.cases import Case, profile_of
from tests.fae.parity import SEQUENCES, build, fae_sharder, stock_sharder
from tests.fae.ranks import Ranks
from tests.fae.small import case
from trainobs.fae.kjt.split import SlotMap

WAITING = {
    "_local_scalar_dense": "int(), float(), bool() or item() of a tensor",
    "lift_fresh": "a tensor made of numbers of Python, which are copied",
    "nonzero": "a size that the host must know",
    "masked_select": "a size that the host must know",
    "unique_consecutive": "a size that the host must know",
    "_unique2": "a size that the host must know",
    "index": "indices that are a list or a mask",
    "index_put_": "indices that are a list or a mask",
    "_index_put_impl_": "indices that are a list or a mask",
    "where": "a number in it, which is copied",
}
"""Operators that wait on a GPU, or do where they are used as the code here would use them."""


class Waits(TorchDispatchMode):
    """Notes what would wait if tensors were on a GPU, but for what FBGEMM does inside."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Waits:
        for name in ("tolist", "numpy", "cpu"):  # on a host no operator is called for these
            self._patch.setattr(torch.Tensor, name, self._noting(name), raising=False)
        super().__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._patch.undo()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            self._note(f"{name}: {WAITING[name]}")
        return func(*args, **(kwargs or {}))

    def _noting(self, name: str) -> Callable[..., Any]:
        original = getattr(torch.Tensor, name)

        def call(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self._note(name)
            return original(tensor, *args, **kwargs)

        return call

    def _note(self, what: str) -> None:
        frames = traceback.extract_stack()
        # its learning rate and its count of steps are on the host
        if not any("split_table_batched_embeddings_ops" in frame.filename for frame in frames):
            line = next(
                f
                for f in reversed(frames)
                if f"{os.sep}torch{os.sep}" not in f.filename and f.filename != __file__
            )
            self.found.append(f"{what}: {Path(line.filename).name}:{line.lineno}")


@pytest.mark.parametrize(
    "wait",
    [
        lambda x: int(x[0]),
        lambda x: bool((x > 0).all()),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x[[0, 1]],
        lambda x: x[x > 0],
        lambda x: x.__setitem__(x > 0, 1),
        lambda x: x.index_add(0, torch.tensor([0]), x[:1]),
        lambda x: torch.where(x > 0, x, 1),
        lambda x: x.nonzero(),
        lambda x: x.unique(),
    ],
)
def test_what_would_wait_is_seen(wait: Callable[[Tensor], object]) -> None:
    tensor = torch.arange(3)
    with Waits() as waits:
        tensor[1:].sum().add(1)
    assert waits.found == []
    with waits:
        wait(tensor)
    assert waits.found != []


@SEQUENCES
@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("mode", ["overlay", "paper"])  # "partitioned" sends lookups, and waits
@pytest.mark.parametrize("weighted", [False, True])
def test_a_pure_forward_waits_for_no_device(mode: str, weighted: bool, sequences: bool) -> None:
    assert _waits(0, _case(1, mode, weighted and not sequences, sequences)) == []


@SEQUENCES
@pytest.mark.parametrize("mode", ["overlay", "paper"])
def test_nor_does_one_of_several_ranks(pair: Ranks, mode: str, sequences: bool) -> None:
    assert pair.run(_waits, _case(2, mode, False, sequences)) == [[], []]


@pytest.mark.usefixtures("lone_rank")
@pytest.mark.parametrize("mode", ["overlay", "paper"])
def test_a_mixed_forward_of_bags_waits_where_the_stock_collection_does(mode: str) -> None:
    one = replace(_case(1, mode, False, False), kinds=("mixed", "pure", "mixed"))
    stock = _waits(0, one, is_stock=True)
    assert stock != []
    assert _waits(0, one) == stock


def _case(world_size: int, mode: str, weighted: bool, sequences: bool) -> Case:
    """Means of both ways, and keys in another order than the tables."""
    one = case(world_size=world_size, mode=mode, weighted=weighted, sequences=sequences)
    first, second = one.tables
    tables = (replace(first, pooling=PoolingType.MEAN), second)
    if weighted:
        tables = (tables[0], replace(second, pooling=PoolingType.SUM))
    return replace(one, tables=tables, kinds=("mixed", "pure", "pure"), with_ids=True)


def _waits(rank: int, one: Case, is_stock: bool = False) -> list[str]:
    """What would wait in the forward of the last batch."""
    profile = profile_of(one)
    model = build(one, stock_sharder(one) if is_stock else fae_sharder(one, profile))
    feed = [_turned(kjt) for _, kjt in whole_batches(one, rank)]
    if not is_stock:
        slots = SlotMap.from_profile(profile)
        feed = [packed(kind, kjt, slots) for kind, kjt in zip(one.kinds, feed, strict=True)]
    for kjt in feed[:-1]:
        model(Batch(kjt))[0].backward()
    with Waits() as waits:
        model(Batch(feed[-1]))
    return waits.found


def _turned(kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
    return kjt.permute(list(reversed(range(len(kjt.keys())))))
