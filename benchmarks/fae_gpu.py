"""Hot rows against TorchRec's other ways to place tables, on one GPU: `--dry-run` without one.

One DLRM is trained on the same inputs in each arm; the arms differ in where the tables are. What
they may keep of them on the device is the same, but for `hbm`, which has all and is the limit.
Inputs are made, packed and pinned before the clock starts; fae_cpu.py measures packing.
docs/fae-gpu.md says how to run this, what is compared and what came out.

The file stands alone: it needs torch, torchrec, fbgemm-gpu and trainobs (PYTHONPATH=src).
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import os
import statistics
import tempfile
import time
import traceback
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

with warnings.catch_warnings():  # FBGEMM for hosts warns of kernels that only devices have
    warnings.simplefilter("ignore")
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor
    from torchrec.datasets.utils import Batch
    from torchrec.distributed import DistributedModelParallel, train_pipeline
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
    from torchrec.distributed.types import CacheAlgorithm, CacheParams, ShardingPlan
    from torchrec.models.dlrm import DLRM, DLRMTrain
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from trainobs.core.errors import GpuError, SettingError
from trainobs.fae import ShuffleScheduler, calibrate, pack
from trainobs.fae.kjt.split import SlotMap, read_mark, split
from trainobs.fae.sharding.sharder import FAEEmbeddingBagCollectionSharder
from trainobs.gpu.nvml import Nvml
from trainobs.host.facts import host_facts

# Criteo Terabyte's 26 categories, at most 40 million rows each: facebookresearch/dlrm.
# fmt: off
TERABYTE = (
    40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63,
    40_000_000, 3_067_956, 405_282, 10, 2_209, 11_938, 155, 4, 976, 14,
    40_000_000, 40_000_000, 40_000_000, 590_152, 12_973, 108, 36,
)
# fmt: on
SCALED_FROM = 1_000_000  # tables of more rows are scaled
# What columns depend on, after examples/dlrm/synthetic.py, which is fitted to data of Criteo: four
# large ones have the rank of what is advertised, two are functions of it, the first is drawn by
# itself, and the others are functions of the place; in a share of the inputs, else by themselves.
SAME, FUNCTIONS, DRAWN_ALONE = (9, 19, 20, 21), {10: 0.95, 22: 0.95}, 0
OF_PLACE, PLACES = 0.7, 100_000
DENSE_COUNT, BOTTOM, TOP = 13, (512, 256), (1024, 1024, 512, 256, 1)  # MLPerf's layers
LEARNING_RATE, EPSILON = 0.01, 1e-8
CHECKED_STEPS = 3
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Setup:
    """What is compared; each is an option of the command line."""

    scale: float = 0.05  # of tables with more than SCALED_FROM rows
    most_rows: int = 1 << 31  # of a table, whatever the scale
    dim: int = 128
    hot_bytes: int = 512 << 20  # of tables that an arm may keep on the device
    batch_size: int = 8192
    batches: int = 256  # to train on, again and again
    sample: int = 256  # batches of other inputs, from which hot rows are chosen
    slope: float = 0.95  # of the logarithm of a row's lookups over that of its rank
    rounds: int = 5
    steps: int = 100  # of an arm in a round
    warmup: int = 200  # steps of an arm before the first round: a cache must fill
    seed: int = 0


DRY_RUN = Setup(0.0001, 1000, 16, 640 << 10, 64, 64, rounds=2, steps=8, warmup=2, sample=64)


class Arm(NamedTuple):
    """A way to place the tables.

    Attributes:
        kernel: of tables that are not wholly hot; "" for tables outside of TorchRec's plan.
        mode: of FAE; "" without it.
        algorithm: of the cache.
        prefetches: whether the next batch's rows are fetched ahead.
    """

    kernel: str
    mode: str = ""
    algorithm: CacheAlgorithm | None = None
    prefetches: bool = False


ARMS = {
    "cpu": Arm(""),
    "uvm": Arm("fused_uvm"),
    "caching_lru": Arm("fused_uvm_caching", algorithm=CacheAlgorithm.LRU),
    "caching_lfu": Arm("fused_uvm_caching", algorithm=CacheAlgorithm.LFU),
    # For LRU alone: FBGEMM asserts that.
    "caching_lru_prefetch": Arm("fused_uvm_caching", algorithm=CacheAlgorithm.LRU, prefetches=True),
    "fae_overlay": Arm("fused_uvm", mode="overlay"),
    "fae_partitioned": Arm("fused_uvm", mode="partitioned"),
    "fae_paper": Arm("fused_uvm", mode="paper"),
    "hbm": Arm("fused"),
}


class Inputs:
    """Batches in memory: rows are looked up by a power law, and columns depend on each other."""

    def __init__(self, setup: Setup) -> None:
        self._setup, self._random = setup, np.random.default_rng(setup.seed)
        scaled = [round(n * setup.scale) if n > SCALED_FROM else n for n in TERABYTE]
        self._rows = [min(setup.most_rows, max(n, 3)) for n in scaled]
        self._keys = [f"C{i + 1}" for i in range(len(scaled))]
        self.configs = [
            EmbeddingBagConfig(
                name=f"t_{key}",
                num_embeddings=rows,
                embedding_dim=setup.dim,
                feature_names=[key],
                init_fn=fill,
            )
            for key, rows in zip(self._keys, self._rows, strict=True)
        ]
        self.batches = self.draw(setup.batches)

    def draw(self, count: int) -> list[Batch]:
        """Inputs that were not drawn before."""
        return [self._batch() for _ in range(count)]

    def _batch(self) -> Batch:
        random, size = self._random, self._setup.batch_size
        advertised = self._ranks(max(self._rows), random.random(size))
        place = self._ranks(PLACES, random.random(size))
        ids = np.empty((len(self._rows), size), dtype=np.int64)
        for i, rows in enumerate(self._rows):
            share = 0.0 if i == DRAWN_ALONE else FUNCTIONS.get(i, OF_PLACE)
            told = _unit(advertised if i in FUNCTIONS else place, i)
            uniform = np.where(random.random(size) < share, told, random.random(size))
            ranks = advertised % rows if i in SAME else self._ranks(rows, uniform)
            ids[i] = _scatter(ranks, rows)
        lengths = torch.ones(ids.size, dtype=torch.int32)
        kjt = KeyedJaggedTensor(self._keys, torch.from_numpy(ids.ravel()), lengths=lengths)
        kjt.offset_per_key()  # and length_per_key, now, while no device has to be asked
        dense = random.standard_normal((size, DENSE_COUNT), dtype=np.float32)
        return Batch(torch.from_numpy(dense), kjt, torch.from_numpy(random.integers(0, 2, size)))

    def _ranks(self, count: int, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
        power = 1.0 - self._setup.slope  # by the inverse of the law
        ranks = (1.0 + uniform * ((count + 1.0) ** power - 1.0)) ** (1.0 / power)
        found: NDArray[np.int64] = np.minimum(ranks.astype(np.int64) - 1, count - 1)
        return found


def _unit(values: NDArray[np.int64], purpose: int) -> NDArray[np.float64]:
    """A number in [0, 1) for each value, the same each time for one purpose (splitmix64)."""
    mixed = (values.astype(np.uint64) + np.uint64(purpose << 40)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    numbers: NDArray[np.float64] = (mixed >> np.uint64(11)) * 2.0**-53
    return numbers


def _scatter(ranks: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """Hot rows are all over a table, as hashing leaves them."""
    step = next(s for s in range(max(1, int(count * 0.618)), count + 2) if np.gcd(s, count) == 1)
    return ranks * step % count


@torch.no_grad()
def fill(weight: Tensor) -> Tensor:
    """The same small numbers wherever a table is, without a copy of it on the host."""
    flat, bound = weight.view(-1), len(weight) ** -0.5
    for first in range(0, len(flat), 1 << 24):
        part = flat[first : first + (1 << 24)]
        numbers = torch.arange(first, first + len(part), device=part.device) * 2_654_435_761
        part.copy_((numbers % (1 << 24)).float().mul_(bound / (1 << 23)).sub_(bound))
    return weight


class HostTables(nn.Module):
    """FBGEMM's fused tables for hosts; pooled rows go to the device, their gradients come back."""

    def __init__(self, configs: list[EmbeddingBagConfig], device: torch.device) -> None:
        super().__init__()
        self._device, self._dims = device, [config.embedding_dim for config in configs]
        host = (fbgemm.EmbeddingLocation.HOST, fbgemm.ComputeDevice.CPU)
        self._tables = fbgemm.SplitTableBatchedEmbeddingBagsCodegen(
            [(config.num_embeddings, config.embedding_dim, *host) for config in configs],
            optimizer=fbgemm.OptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPSILON,
            device=torch.device("cpu"),
        )
        for weight in self._tables.split_embedding_weights():
            fill(weight)

    def forward(self, kjt: KeyedJaggedTensor) -> KeyedTensor:
        """Look up on the host."""
        pooled = self._tables(kjt.values(), kjt.offsets().long())
        return KeyedTensor(kjt.keys(), self._dims, pooled.to(self._device, non_blocking=True))


