"""What counting embedding lookups costs on a DLRM: `python benchmarks/lookups.py [--quick]`.

Rounds of training steps, with and without, in turn. The DLRM has 26 tables, looked up once each by
the 2,048 inputs of a batch. They are `nn.EmbeddingBag`s with sparse gradients, or one
EmbeddingBagCollection that TorchRec has sharded for one rank, updated in backward. Ids are skewed
as in click logs. A thread asks for rows as the observer's does, ten times a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ruler import Cost, Meter, compare
from torch import nn

from trainobs.embeddings.model_lookups import ModelLookups
from trainobs.host.facts import host_facts
from trainobs.steps.clock import StepClock
from trainobs.steps.closed_step import ClosedSteps

BATCH = 2048
DIM = 16
DENSE = 13
# Criteo Kaggle's, no more than a million: all of them together in 0.4 GB
CARDINALITIES = [
    min(rows, 1_000_000)
    for rows in (
        [1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194]
        + [27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572]
    )
]
STEPS = 20
NEVER = 10**9
"""Samples the first step only."""

Model = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Dlrm(nn.Module):
    """Bottom MLP, embeddings, pairwise interaction, top MLP."""

    def __init__(self, tables: nn.Module) -> None:
        super().__init__()
        count = len(CARDINALITIES) + 1
        self.tables = tables
        self.bottom = mlp(DENSE, 512, 256, 64, DIM)
        self.top = mlp(DIM + count * (count - 1) // 2, 512, 256, 1)
        self.register_buffer("pairs", torch.triu_indices(count, count, 1))

    def forward(self, dense: torch.Tensor, ids: Any) -> torch.Tensor:
        bottom = self.bottom(dense)
        vectors = torch.cat([bottom[:, None], self.tables(ids)], 1)
        products = torch.bmm(vectors, vectors.transpose(1, 2))[:, self.pairs[0], self.pairs[1]]
        return self.top(torch.cat([bottom, products], 1)).mean()


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after in zip(sizes, sizes[1:], strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


class Bags(nn.Module):
    """A bag of torch for each table."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(rows, DIM, mode="sum", sparse=True) for rows in CARDINALITIES
        )
        self.offsets = torch.arange(BATCH)

    def forward(self, ids: list[torch.Tensor]) -> torch.Tensor:
        pooled = [bag(i, self.offsets) for bag, i in zip(self.bags, ids, strict=True)]
        return torch.stack(pooled, 1)


def bags_model() -> tuple[nn.Module, list[Any]]:
    """The model, and batches for it."""
    return Dlrm(Bags()), [(torch.rand(BATCH, DENSE), skewed_ids()) for _ in range(8)]


def skewed_ids() -> list[torch.Tensor]:
    """Ids of a batch for each table; small ids are drawn more often, as 1 / id."""
    draws = np.random.default_rng().random((len(CARDINALITIES), BATCH))
    rows = np.array(CARDINALITIES)[:, None]
    return list(torch.from_numpy((rows**draws).astype(np.int64) - 1).clamp_(min=0))


