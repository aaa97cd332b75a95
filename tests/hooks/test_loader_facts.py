"""What is written down of loaders."""

from __future__ import annotations

import json
import multiprocessing
from collections import UserDict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tests.hooks.pair import Pair
from trainobs.hooks.datasets import workers_of
from trainobs.hooks.loader_facts import MOST_PARTS, TENSORS, tensors_of


class Features(Dataset[dict[str, Any]]):
    """Inputs of so many features."""

    def __init__(self, features: int) -> None:
        self.features = features

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        named = {f"feature_{number}": torch.tensor(index) for number in range(self.features)}
        return {**named, "name": "input", "number": index}


class Holder:
    def __init__(self, **parts: object) -> None:
        self.__dict__.update(parts)


class Dumb:
    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]
        raise OSError("nobody is there")


class Emptying(list[Any]):
    """Gives what it holds away."""

    def __iter__(self) -> Iterator[Any]:
        while self:
            yield self.pop()


class Lazy(Mapping[str, Any]):
    """Reads what it is asked for, each time."""

    def __init__(self) -> None:
        self.asked = 0

    def __getitem__(self, key: str) -> Any:
        self.asked += 1
        return torch.zeros(1)

    def __iter__(self) -> Iterator[str]:
        return iter("abc")

    def __len__(self) -> int:
        return 3