class Feed:
    """Batches without end; knows which one a step trained on, since pipelines keep the order."""

    def __init__(self, first: list[Batch], others: list[Batch]) -> None:
        self._batches = itertools.chain(first, itertools.cycle(others))
        self._on_their_way: deque[tuple[str, int]] = deque()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        batch = next(self._batches)
        mark = read_mark(batch.sparse_features)
        kind = "plain" if mark is None else "pure" if mark.pure else "mixed"
        self._on_their_way.append((kind, len(batch.labels)))
        return batch

    def trained(self) -> tuple[str, int]:
        """Kind and inputs of the oldest batch that was not asked for yet."""
        return self._on_their_way.popleft()


class Trainer:
    """The model of one arm, and what trains it step by step."""

    def __init__(self, arm: Arm, bench: Bench, feed: Feed) -> None:
        self._feed, self._device = feed, bench.device
        torch.manual_seed(bench.setup.seed)
        configs, layers = bench.inputs.configs, [*BOTTOM, bench.setup.dim]
        tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        dlrm = DLRM(tables, DENSE_COUNT, layers, list(TOP), dense_device=bench.device)
        model: nn.Module = DLRMTrain(dlrm)
        if arm.kernel:
            settings = {"lr": LEARNING_RATE, "eps": EPSILON}
            apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), settings)
            model = _sharded(model, tables, arm, bench)
        else:
            dlrm.sparse_arch.embedding_bag_collection = HostTables(configs, bench.device)
        dense = [p for name, p in model.named_parameters() if "sparse_arch" not in name]
        self._model, self._optimizer = model, torch.optim.SGD(dense, lr=LEARNING_RATE)
        arguments = (model, self._optimizer, bench.device)
        self._pipeline: Any = None
        if arm.prefetches:
            self._pipeline = train_pipeline.PrefetchTrainPipelineSparseDist(*arguments)
        elif arm.kernel:  # batches are copied after the forward: lookups need the link before
            self._pipeline = train_pipeline.TrainPipelineSparseDist(
                *arguments, enqueue_batch_after_forward=True
            )

    def step(self) -> tuple[str, int, Tensor]:
        """Train on a batch: its kind, its inputs, and the loss."""
        if self._pipeline is not None:
            loss = self._pipeline.progress(self._feed)[0]
        else:
            batch = next(self._feed)
            dense, labels = (
                part.to(self._device, non_blocking=True)
                for part in (batch.dense_features, batch.labels)
            )
            self._optimizer.zero_grad(set_to_none=True)
            loss, _ = self._model(Batch(dense, batch.sparse_features, labels))
            loss.backward()
            self._optimizer.step()
        return (*self._feed.trained(), loss.detach())

    def missed_rows(self) -> int | None:
        """Rows that came over the link since the start for want of a place; None without a cache.

        FBGEMM counts: calls, lookups, rows, rows that missed, of these those without a place, and
        the lookups of the latter.
        """
        lookups = [x for m in self._model.modules() for x in getattr(m, "_lookups", [])]
        kernels = [module.emb_module for lookup in lookups for module in lookup._emb_modules]
        counting = [kernel for kernel in kernels if kernel.gather_uvm_cache_stats]
        stats = [kernel.get_uvm_cache_stats().tolist() for kernel in counting]
        stats = [s for s in stats if s[0]]  # tables without a cache answer too, with zeros
        return sum(s[3] - s[4] + s[5] for s in stats) if stats else None


