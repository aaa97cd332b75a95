"""Packed batches: every input once and whole, in the right kind of batch, the same each time."""

from __future__ import annotations

import random
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torch.utils.data import DataLoader, DistributedSampler, get_worker_info
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.fae.packing import (
    Inputs,
    Stream,
    as_sorted,
    collate,
    digest,
    inputs_of,
    is_all_hot,
    is_pure,
    make_input,
    profile,
    to_batch,
)
from trainobs.core.errors import FAEError, SettingError
from trainobs.fae import pack
from trainobs.fae.kjt.find import attributes
from trainobs.fae.kjt.split import cold_count, read_mark


def numbers(batches) -> list[int]:
    return [number for batch in batches for number in batch.labels.tolist()]


def check_kinds(batches, of) -> None:
    """A pure batch is full of all-hot inputs."""
    for batch in batches:
        if is_pure(batch):
            assert all(is_all_hot(one, of) for one in inputs_of(batch, of))
            mark = read_mark(batch.sparse_features)
            assert cold_count(batch.sparse_features, mark) == 0


@pytest.mark.parametrize("seed", range(40))
def test_every_input_comes_once_and_whole(seed):
    draw = np.random.default_rng(seed)
    of = profile(float(draw.choice([0.0, 0.5, 0.8, 0.95, 1.0])), seed)
    count, size, window = (int(draw.integers(*span)) for span in ((0, 120), (1, 9), (1, 7)))
    most = int(draw.choice([1, 3]))
    loader = DataLoader(
        Inputs(count, most=most), size, shuffle=bool(seed % 2), collate_fn=collate, drop_last=False
    )
    packed = pack(loader, of, window=window, seed=seed)
    batches = list(packed)
    assert len(packed) == len(batches) == len(loader)
    found = sorted((one for b in batches for one in inputs_of(b, of)), key=lambda one: one.number)
    assert found == [as_sorted(make_input(i, most)) for i in range(count)]
    check_kinds(batches, of)
    assert sorted(len(batch.labels) for batch in batches)[1:] == [size] * (len(batches) - 1)