class Asking:
    """Stands for something that it makes when it is asked for anything."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"asked for {name}")


ONE = torch.zeros(1)
CYCLE: list[Any] = [ONE]
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        (ONE, 1),
        ([ONE, (torch.zeros(2), {"a": torch.zeros(1), "b": 1, "c": "text"})], 3),
        (Holder(values=ONE, lengths=torch.zeros(3), keys=["a"], other=Holder(x=torch.ones(1))), 3),
        (UserDict(a=ONE, b=torch.zeros(1)), 2),
        (CYCLE, 1),
        ([ONE] * 3, 1),  # pickled once
        (torch.nn.Linear, 0),  # a class, whose own are not handed over
        (list(range(10 * MOST_PARTS)), 0),
        (Dumb(), None),
        (None, 0),
    ],
)
def test_tensors_of_a_batch_are_counted_wherever_they_are(batch, count):
    assert tensors_of(batch) == count


def test_to_count_tensors_runs_no_code_of_a_batch():
    emptying, lazy = Emptying([ONE, torch.zeros(2)]), Lazy()
    assert tensors_of({"a": emptying, "b": lazy, "c": Asking()}) == 2
    assert list.__len__(emptying) == 2
    assert lazy.asked == 0


@pytest.mark.parametrize("features", [(5, 2), (2, 5)])
def test_loaders_that_are_set_up_alike_tell_the_fewest(features):
    """As one of a training and one of a validation over streams: they are one in `run.json`."""
    pair = Pair()
    for each in features:
        list(DataLoader(Features(each), 2, num_workers=1))
    pair.watch.close()
    assert [(one["objects"], one[TENSORS]) for one in pair.watch.info.loaders] == [(2, 3)]


@pytest.mark.parametrize(
    "given",
    [
        {"num_workers": 0.0},
        {"num_workers": True, "prefetch_factor": True},
        {"num_workers": np.int64(1), "prefetch_factor": np.int16(3)},
    ],
)
def test_numbers_that_torch_takes_are_written_down_as_integers(given):
    pair = Pair()
    loader = DataLoader(Features(1), **given)
    assert len(list(pair.watch.observe(loader))) == 4
    pair.watch.close()
    (noted,) = pair.watch.info.loaders
    assert type(noted["workers"]) is type(workers_of(loader)) is int
    assert noted["workers"] == workers_of(loader) == given["num_workers"]
    assert noted["prefetch_factor"] == given.get("prefetch_factor")
    json.dumps(noted)


def shuffled_by_a_class_of_ones_own() -> dict[str, Any]:
    class Own(RandomSampler):
        """As that of accelerate, which seeds it."""

    return {"sampler": Own(Features(1))}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, False),
        ({"shuffle": True}, True),
        ({"sampler": SubsetRandomSampler(range(4))}, True),
        ({"sampler": WeightedRandomSampler([1.0] * 4, 4)}, True),
        ({"sampler": DistributedSampler(Features(1), 1, 0)}, True),
        ({"sampler": DistributedSampler(Features(1), 1, 0, shuffle=False)}, False),
        ({"batch_sampler": BatchSampler(RandomSampler(range(4)), 2, False)}, True),
        ({"batch_sampler": [[0, 1], [2, 3]]}, None),
        ({"sampler": [3, 1, 2, 0]}, None),
        (shuffled_by_a_class_of_ones_own(), True),
        ({"batch_size": None, "shuffle": True}, True),
    ],
)
def test_a_loader_tells_whether_it_shuffles(given, told):
    pair = Pair()
    list(DataLoader(Features(1), **given))
    pair.watch.close()
    assert [one["shuffle"] for one in pair.watch.info.loaders] == [told]


def test_a_loader_tells_how_many_tensors_a_batch_has():
    pair = Pair()
    for features, workers in ((5, 1), (7, 0)):
        list(DataLoader(Features(features), 2, num_workers=workers))
    pair.watch.close()
    noted = [(one["workers"], one[TENSORS]) for one in pair.watch.info.loaders]
    assert noted == [(1, 6), (0, 8)]  # torch makes one of the numbers


class Opening(Dataset[int]):
    """Of which the loop may tell something between two passes."""

    def __init__(self, **parts: object) -> None:
        self.__dict__.update(parts)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


class Epochs(Opening):
    def set_epoch(self, epoch: int) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (Opening(paths=["a", "b"], lock=multiprocessing.Lock(), rows=torch.zeros(9)), False),
        (Opening(rows=torch.zeros(100).share_memory_()), False),
        (Opening(rows=torch.zeros(9).to_sparse(), none=torch.zeros(1, device="meta")), False),
        (Opening(epoch=torch.zeros(1).share_memory_()), True),
        (Opening(epoch=multiprocessing.Value("i")), True),
        (Opening(epoch=multiprocessing.RawValue("i")), True),
        (Opening(begun=multiprocessing.Event()), True),
        (Opening(inner=Opening(epoch=multiprocessing.Value("i"))), True),
        (Subset(Opening(orders=multiprocessing.Queue()), [0, 1, 2, 3]), True),
        (Epochs(), True),
        (Subset(Epochs(), [0, 1]), True),
    ],
)
def test_a_data_set_that_may_be_told_of_each_pass_is_known(pair, data, told):
    loader = DataLoader(data, num_workers=1)
    for _ in range(2):
        list(loader)
    (noted,) = pair.watch.info.loaders
    assert (noted["told_of_passes"], noted["passes"]) == (told, 2)


@pytest.mark.parametrize("persists", [False, True])
def test_so_is_one_whose_attributes_are_set_between_passes(pair, persists):
    data = Opening(epoch=0)
    loader = DataLoader(data, num_workers=1, persistent_workers=persists)
    list(loader)
    (noted,) = pair.watch.info.loaders
    assert not noted["told_of_passes"]
    data.epoch = 1
    list(loader)
    assert noted["told_of_passes"] is not persists, "they do not begin anew"


@pytest.mark.parametrize("persists", [False, True])
@pytest.mark.parametrize(("is_made_anew", "told"), [(False, False), (True, True)])
def test_so_is_one_that_is_made_anew_for_each_pass(pair, persists, is_made_anew, told):
    data = Opening(path="a")
    for _ in range(3):
        data = Opening(path="a") if is_made_anew else data
        list(DataLoader(data, num_workers=1, persistent_workers=persists))
    (noted,) = pair.watch.info.loaders
    assert (noted["told_of_passes"], noted["objects"]) == (told, 3)


def test_of_a_list_it_is_not_known_whether_it_is_the_same(pair):
    data = [1, 2, 3]
    for _ in range(2):
        list(DataLoader(data, num_workers=1))
    assert [one["told_of_passes"] for one in pair.watch.info.loaders] == [True]