def _sharded(
    model: nn.Module, tables: EmbeddingBagCollection, arm: Arm, bench: Bench
) -> DistributedModelParallel:
    """The model with its tables where the arm has them.

    Without FAE, tables that are wholly hot are on the device, and a cache has the bytes that are
    left, so that no arm is slow for small tables that any plan would keep near.
    """
    fused: dict[str, Any] = {"uvm_host_mapped": True}  # managed memory can hang a device
    if arm.algorithm is not None and not bench.meter.sees_link:
        fused["gather_uvm_cache_stats"] = True  # it costs a little
    sharder = EmbeddingBagCollectionSharder(fused_params=fused)
    whole = {table.name: table for table in bench.profile.tables if table.is_wholly_hot}
    if arm.mode:
        whole = {}
        mode: Any = arm.mode
        sharder = FAEEmbeddingBagCollectionSharder(bench.profile, mode, fused_params=fused)
    kernels = {c.name: "fused" if c.name in whole else arm.kernel for c in bench.inputs.configs}
    plan = construct_module_sharding_plan(
        tables,
        {name: table_wise(rank=0, compute_kernel=kernel) for name, kernel in kernels.items()},
        sharder=sharder,
        local_size=1,
        world_size=1,
        device_type=bench.device.type,
    )
    if arm.algorithm is not None:
        cached = [table for table in bench.profile.tables if table.name not in whole]
        left = bench.profile.hot_bytes - sum(table.hot_bytes for table in whole.values())
        factor = left / sum(table.row_count * table.row_bytes for table in cached)
        for table in cached:
            plan[table.name].cache_params = CacheParams(
                arm.algorithm, factor, prefetch_pipeline=arm.prefetches
            )
    return DistributedModelParallel(
        model,
        device=bench.device,
        plan=ShardingPlan({"model.sparse_arch.embedding_bag_collection": plan}),
        sharders=[sharder],
        init_data_parallel=False,  # one rank has nobody to average gradients with
    )