@contextmanager
def one_rank() -> Iterator[None]:
    """A process group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", rank=0, world_size=1, init_method=f"file://{folder}/store"
        )
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()


def sharded_model() -> tuple[nn.Module, list[Any]]:
    """The same, its tables a collection that TorchRec sharded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
        from torchrec.distributed import DistributedModelParallel
        from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

    class Collection(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            configs = [
                EmbeddingBagConfig(
                    name=f"t{i}", embedding_dim=DIM, num_embeddings=n, feature_names=[f"f{i}"]
                )
                for i, n in enumerate(CARDINALITIES)
            ]
            self.collection = EmbeddingBagCollection(tables=configs)

        def forward(self, ids: Any) -> torch.Tensor:
            return self.collection(ids).values().view(BATCH, -1, DIM)

    def batch() -> tuple[torch.Tensor, Any]:
        keys = [f"f{i}" for i in range(len(CARDINALITIES))]
        lengths = torch.ones(BATCH * len(keys), dtype=torch.int64)
        return torch.rand(BATCH, DENSE), KeyedJaggedTensor(
            keys=keys, values=torch.cat(skewed_ids()), lengths=lengths
        )

    model = Dlrm(Collection())
    apply_optimizer_in_backward(torch.optim.SGD, model.tables.parameters(), {"lr": 0.01})
    return DistributedModelParallel(model, device=torch.device("cpu")), [batch() for _ in range(8)]


class Training:
    """Trains a model, counted or not.

    Attributes:
        every: pace at the end of the last counted round.
    """

    def __init__(self, model: nn.Module, batches: list[Any], every: int | None) -> None:
        self._model = model
        self._batches = batches
        self._every = every
        self._optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.every = 0

    def round(self, counted: bool, step_count: int) -> Cost:
        """What a step takes."""
        clock = StepClock([0])
        if not counted:
            return self._steps(clock, step_count)
        lookups = ModelLookups(self._model, lambda: clock.serial, every=self._every)
        over = threading.Event()
        observer = threading.Thread(target=self._observe, args=(lookups, clock, over))
        observer.start()
        try:
            return self._steps(clock, step_count)
        finally:
            over.set()
            observer.join()
            lookups.close()
            self.every = lookups.every

    def _observe(self, lookups: ModelLookups, clock: StepClock, over: threading.Event) -> None:
        while not over.wait(0.1):
            closed = ClosedSteps(clock.closed.popleft() for _ in range(len(clock.closed)))
            if closed:
                lookups.rows(closed)

    def _steps(self, clock: StepClock, step_count: int) -> Cost:
        meter = Meter()
        for number in range(step_count):
            dense, ids = self._batches[number % len(self._batches)]
            clock.begin_batch()
            self._optimizer.zero_grad()
            self._model(dense, ids).backward()
            self._optimizer.step()
            clock.end_step()
        return meter.per_step(step_count)


def hooks_us(model: nn.Module, batch: Any, every: int, rounds: int) -> dict[str, float]:
    """What the hooks of a step take of the training thread, and its rows of the observer's."""
    clock = StepClock([0])
    calls: list[tuple[Any, ...]] = []
    lookups = ModelLookups(model, lambda: clock.serial, every=every)
    watches = [
        hook.site.module.register_forward_pre_hook(
            lambda *arguments, hook=hook: calls.append((hook, *arguments)), with_kwargs=True
        )
        for hook in lookups.hooks
    ]
    model(*batch)
    for watch in watches:
        watch.remove()
    in_training, in_observer = [], []
    for _ in range(rounds):
        clock.begin_batch()
        began = time.perf_counter_ns()
        for hook, *arguments in calls:
            hook(*arguments)
        in_training.append(time.perf_counter_ns() - began)
        clock.end_step()
        closed = ClosedSteps(clock.closed.popleft() for _ in range(len(clock.closed)))
        began = time.thread_time_ns()
        if closed:
            lookups.rows(closed)
            in_observer.append(time.thread_time_ns() - began)
    lookups.close()
    return {
        "training_us": round(statistics.median(in_training) / 1e3, 1),
        "observer_us": round(statistics.median(in_observer) / 1e3, 1),
    }


def measure(*, quick: bool) -> dict[str, Any]:
    """What steps take more, and the time of what is done in them."""
    results: dict[str, Any] = {}
    steps, rounds, blocks = (5, 30, 2) if quick else (STEPS, 300, 6)
    with one_rank():
        for name, make in {"bags": bags_model, "sharded": sharded_model}.items():
            model, batches = make()
            results[name] = {
                "shapes_only": hooks_us(model, batches[0], NEVER, rounds),
                "sampled": hooks_us(model, batches[0], 1, rounds // 3),
            }
            for label, every in {"shapes": NEVER, "automatic": None, "every_step": 1}.items():
                training = Training(model, batches, every)
                training.round(True, steps)
                arms = {
                    "bare": lambda t=training: t.round(False, steps),
                    "observed": lambda t=training: t.round(True, steps),
                }
                found = compare(arms, blocks)
                results[name][label] = {**found, "every": training.every}
    return results


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds; writes no results")
    arguments = parser.parse_args()
    results = {"machine": host_facts(), "lookups": measure(quick=arguments.quick)}
    text = json.dumps(results, indent=2, default=str)
    print(text)
    if not arguments.quick:
        name = f"lookups-{time.strftime('%Y-%m-%d')}.json"
        (Path(__file__).parent / "results" / name).write_text(text + "\n")


if __name__ == "__main__":
    main()
