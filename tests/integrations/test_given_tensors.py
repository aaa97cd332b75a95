"""Which batch a step got from loaders around torch's, by the files in it, as beside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.integrations.test_batches_ahead import Files, Steps, bytes_in, found
from trainobs import observe
from trainobs.hooks.given_tensors import MOST_PARTS
from trainobs.hooks.loader_pass import passes
from trainobs.runlog.reader import RunLog

pytestmark = pytest.mark.needs_bpf


class Around:
    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        yield from self.inner


class Handed(Around):
    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)


class OneAhead(Around):
    """Holds one batch back, as timm's does."""

    def __iter__(self) -> Iterator[Any]:
        held = None
        for batch in self.inner:
            if held is not None:
                yield held
            held = batch
        yield held


class OwnIterator(Around):
    """Is an iterator itself."""

    def __iter__(self) -> Iterator[Any]:
        self.batches = iter(self.inner)
        return self

    def __next__(self) -> Any:
        return next(self.batches)


class Reversed(Around):
    def __iter__(self) -> Iterator[Any]:
        return reversed(list(self.inner))


class Copied(Around):
    """Makes its tensors anew, one batch late."""

    def __iter__(self) -> Iterator[Any]:
        for batch in OneAhead(self.inner):
            yield {name: values.clone() for name, values in batch.items()}


class InMemory(Files):
    """Whole batches, whose tensors are the same in each pass, and twice in a batch."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self.kept = [torch.tensor([[index]]) for index in range(self.count)]

    def __getitem__(self, index: int) -> Any:
        super().__getitem__(index)
        return {"input_ids": self.kept[index], "same": self.kept[index]}


class Kept(DataLoader[Any]):
    """Keeps its iterator, as timm's `MultiEpochsDataLoader` does by a sampler without an end."""

    kept: Any = None

    def __iter__(self) -> Iterator[Any]:
        self.kept = self.kept or super().__iter__()
        for _ in range(3):
            yield next(self.kept)


def list_of_many(batch: Any) -> list[Any]:
    """A batch, and more parts than are looked at for it."""
    return [batch, *({} for _ in range(2 * MOST_PARTS)), batch]


def train(run_dir: Any, loader: Any, *, named: bool = True, around: Any = None) -> Steps:
    noted: Steps = defaultdict(list)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters())
    with observe(run_dir=run_dir, quiet=True) as obs:
        if around is not None:
            loader = around(loader)
        batches = obs.loader(loader) if named else loader
        for _ in range(2):
            for given in batches:
                batch = given if isinstance(given, dict) else given[-1]
                noted[sum(map(len, noted.values()))].append(bytes_in(batch))
                model(batch["input_ids"][:, :1].float()).sum().backward()
                optimizer.step()
    return noted


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Around, OwnIterator, OneAhead, Reversed, Copied])
def test_tensors_that_are_passed_on_tell_their_batch(tmp_path, kind, workers):
    inner = DataLoader(Files(tmp_path / "data"), 2, shuffle=True, num_workers=workers)
    noted = train(tmp_path / "run", kind(inner))
    assert len(noted) == 2 * 7
    assert found(tmp_path / "run") == ({} if kind is Copied else noted)
    settings = RunLog.open(tmp_path / "run").info["settings"]
    assert settings.get("loader_workers") == (None if kind is Copied else workers)


@pytest.mark.parametrize("kind", [iter, OneAhead])
def test_an_iterator_that_is_kept_goes_on(tmp_path, kind):
    inner = Kept(Files(tmp_path / "data"), 2, shuffle=True)
    noted = train(tmp_path / "run", inner if kind is iter else kind(inner))
    assert len(noted) == 2 * 3
    assert found(tmp_path / "run") == noted


def test_a_generator_that_fetches_ahead_of_a_loop_is_not_believed(tmp_path):
    inner = DataLoader(Files(tmp_path / "data"), 2, shuffle=True)
    noted = train(tmp_path / "run", OneAhead(inner), named=False)
    told = found(tmp_path / "run")
    assert sorted(told) == [0, 7]
    assert all(noted[step] == told[step] for step in told)


@pytest.mark.parametrize("around", [iter, enumerate, chain, partial(map, list_of_many)])
def test_an_iterator_that_was_made_before_it_was_named(tmp_path, around):
    inner = DataLoader(Files(tmp_path / "data"), 2, shuffle=True)
    noted = train(tmp_path / "run", inner, around=around)
    assert len(noted) == 7
    assert found(tmp_path / "run") == noted


def test_a_tensor_that_is_given_again_tells_its_batch_again(tmp_path):
    inner = DataLoader(InMemory(tmp_path / "data"), None, shuffle=True)
    noted = train(tmp_path / "run", OneAhead(inner))
    assert len(noted) == 2 * 13
    assert found(tmp_path / "run") == noted


def test_batches_of_an_iterator_of_torch_are_not_looked_at(tmp_path):
    inner, beside = (DataLoader([*range(9)]) for _ in range(2))
    with observe(run_dir=tmp_path / "run", quiet=True) as obs:
        made = iter(obs.loader(Handed(inner))), iter(beside)
        assert [at.shown for at in passes.values()] == [(), ()]
        assert [next(one).item() for one in made] == [0, 0]