class Meter:
    """Energy and traffic of the GPU, by NVML; None where there is none, or it does not say."""

    def __init__(self, device: torch.device) -> None:
        self._device: Any = None
        self.sees_link = False
        if device.type == "cuda":
            with suppress(GpuError):
                uuid = str(torch.cuda.get_device_properties(device).uuid)
                self._device = Nvml().open(uuid)
                time.sleep(0.5)  # less is too short for it
                self.sees_link = self.read()["link_bytes"] is not None

    @property
    def about(self) -> dict[str, str] | None:
        """The device, its driver, and whether GPM is there."""
        return dict(self._device.about) if self._device is not None else None

    def read(self) -> dict[str, float | None]:
        """Joules, and bytes over the host's link both ways, since the last call."""
        values: dict[str, float] = {}
        with suppress(GpuError):
            values = self._device.read().values if self._device is not None else {}
        seconds = values.get("gpu/window_ns", 0.0) / 1e9
        energy = values.get("gpu/energy_mj")
        sent, received = (values.get(f"gpu/pcie_{way}_bytes") for way in ("sent", "received"))
        known = sent is not None and received is not None
        return {
            "joules": None if energy is None else energy * seconds / 1000,
            "link_bytes": (sent + received) * seconds if known else None,  # type: ignore[operator]
        }