def test_a_window_fills_as_many_pure_batches_as_it_can():
    of, size, window = profile(0.9), 4, 5
    batches = list(pack(DataLoader(Inputs(100), size, collate_fn=collate), of, window=window))
    for first in range(0, 100, size * window):
        hot = sum(is_all_hot(make_input(first + i), of) for i in range(size * window))
        pure = sum(map(is_pure, batches[first // size : first // size + window]))
        assert pure == hot // size > 0


def test_inputs_of_a_kind_keep_their_order():
    batches = list(pack(DataLoader(Inputs(60), 4, collate_fn=collate), profile(0.9), window=15))
    for kind in (True, False):
        of_kind = numbers(batch for batch in batches if is_pure(batch) == kind)
        assert of_kind == sorted(of_kind)
        assert of_kind


@pytest.mark.parametrize(("count", "start"), [(2, "fork"), (1, "spawn")])
def test_workers_make_the_batches_that_the_process_itself_makes(count: int, start: str):
    def digests(workers: int, context: str | None = None) -> list[list[str]]:
        loader = DataLoader(
            Inputs(90), 4, shuffle=True, collate_fn=collate, num_workers=workers,
            persistent_workers=workers > 0, multiprocessing_context=context,
        )  # fmt: skip
        packed = pack(loader, profile(0.9), window=3, seed=5)
        return [[digest(batch) for batch in packed] for _ in range(2)]

    alone = digests(0)
    assert alone == digests(count, start)
    assert alone[0] != alone[1]  # two epochs


def test_the_order_follows_from_the_seed_alone():
    def order(seed: int, state: int) -> list[int]:
        torch.manual_seed(state)
        loader = DataLoader(Inputs(60), 4, shuffle=True, collate_fn=collate)
        return numbers(pack(loader, profile(0.9), window=5, seed=seed))

    assert order(1, 10) == order(1, 11) != order(2, 10)


def test_a_generator_of_the_loader_decides_its_order():
    def order(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        loader = DataLoader(Inputs(60), 4, shuffle=True, collate_fn=collate, generator=generator)
        return numbers(pack(loader, profile(0.9), window=5))

    assert order(1) == order(1) != order(2)


@pytest.mark.parametrize("generator", [None, torch.Generator()], ids=["none", "its own"])
@pytest.mark.parametrize("workers", [0, 1])
def test_random_numbers_of_the_training_are_left_alone(generator, workers):
    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]

    def seed() -> None:
        torch.manual_seed(3)
        np.random.seed(3)
        random.seed(3)

    seed()
    expected = draw()
    seed()
    loader = DataLoader(
        Inputs(60), 4, True, num_workers=workers, collate_fn=collate, generator=generator
    )
    for _ in pack(loader, profile(0.9), window=5):
        pass
    assert draw() == expected


def test_a_distributed_sampler_is_told_of_the_epoch():
    sampler = DistributedSampler(Inputs(40), num_replicas=2, rank=1)
    loader = DataLoader(Inputs(40), 4, sampler=sampler, collate_fn=collate)
    packed = pack(loader, profile(0.9), window=5)
    first, second = (numbers(packed) for _ in range(2))
    assert set(first) != set(second)
    assert len(first) == len(second) == 20
    packed.set_epoch(0)
    assert numbers(packed) == first


def test_an_iterator_that_is_never_asked_begins_no_epoch():
    packed = pack(DataLoader(Inputs(40), 4, shuffle=True, collate_fn=collate), profile(0.9))
    iter(packed)
    assert packed.epoch == 0
    first = numbers(packed)
    packed.set_epoch(0)
    assert numbers(packed) == first


class Shared(Stream):
    """Has the inputs of a worker as torch's documentation has it: given by `worker_init_fn`."""

    def __iter__(self):
        info = get_worker_info()
        assert info.dataset is self
        yield from (make_input(number) for number in range(self.first, self.count, self.step))


def share_out(worker):
    info = get_worker_info()
    info.dataset.first, info.dataset.step = worker, info.num_workers


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_what_begins_a_worker_finds_the_data_set_of_the_loader(start):
    loader = DataLoader(
        Shared(40), 4, collate_fn=collate, num_workers=2, worker_init_fn=share_out,
        multiprocessing_context=start,
    )  # fmt: skip
    of = profile(0.9)
    numbers = [one.number for batch in pack(loader, of, window=3) for one in inputs_of(batch, of)]
    assert sorted(numbers) == list(range(40))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_data_set_is_packed_by_each_worker(workers):
    of = profile(0.9)
    loader = DataLoader(Stream(101), 4, collate_fn=collate, num_workers=workers)
    packed = pack(loader, of, window=3)
    batches = list(packed)
    assert sorted(numbers(batches)) == list(range(101))
    check_kinds(batches, of)
    assert any(map(is_pure, batches))
    assert [digest(batch) for batch in pack(loader, of, window=3)] == [digest(b) for b in batches]
    with pytest.raises(TypeError, match="no length"):
        len(packed)


def test_a_data_set_that_makes_batches_itself_is_packed():
    class Batches(Inputs):
        def __getitem__(self, index):
            return to_batch([make_input(4 * index + i) for i in range(4)])

    packed = pack(DataLoader(Batches(10), batch_size=None, shuffle=True), profile(0.9), window=4)
    batches = list(packed)
    assert sorted(numbers(batches)) == list(range(40))
    assert any(map(is_pure, batches))
    with pytest.raises(TypeError, match="no length"):  # its sampler counts batches
        len(packed)


def test_batches_without_inputs_are_passed_over():
    of = profile(0.9)
    some, none = to_batch([make_input(i) for i in range(6)]), to_batch([])
    for source in ([none, some, some], [some, none, some], [some, some, none]):
        for window in (1, 3):
            sizes = [len(batch.labels) for batch in pack(source, of, window=window)]
            assert sizes == [6, 6]
    assert list(pack([none, none], of)) == []


def test_whatever_yields_batches_is_packed():
    source = [to_batch([make_input(4 * b + i) for i in range(4)]) for b in range(10)]
    packed = pack(source, profile(0.9), window=5)
    assert sorted(numbers(packed)) == list(range(40))
    assert [digest(b) for b in pack(iter(source), profile(0.9), window=5)] == [
        digest(b) for b in pack(source, profile(0.9), window=5)
    ]


@dataclass(frozen=True)
class Frozen:
    kjt: KeyedJaggedTensor
    rest: Any


@dataclass(slots=True)
class Slotted:
    kjt: KeyedJaggedTensor
    rest: Any


class Thing:
    """Holds what it is given."""

    def __init__(self, **parts: Any) -> None:
        self.__dict__.update(parts)


Beside = dataclass(init=False)(type("Beside", (Thing,), {}))  # its attributes are no fields
Named = namedtuple("Named", ["label", "inner"])
FORMS = {
    "alone": lambda b: b.sparse_features,
    "tuple": lambda b: (b.dense_features, b.sparse_features, b.labels),
    "list": lambda b: [b.labels, [b.sparse_features]],
    "mapping": lambda b: {"y": b.labels, "x": {"kjt": b.sparse_features, "d": b.dense_features}},
    "data class": lambda b: Frozen(b.sparse_features, b.labels.numpy()),
    "slots": lambda b: Slotted(b.sparse_features, b.labels),
    "beside the fields": lambda b: Beside(kjt=b.sparse_features, labels=b.labels),
    "named tuple": lambda b: Named(b.labels, Frozen(b.sparse_features, None)),
    "constants": lambda b: (b.sparse_features, "train", 3, None, b.labels.view(-1, 1, 1)),
    "object": lambda b: Thing(kjt=b.sparse_features, labels=b.labels),
}


def flat(form: Any) -> list[Any]:
    if isinstance(form, KeyedJaggedTensor):
        return [form.keys(), form.values(), form.lengths(), form.weights()]
    if isinstance(form, (torch.Tensor, np.ndarray, str, int, type(None))):
        return [form]
    parts = form.values() if isinstance(form, dict) else form
    if not isinstance(form, (dict, list, tuple)):
        parts = dict(attributes(form)).values()
    return [type(form), *(leaf for part in parts for leaf in flat(part))]


@pytest.mark.parametrize("name", FORMS)
def test_a_batch_keeps_its_form(name):
    make, of = FORMS[name], profile(0.9)
    source = [to_batch([make_input(4 * b + i) for i in range(4)]) for b in range(10)]
    plain = list(pack(source, of, window=5))
    formed = list(pack([make(batch) for batch in source], of, window=5))
    assert len(formed) == len(plain) == 10
    for packed, batch in zip(formed, plain, strict=True):
        for found, wanted in zip(flat(packed), flat(make(batch)), strict=True):
            if isinstance(wanted, (torch.Tensor, np.ndarray)):
                np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted))
            else:
                assert found == wanted


def test_other_lookups_travel_along_unsplit():
    def both(batch):
        other = KeyedJaggedTensor(["o"], batch.labels, lengths=torch.ones(4, dtype=torch.int64))
        return {"a": other, "b": batch.sparse_features, "n": batch.labels}

    source = [both(to_batch([make_input(4 * b + i) for i in range(4)])) for b in range(10)]
    for batch in pack(source, profile(0.9), kjt="b", window=5):
        assert batch["a"].keys() == ["o"]
        assert torch.equal(batch["a"].values(), batch["n"])
        assert batch["a"].lengths().tolist() == [1] * 4


def test_another_batch_size_fills_whole_windows():
    of = profile(0.9)
    loader = DataLoader(Inputs(100), 6, collate_fn=collate)
    packed = pack(loader, of, batch_size=4, window=3)  # 4 batches of 6 are 6 of 4
    batches = list(packed)
    assert [len(batch.labels) for batch in batches] == [4] * 25
    assert sorted(numbers(batches)) == list(range(100))
    assert len(packed) == 25


def test_inputs_that_fill_no_batch_are_left_out_on_demand():
    of = profile(0.9)
    loader = DataLoader(Inputs(103), 4, collate_fn=collate)
    packed = pack(loader, of, window=3, drop_last=True)
    batches = list(packed)
    assert [len(batch.labels) for batch in batches] == [4] * 25 == [4] * len(packed)
    assert len(set(numbers(batches))) == 100


def test_a_loader_that_drops_its_last_batch_is_followed():
    loader = DataLoader(Inputs(103), 4, collate_fn=collate, drop_last=True)
    packed = pack(loader, profile(0.9), window=3)
    assert sorted(numbers(packed)) == list(range(100))
    assert len(packed) == 25


def broken(number: int, how: str, inputs):
    batch = collate(inputs)
    if number in batch.labels.tolist():
        if how == "id":
            batch.sparse_features.values()[0] = 99
        elif how == "rows":
            batch.labels = batch.labels[1:]
        elif how == "form":
            batch.labels = None
        elif how == "scalar":
            batch.labels = torch.tensor(3)
        elif how == "mapping":  # that takes tensors only
            batch.labels = TensorDict({"x": batch.labels}, batch_size=[4])
        elif how == "list":
            batch.labels = list(range(12))
        elif how == "object":
            batch.labels = object()
        elif how == "learned":
            batch.sparse_features.weights().requires_grad_()
    return batch


@pytest.mark.parametrize(
    ("how", "found", "workers"),
    [
        ("rows", "rows: 4 at ['dense_features'], 4 at ['sparse_features'], 3 at ['labels']", 0),
        ("form", "['NoneType', 'Tensor'] at ['labels']", 1),  # the way out of a worker, of all
        ("form", "['NoneType', 'Tensor'] at ['labels']", 0),
        ("scalar", "a number without rows at ['labels']", 0),
        ("mapping", "TensorDict at ['labels']", 0),
        ("list", "['labels', 4], ['labels', 5] and 6 more", 0),
        ("object", "object at ['labels']", 0),
        ("learned", "weights of lookups that require a gradient", 2),
    ],
)
def test_a_bad_batch_is_named(how, found, workers):
    loader = DataLoader(Inputs(40), 4, collate_fn=partial(broken, 30, how), num_workers=workers)
    packed = pack(loader, profile(0.9), window=3)
    batches = iter(packed)
    for _ in range(6):
        next(batches)
    with pytest.raises(FAEError) as error:
        next(batches)
    assert found in error.value.found
    assert "batches 6 to 8 of epoch 0" in error.value.found


@pytest.mark.parametrize(("workers", "of"), [(0, ""), (1, " of worker 0")])
def test_a_bad_batch_of_a_stream_is_that_of_its_worker_if_it_has_one(workers, of):
    loader = DataLoader(
        Stream(40), 4, collate_fn=partial(broken, 30, "scalar"), num_workers=workers
    )
    with pytest.raises(FAEError) as error:
        list(pack(loader, profile(0.9), window=3))
    assert error.value.found.endswith(f"in batches 6 to 8 of epoch 0{of}")


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"window": 0}, "window=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 3}, "a loader that does not tell its own"),
        ({"kjt": "labels"}, "Tensor there"),
    ],
)
def test_bad_arguments_are_refused(arguments, found):
    source = [to_batch([make_input(0), make_input(1)])]
    with pytest.raises(SettingError) as error:
        list(pack(source, profile(), **arguments))
    assert found in error.value.found
