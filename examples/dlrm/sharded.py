"""The DLRM of model.py as TorchRec trains it: tables sharded, their optimizer in the backward."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from columns import CATEGORIES
from model import build_dlrm
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, Topology
from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import ShardingType
from torchrec.models.dlrm import DLRM, DLRMTrain
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.keyed import CombinedOptimizer, KeyedOptimizerWrapper
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

# Not data_parallel: tables that a plan replicates would keep the weights they began with, since
# TorchRec drops the optimizer of the backward pass for them, without a word.
SHARDINGS = [ShardingType.TABLE_WISE.value, ShardingType.ROW_WISE.value]


def build_net(rows: Sequence[int], dim: int, lr: float) -> DLRM:
    """Return a DLRM whose tables are on no device yet, and learn by row-wise Adagrad."""
    net = build_dlrm(rows, dim, table_device=torch.device("meta"))
    tables = net.sparse_arch.embedding_bag_collection
    apply_optimizer_in_backward(RowWiseAdagrad, tables.parameters(), {"lr": lr})
    return net


def shard(
    net: DLRM,
    device: torch.device,
    sharder: EmbeddingBagCollectionSharder | None = None,
    kernels: list[str] | None = None,
) -> DistributedModelParallel:
    """Return the model that computes a batch's loss, with a part of the tables on each rank.

    Args:
        net: on no device yet.
        device: of this rank.
        sharder: TorchRec's own by default.
        kernels: where the tables may be, such as "fused_uvm"; any by default.
    """
    model = DLRMTrain(net)
    sharders = [sharder or EmbeddingBagCollectionSharder()]
    planner = EmbeddingShardingPlanner(
        topology=Topology(world_size=dist.get_world_size(), compute_device=device.type),
        constraints={
            name: ParameterConstraints(sharding_types=SHARDINGS, compute_kernels=kernels)
            for name in CATEGORIES
        },
    )
    plan = planner.collective_plan(model, sharders, dist.group.WORLD)
    return DistributedModelParallel(model, device=device, plan=plan, sharders=sharders)


def build_optimizer(model: DistributedModelParallel, lr: float) -> CombinedOptimizer:
    """Return what optimizes the MLPs, and shows the tables' optimizer to checkpoints."""
    dense = KeyedOptimizerWrapper(
        dict(in_backward_optimizer_filter(model.named_parameters())),
        lambda parameters: torch.optim.Adagrad(parameters, lr),
    )
    return CombinedOptimizer([model.fused_optimizer, dense])