class Bench:
    """All arms on one device.

    Raises:
        SettingError: tables of all arms do not fit the host's memory.
    """

    def __init__(self, setup: Setup, device: torch.device, names: list[str]) -> None:
        self.setup, self.device, self._names = setup, device, names
        self.meter = Meter(device)
        self.inputs = Inputs(setup)
        self._check_memory()
        self.profile = calibrate(
            self.inputs.draw(setup.sample), self.inputs.configs, setup.hot_bytes, progress=False
        )
        batches = self._pinned(self.inputs.batches)
        packed = self._pinned(list(pack(batches, self.profile, seed=setup.seed)))
        runs = self._pinned(list(pack(batches, self.profile, scheduler=ShuffleScheduler())))
        slots, first = SlotMap.from_profile(self.profile), self.inputs.batches[:CHECKED_STEPS]
        apart = [Batch(b.dense_features, split(b.sparse_features, slots), b.labels) for b in first]
        self._feeds = {
            "": (self._pinned(first), batches),
            "overlay": (self._pinned(apart), packed),
            "partitioned": (self._pinned(apart), packed),
            "paper": (self._pinned(apart), runs),  # where a swap costs a copy of the hot rows
        }
        self._trainers: dict[str, Trainer] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._rounds: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def run(self, save: Callable[[dict[str, Any]], None]) -> None:
        """Build the arms, and measure them in turn; one that fails is told and left out.

        What is known is saved after each round: time on a GPU may end before the last.
        """
        for name in self._names:
            self._facts[name] = {}
            self._try(name, self._build)
            print(name, json.dumps(self._facts[name]), flush=True)
        for i in range(self.setup.rounds):
            for name in self._names[i % len(self._names) :] + self._names[: i % len(self._names)]:
                if name in self._trainers:
                    self._try(name, self._round)
            save(self._results())

    def _check_memory(self) -> None:
        """Whether the tables of all arms fit the host, and the pinned inputs beside them."""
        arms = sum(
            ARMS[name].kernel != "fused" or self.device.type == "cpu" for name in self._names
        )
        configs = self.inputs.configs
        rows_bytes = sum(c.num_embeddings * (4 * c.embedding_dim + 4) for c in configs)
        lines = Path("/proc/meminfo").read_text().splitlines()
        free_bytes = next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")) << 10
        if arms * rows_bytes > 0.8 * free_bytes:
            raise SettingError(
                "the tables of all arms do not fit the memory of this machine",
                f"{arms} arms of {rows_bytes:,} bytes each, {free_bytes:,} bytes free",
                "give a smaller --scale, or fewer --arm",
            )

    def _pinned(self, batches: list[Batch]) -> list[Batch]:
        return [b.pin_memory() for b in batches] if self.device.type == "cuda" else batches

    def _try(self, name: str, do: Callable[[str], None]) -> None:
        try:
            do(name)
        except SettingError as error:
            self._facts[name]["left_out"] = f"{error.failed}: {error.found}"
        except Exception as error:  # one arm of many: the others are still worth their time
            self._facts[name]["error"] = f"{type(error).__name__}: {error}"[:2000]
            print(name, traceback.format_exc(), flush=True)
            self._trainers.pop(name, None)

    def _build(self, name: str) -> None:
        arm, facts = ARMS[name], self._facts[name]
        if arm.prefetches and self.device.type == "cpu":
            facts["left_out"] = "prefetching needs a GPU"
            return
        before = self._allocated()
        trainer = Trainer(arm, self, Feed(*self._feeds[arm.mode]))
        facts["device_bytes"] = None if before is None else (self._allocated() or 0) - before
        facts["first_losses"] = [float(trainer.step()[2]) for _ in range(CHECKED_STEPS)]
        for _ in range(self.setup.warmup):
            trainer.step()
        self._trainers[name] = trainer

    def _round(self, name: str) -> None:
        """Some steps of an arm."""
        trainer, steps = self._trainers[name], []
        self._wait()
        missed = trainer.missed_rows()
        self.meter.read()
        begin, marks = time.perf_counter(), [self._mark()]
        for _ in range(self.setup.steps):
            steps.append(trainer.step()[:2])
            marks.append(self._mark())
        self._wait()
        seconds, read = time.perf_counter() - begin, self.meter.read()
        inputs = sum(count for _, count in steps)
        step_us = defaultdict(list)
        for (kind, count), mark, next_mark in zip(steps, marks, marks[1:], strict=False):
            if count == self.setup.batch_size:  # the last of a window may be smaller
                step_us[kind].append(_between_us(mark, next_mark))
        joules, link, source = read["joules"], read["link_bytes"], "PCIe counters, both ways"
        if link is None and missed is not None:
            link = float((trainer.missed_rows() or 0) - missed) * self.setup.dim * 4
            source = "rows that missed the cache, one way"
        self._rounds[name].append(
            {
                "samples_per_s": inputs / seconds,
                "step_us": dict(step_us),
                "pure_step_ratio": sum(kind == "pure" for kind, _ in steps) / len(steps),
                "joules_per_1000_inputs": None if joules is None else joules / inputs * 1000,
                "link_bytes_per_input": None if link is None else link / inputs,
                "link_source": None if link is None else source,
            }
        )

    def _results(self) -> dict[str, Any]:
        arms = {name: facts | self._summary(name) for name, facts in self._facts.items()}
        speeds = {
            name: [r["samples_per_s"] for r in rounds] for name, rounds in self._rounds.items()
        }
        caching = [name for name in speeds if name.startswith(("uvm", "caching"))]
        best = max(caching, key=lambda name: statistics.median(speeds[name]), default=None)
        for name, facts in arms.items():
            for what, other in (("cpu", "cpu"), ("best_uvm", best), ("hbm", "hbm")):
                ratios = [
                    a / b
                    for a, b in zip(speeds.get(name, []), speeds.get(other or "", []), strict=False)
                ]
                facts[f"speed_over_{what}"] = quartiles(ratios)
        profile = self.profile
        assert profile.predictions is not None
        return {
            "setup": asdict(self.setup),
            "device": self.meter.about,
            "tables": {
                "bytes": sum(t.row_count * t.row_bytes for t in profile.tables),
                "rows": sum(t.row_count for t in profile.tables),
                "hot_bytes": profile.hot_bytes,
                "hot_rows": sum(len(t.hot_ids) for t in profile.tables),
                "wholly_hot": sum(t.is_wholly_hot for t in profile.tables),
                "hot_lookup_ratio": profile.predictions.hot_lookup_ratio.value,
                "all_hot_ratio": profile.predictions.all_hot_ratio.value,
            },
            "best_uvm": best,
            "arms": arms,
        }

    def _summary(self, name: str) -> dict[str, Any]:
        rounds = self._rounds.get(name, [])
        kinds = sorted({kind for r in rounds for kind in r["step_us"]})
        plain = (
            "samples_per_s",
            "pure_step_ratio",
            "joules_per_1000_inputs",
            "link_bytes_per_input",
        )
        return {
            **{what: quartiles([r[what] for r in rounds if r[what] is not None]) for what in plain},
            "link_source": rounds[0]["link_source"] if rounds else None,
            "step_us": {
                kind: quartiles([t for r in rounds for t in r["step_us"].get(kind, [])])
                for kind in kinds
            },
        }

    def _allocated(self) -> int | None:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _mark(self) -> Any:
        """A moment: of the GPU's main stream, without waiting for it, or of the host."""
        if self.device.type == "cpu":
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def _between_us(mark: Any, next_mark: Any) -> float:
    """Microseconds between two moments."""
    if isinstance(mark, float):
        return float(next_mark - mark) * 1e6
    return float(mark.elapsed_time(next_mark)) * 1e3


