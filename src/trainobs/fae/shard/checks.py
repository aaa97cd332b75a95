"""Checks that the hot rows of a plan's tables can be on the device, and be exact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardingEnv2D, ShardingType
from torchrec.modules.embedding_configs import (
    BaseEmbeddingConfig,
    DataType,
    EmbeddingBagConfig,
    PoolingType,
)

from trainobs.core.errors import FAEError
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.shard.layout import MOST_KERNELS, HotLayout
from trainobs.fae.shard.means import DIVIDED_BY_COLLECTION
from trainobs.fae.shard.planner import check_room

_CACHING = EmbeddingComputeKernel.FUSED_UVM_CACHING.value
_KERNELS = (
    EmbeddingComputeKernel.FUSED.value,
    EmbeddingComputeKernel.FUSED_UVM.value,
    _CACHING,
)
_PRECISIONS = (DataType.FP32, DataType.FP16)
_OPTIMIZERS = (
    EmbOptimType.EXACT_SGD,
    EmbOptimType.EXACT_ADAGRAD,
    EmbOptimType.EXACT_ROWWISE_ADAGRAD,
)
_OUTPUT = SparseType.FP32
_DECAYS = (WeightDecayMode.NONE, WeightDecayMode.L2, WeightDecayMode.DECOUPLE)


def check_plan(
    configs: Sequence[BaseEmbeddingConfig],
    plan: Mapping[str, ParameterSharding],
    env: ShardingEnv,
    profile: FAEProfile,
    mode: str,
) -> None:
    """Refuse what could not be exact.

    Args:
        configs: of the collection's tables.
        plan: by table.
        env: the ranks.
        profile: which rows are hot.
        mode: in which hot rows are kept.

    Raises:
        FAEError: see its message.
    """
    profile.check(configs)
    if isinstance(env, ShardingEnv2D) or env.process_group is None:
        raise FAEError(
            "cannot keep hot rows of these tables on the device",
            f"{type(env).__name__} {'with' if env.process_group else 'without'} a process group",
            "shard in one process group: ShardingEnv.from_process_group",
        )
    for config in configs:
        _check_table(config, plan[config.name])
        if mode == "paper" and plan[config.name].compute_kernel == _CACHING:
            _refuse(
                config.name,
                f"compute kernel {_CACHING!r} in mode 'paper', in which tables look up hot rows "
                "too: the cache would keep rows that are older than the hot ones",
                "plan it fused_uvm, or shard in another mode",
            )


def check_means(
    configs: Iterable[EmbeddingBagConfig],
    plan: Mapping[str, ParameterSharding],
    is_weighted: bool,
) -> None:
    """Refuse means that the stock collection gets wrong, so that nothing can be equal to them.

    Args:
        configs: of the collection's tables.
        plan: by table.
        is_weighted: whether lookups have weights.

    Raises:
        FAEError: see its message.
    """
    for config in configs:
        sharding = plan[config.name].sharding_type
        if config.pooling is not PoolingType.MEAN:
            continue
        if sharding == ShardingType.GRID_SHARD.value:
            _refuse(
                config.name,
                "means under grid_shard, where TorchRec gives sums",
                "plan it row_wise or column_wise",
            )
        if is_weighted and sharding not in DIVIDED_BY_COLLECTION:
            _refuse(
                config.name,
                f"weighted means under {sharding}, whose gradients FBGEMM does not divide",
                "plan it row_wise, or pool sums and give weights that add up to 1",
            )


def check_optimizers(infos: Iterable[EmbeddingShardingInfo]) -> None:
    """Refuse optimizers that need more than a row's own state and gradient to train it.

    Args:
        infos: of the collection's tables.

    Raises:
        FAEError: an optimizer does so, or was not tested with hot rows.
    """
    for info in infos:
        _check_optimizer(info.embedding_config.name, info.fused_params or {})


def _check_optimizer(table: str, settings: Mapping[str, Any]) -> None:
    optimizer = settings.get("optimizer", EmbOptimType.EXACT_SGD)
    if optimizer not in _OPTIMIZERS:
        _refuse(
            table,
            f"optimizer {optimizer}; it counts steps, and hot and cold rows take different ones, or "
            "it was not tested",
            "train it with SGD, Adagrad or row-wise Adagrad, or with the stock sharder",
        )
    for name, is_fine in (
        ("weight_decay_mode", settings.get("weight_decay_mode", _DECAYS[0]) in _DECAYS),
        ("gradient_clipping", not settings.get("gradient_clipping")),
        ("global_weight_decay", settings.get("global_weight_decay") is None),
        ("output_dtype", settings.get("output_dtype", _OUTPUT) == _OUTPUT),
    ):
        if not is_fine:
            _refuse(table, f"{name}={settings[name]}", "leave it out, or use the stock sharder")


def check_layout(layout: HotLayout, profile: FAEProfile, device: torch.device) -> None:
    """Check that the device has room, and the kernels can be made.

    Raises:
        FAEError: the device has no room, or tables have too many kinds of rows.
    """
    if len(layout.kernels) > MOST_KERNELS:
        raise FAEError(
            "cannot keep hot rows of these tables on the device",
            f"{len(layout.kernels)} kinds of rows by width, precision and optimizer settings",
            f"give the tables at most {MOST_KERNELS} kinds",
        )
    tables = {slab.table for kernel in layout.kernels for slab in kernel.slabs}
    check_room(sum(profile.table(name).hot_bytes for name in tables), device)


def check_replicas(layout: HotLayout, device: torch.device) -> None:
    """Refuse replicas that do not stay equal: a GPU rounds half precision by random numbers.

    Args:
        layout: of rows that several ranks have.
        device: where they are to be; hosts round to the nearest number.

    Raises:
        FAEError: ranks would round differently.
    """
    for kernel in layout.kernels:
        rounds = kernel.settings.get("stochastic_rounding", True)  # as FBGEMM has it
        if device.type != "cpu" and kernel.data_type != DataType.FP32 and rounds:
            _refuse(
                kernel.slabs[0].table,
                f"rows of {kernel.data_type} with stochastic rounding, which each rank would do "
                "by random numbers of its own, so that their hot rows drift apart",
                "give the sharder fused_params={'stochastic_rounding': False}, or mode "
                "'partitioned', in which each row is on one rank",
            )


def _check_table(config: BaseEmbeddingConfig, sharding: ParameterSharding) -> None:
    if sharding.sharding_type == ShardingType.DATA_PARALLEL.value:
        _refuse(
            config.name,
            "a data_parallel plan, under which TorchRec drops the optimizer of "
            "apply_optimizer_in_backward, and needs every step to look the table up",
            "plan it table_wise; where the profile has all its rows, each rank keeps them anyway",
        )
    if sharding.compute_kernel not in _KERNELS:
        _refuse(
            config.name,
            f"compute kernel {sharding.compute_kernel!r}",
            f"plan it with one of {', '.join(_KERNELS)}",
        )
    if config.data_type not in _PRECISIONS or getattr(config, "use_virtual_table", False):
        _refuse(
            config.name,
            f"rows of {config.data_type}"
            + (", virtual" if config.data_type in _PRECISIONS else ""),
            "keep it as float32 or float16 in a table of fixed size, or use the stock sharder",
        )


def _refuse(table: str, found: str, do: str) -> None:
    raise FAEError(f"cannot keep hot rows of table {table!r} on the device", found, do)
