"""The model of an arm, and what trains it."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

with warnings.catch_warnings():  # FBGEMM for hosts warns of kernels that only devices have
    warnings.simplefilter("ignore")
    from fbgemm_gpu import split_table_batched_embeddings_ops_training as fbgemm
    from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor, KeyedTensor
    from torchrec.datasets.utils import Batch
    from torchrec.distributed import DistributedModelParallel, train_pipeline
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, table_wise
    from torchrec.distributed.types import CacheParams, ShardingPlan
    from torchrec.models.dlrm import DLRM, DLRMTrain
    from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
    from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from benchmarks.fae_gpu.inputs import DENSE_COUNT, fill
from benchmarks.fae_gpu.setup import Arm, Setup
from trainobs.fae import FAEProfile
from trainobs.fae.kjt.split import read_mark
from trainobs.fae.sharding.sharder import FAEEmbeddingBagCollectionSharder

BOTTOM, TOP = (512, 256), (1024, 1024, 512, 256, 1)  # MLPerf's layers
LEARNING_RATE, EPSILON = 0.01, 1e-8


class Task(NamedTuple):
    """What is the same for all arms.

    Attributes:
        counts_misses: whether FBGEMM is to count what a cache misses, which costs a little.
    """

    setup: Setup
    configs: list[EmbeddingBagConfig]
    profile: FAEProfile
    device: torch.device
    counts_misses: bool


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
    """Batches, each once; knows which one a step trained on, since pipelines keep the order."""

    def __init__(self, batches: Iterable[Batch]) -> None:
        self._batches = iter(batches)
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

    def __init__(self, arm: Arm, task: Task, feed: Feed) -> None:
        self.feed, self._device = feed, task.device
        torch.manual_seed(task.setup.seed)
        configs, layers = task.configs, [*BOTTOM, task.setup.dim]
        tables = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        dlrm = DLRM(tables, DENSE_COUNT, layers, list(TOP), dense_device=task.device)
        model: nn.Module = DLRMTrain(dlrm)
        if arm.kernel:
            settings = {"lr": LEARNING_RATE, "eps": EPSILON}
            apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), settings)
            model = _sharded(model, tables, arm, task)
        else:
            dlrm.sparse_arch.embedding_bag_collection = HostTables(configs, task.device)
        dense = [p for name, p in model.named_parameters() if "sparse_arch" not in name]
        self._model, self._optimizer = model, torch.optim.SGD(dense, lr=LEARNING_RATE)
        arguments = (model, self._optimizer, task.device)
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
            loss = self._pipeline.progress(self.feed)[0]
        else:
            batch = next(self.feed)
            dense, labels = (
                part.to(self._device, non_blocking=True)
                for part in (batch.dense_features, batch.labels)
            )
            self._optimizer.zero_grad(set_to_none=True)
            loss, _ = self._model(Batch(dense, batch.sparse_features, labels))
            loss.backward()
            self._optimizer.step()
        return (*self.feed.trained(), loss.detach())

    def train_pass(self, loader: Iterable[Batch]) -> int:
        """Train on all that a loader yields: inputs."""
        self.feed, count = Feed(loader), 0
        while True:
            try:
                count += self.step()[1]
            except StopIteration:
                return count

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
    model: nn.Module, tables: EmbeddingBagCollection, arm: Arm, task: Task
) -> DistributedModelParallel:
    """The model with its tables where the arm has them.

    Without FAE, tables that are wholly hot are on the device, and a cache has the bytes that are
    left, so that no arm is slow for small tables that any plan would keep near.
    """
    fused: dict[str, Any] = {"uvm_host_mapped": True}  # managed memory can hang a device
    if arm.algorithm is not None and task.counts_misses:
        fused["gather_uvm_cache_stats"] = True  # it costs a little
    sharder = EmbeddingBagCollectionSharder(fused_params=fused)
    whole = {table.name: table for table in task.profile.tables if table.is_wholly_hot}
    if arm.mode:
        whole = {}
        mode: Any = arm.mode
        sharder = FAEEmbeddingBagCollectionSharder(task.profile, mode, fused_params=fused)
    kernels = {c.name: "fused" if c.name in whole else arm.kernel for c in task.configs}
    plan = construct_module_sharding_plan(
        tables,
        {name: table_wise(rank=0, compute_kernel=kernel) for name, kernel in kernels.items()},
        sharder=sharder,
        local_size=1,
        world_size=1,
        device_type=task.device.type,
    )
    cached = [table for table in task.profile.tables if table.name not in whole]
    if arm.algorithm is not None and cached:
        left = task.profile.hot_bytes - sum(table.hot_bytes for table in whole.values())
        factor = left / sum(table.row_count * table.row_bytes for table in cached)
        for table in cached:
            plan[table.name].cache_params = CacheParams(
                arm.algorithm, factor, prefetch_pipeline=arm.prefetches
            )
    return DistributedModelParallel(
        model,
        device=task.device,
        plan=ShardingPlan({"model.sparse_arch.embedding_bag_collection": plan}),
        sharders=[sharder],
        init_data_parallel=False,  # one rank has nobody to average gradients with
    )