def quartiles(values: list[float]) -> dict[str, float] | None:
    """Median and quartiles; None where nothing is known."""
    if not values:
        return None
    low, middle, high = np.quantile(values, (0.25, 0.5, 0.75)).tolist()
    return {"median": middle, "quartile1": low, "quartile3": high, "count": len(values)}


def versions() -> dict[str, str | None]:
    """Of what was measured."""
    found: dict[str, str | None] = {"torch": torch.__version__, "cuda": torch.version.cuda}
    for name in ("torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "triton"):
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def compare(
    setup: Setup, device: torch.device, names: list[str], save: Callable[[dict[str, Any]], None]
) -> None:
    """Run the arms in a process group of one rank."""
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, f"file://{folder}/store", rank=0, world_size=1)
        try:
            Bench(setup, device, names).run(save)
        finally:
            dist.destroy_process_group()


def main() -> None:
    """Measure, and write down what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="on the host, with tiny tables")
    parser.add_argument("--arm", choices=ARMS, action="append", help="only this one, and others")
    parser.add_argument("--out", type=Path, help="file to write; by default results/fae-gpu-DATE")
    for field in fields(Setup):
        kind = type(field.default)
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind)
    arguments = parser.parse_args()
    given = {f.name: getattr(arguments, f.name) for f in fields(Setup)}
    setup = DRY_RUN if arguments.dry_run else Setup()
    setup = replace(setup, **{name: value for name, value in given.items() if value is not None})
    if not (arguments.dry_run or torch.cuda.is_available()):
        parser.error("no GPU is here; --dry-run goes through the arms on the host")
    logging.disable(logging.WARNING)  # TorchRec tells of every module that it shards
    device = torch.device("cpu" if arguments.dry_run else "cuda:0")
    facts = {"date": time.strftime("%Y-%m-%d"), "dry_run": arguments.dry_run}
    facts |= {"machine": host_facts(), "versions": versions(), "load_before": os.getloadavg()[0]}
    path = arguments.out or RESULTS / f"fae-gpu-{facts['date']}.json"
    if arguments.dry_run and arguments.out is None:
        path = Path(os.devnull)

    def save(found: dict[str, Any]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(facts | found, indent=2) + "\n")

    compare(setup, device, arguments.arm or list(ARMS), save)
    print(f"written: {path}")


if __name__ == "__main__":
    main()
