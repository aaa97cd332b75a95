"""Checks that the hot rows of a plan's tables can be on the device, and be exact."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.types import ParameterSharding, ShardingEnv, ShardingEnv2D, ShardingType
from torchrec.modules.embedding_configs import (
    BaseEmbeddingConfig,
    DataType,
    PoolingType,
    data_type_to_sparse_type,
)

from trainobs.core.errors import FAEError
from trainobs.fae.profile.model_tables import odd_rows
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.layout import HotLayout
from trainobs.fae.sharding.torchrec_private import Plan, has_optimizer

_CACHING = "fused_uvm_caching"
_DENSE = "dense"
_KERNELS = ("fused", "fused_uvm", _CACHING)
OPTIMIZERS = (
    EmbOptimType.EXACT_SGD,
    EmbOptimType.EXACT_ADAGRAD,
    EmbOptimType.EXACT_ROWWISE_ADAGRAD,
    EmbOptimType.ADAM,
    EmbOptimType.PARTIAL_ROWWISE_ADAM,
)
_OUTPUTS = (torch.float32, torch.float16, torch.bfloat16)
_DECAYS = (WeightDecayMode.NONE, WeightDecayMode.L2, WeightDecayMode.DECOUPLE)
DIVIDED_BY_COLLECTION = (ShardingType.ROW_WISE.value, ShardingType.TABLE_ROW_WISE.value)
"""Plans under which the collection divides sums for means; under others FBGEMM pools means."""

_CANNOT = "cannot shard with hot rows"

_Refusal = tuple[bool, str, str]
"""Whether it applies, what was found, and what to do."""


def check_plan(
    configs: Sequence[BaseEmbeddingConfig],
    plan: Plan,
    env: ShardingEnv,
    profile: FAEProfile,
    mode: str,
    is_weighted: bool = False,
) -> None:
    """Refuse what could not be exact.

    Args:
        configs: of the collection's tables.
        plan: by table.
        env: the ranks.
        profile: which rows are hot.
        mode: in which hot rows are kept.
        is_weighted: whether lookups have weights.

    Raises:
        FAEError: see its message.
    """
    replicated = replicated_tables(plan)
    profile.check(config for config in configs if config.name not in replicated)
    if isinstance(env, ShardingEnv2D):
        raise FAEError(
            _CANNOT,
            "2D parallelism, whose groups of ranks average their tables, and not their hot rows "
            "(github.com/meta-pytorch/torchrec/pull/2554)",
            "shard in one process group, by DistributedModelParallel",
        )
    if env.process_group is None:
        raise FAEError(
            _CANNOT,
            f"{type(env).__name__} without a process group",
            "shard in a process group: ShardingEnv.from_process_group",
        )
    check_replicated([config for config in configs if config.name in replicated], profile)
    for config in configs:
        if config.name in replicated:
            _refuse(config.name, [_replicated_sequences(config)])
        else:
            _refuse(config.name, _refusals(config, plan[config.name], mode, is_weighted))


def check_replicated(configs: Iterable[BaseEmbeddingConfig], profile: FAEProfile) -> None:
    """Refuse data_parallel tables whose lookups packed batches would have elsewhere.

    Args:
        configs: of such tables.
        profile: which rows are hot.

    Raises:
        FAEError: see its message.
    """
    hot = {feature: table.name for table in profile.tables for feature in table.features}
    for config in configs:
        _refuse(config.name, _replicated_refusals(config, profile, hot))


def replicated_tables(plan: Plan) -> frozenset[str]:
    """Tables that TorchRec keeps whole on every rank, and that never have hot rows."""
    kind = ShardingType.DATA_PARALLEL.value
    return frozenset(name for name, of_table in plan.items() if of_table.sharding_type == kind)


def check_optimizers(infos: Iterable[EmbeddingShardingInfo], device: torch.device) -> None:
    """Refuse optimizers that need more than a row's own state and gradient to train it.

    Args:
        infos: of the collection's tables.
        device: where the hot rows are to be.

    Raises:
        FAEError: an optimizer does so, or was not tested with hot rows.
    """
    for info in infos:
        by_replicas = info.param_sharding.sharding_type == ShardingType.DATA_PARALLEL.value
        refusals = [_dropped_optimizer(info)] if by_replicas else _optimizer_refusals(info, device)
        _refuse(info.embedding_config.name, refusals)


def _optimizer_refusals(info: EmbeddingShardingInfo, device: torch.device) -> list[_Refusal]:
    """All that could be wrong with the optimizer of a table."""
    settings, optimizer = info.fused_params or {}, optimizer_of(info)
    decay = settings.get("weight_decay_mode", _DECAYS[0])
    odd = {
        "weight_decay_mode": decay not in _DECAYS,
        "global_weight_decay": settings.get("global_weight_decay") is not None,
        "extra_optimizer_config": settings.get("extra_optimizer_config") is not None,
        "output_dtype": _output_type_of(settings) not in _OUTPUTS,
    }
    leave_it_out = "leave it out, or use the stock sharder"
    return [
        (
            optimizer not in OPTIMIZERS,
            f"optimizer {optimizer}, which was not tested with hot rows",
            "train it with SGD, Adagrad, Adam or their row-wise kinds, or with the stock sharder",
        ),
        (
            bool(settings.get("gradient_clipping"))
            and info.embedding_config.pooling is PoolingType.MEAN
            and info.param_sharding.sharding_type not in DIVIDED_BY_COLLECTION,
            "gradient_clipping of means that FBGEMM pools, before it divides their gradients",
            "plan the table row_wise, or pool sums",
        ),
        (
            device.type == "cpu"
            and optimizer is EmbOptimType.EXACT_ROWWISE_ADAGRAD
            and bool(settings.get("weight_decay"))
            and decay != _DECAYS[0],
            "row-wise Adagrad with weight_decay on hosts, where FBGEMM decays the rows of a table "
            "only if several features look up the tables of its kernel",
            "leave out the decay, train on GPUs, or use the stock sharder",
        ),
        *((is_odd, f"{name}={settings.get(name)}", leave_it_out) for name, is_odd in odd.items()),
    ]


def optimizer_of(info: EmbeddingShardingInfo) -> Any:
    """The fused optimizer of a table, as FBGEMM takes it."""
    return (info.fused_params or {}).get("optimizer", EmbOptimType.EXACT_SGD)


def output_type(infos: Iterable[EmbeddingShardingInfo]) -> torch.dtype:
    """The type of embeddings, which a plan may give: of all tables.

    Raises:
        FAEError: tables have different ones.
    """
    types = {info.embedding_config.name: _output_type_of(info.fused_params or {}) for info in infos}
    if len(set(types.values())) > 1:
        raise FAEError(
            _CANNOT,
            f"output_dtype {sorted(map(str, set(types.values())))} of tables of one collection",
            "give all tables of a collection one output_dtype",
        )
    return next(iter(types.values()))


def _output_type_of(settings: Mapping[str, Any]) -> torch.dtype:
    """The type of embeddings under a table's settings."""
    given = settings.get("output_dtype", SparseType.FP32)
    given = data_type_to_sparse_type(given) if isinstance(given, DataType) else given
    kind: torch.dtype = given.as_dtype()
    return kind


def check_replicas(layout: HotLayout, device: torch.device) -> None:
    """Refuse replicas that do not stay equal: a GPU rounds half precision by random numbers.

    Args:
        layout: of rows that several ranks have.
        device: where they are to be; hosts round to the nearest number.

    Raises:
        FAEError: ranks would round differently.
    """
    for kernel in layout.kernels:
        rounds = kernel.settings.get("stochastic_rounding", True)  # FBGEMM's default
        refusal = (
            device.type != "cpu" and kernel.data_type != DataType.FP32 and rounds,
            f"rows of {kernel.data_type} with stochastic rounding, for which each rank has random "
            "numbers of its own, so that their hot rows drift apart",
            "give the sharder fused_params={'stochastic_rounding': False}, or mode "
            "'partitioned', in which each row is on one rank",
        )
        _refuse(kernel.slabs[0].table, [refusal])


def _refusals(
    config: BaseEmbeddingConfig, sharding: ParameterSharding, mode: str, is_weighted: bool
) -> list[_Refusal]:
    """All that could be wrong with a table."""
    kind, kernel = sharding.sharding_type, sharding.compute_kernel
    is_mean = getattr(config, "pooling", None) is PoolingType.MEAN
    odd = odd_rows(config)
    return [
        (
            kernel == _DENSE,
            f"compute kernel {kernel!r}, as for a table that an optimizer of the model trains",
            "apply_optimizer_in_backward to its parameters: TorchRec then plans it fused",
        ),
        (
            kernel not in _KERNELS,
            f"compute kernel {kernel!r}",
            f"plan it with one of {', '.join(_KERNELS)}",
        ),
        (
            odd is not None,
            odd or "",
            "keep it as float32 or float16 in a table of fixed size, or use the stock sharder",
        ),
        (
            mode == "paper" and kernel == _CACHING,
            f"compute kernel {kernel!r} in mode 'paper', in which tables look up hot rows too: the "
            "cache would keep rows that are older than the hot ones",
            "plan it fused_uvm, or shard in another mode",
        ),
        (
            is_mean and kind == ShardingType.GRID_SHARD.value,
            "means under grid_shard, where TorchRec gives sums",
            "plan it row_wise or column_wise",
        ),
        (
            is_mean and is_weighted and kind not in DIVIDED_BY_COLLECTION,
            f"weighted means under {kind}, whose gradients FBGEMM does not divide",
            "plan it row_wise, or pool sums and give weights that add up to 1",
        ),
    ]


def _replicated_refusals(
    config: BaseEmbeddingConfig, profile: FAEProfile, hot: Mapping[str, str]
) -> list[_Refusal]:
    """What could be wrong with a data_parallel table.

    `hot` has the table of the profile that each feature looks up.
    """
    shared = [name for name in config.feature_names if name in hot]
    return [
        (
            any(table.name == config.name for table in profile.tables),
            "a data_parallel plan, and the table in the profile",
            "calibrate without it: each rank has all of its rows anyway",
        ),
        (
            bool(shared),
            f"a data_parallel plan, and feature {', '.join(shared[:1])!r}, whose hot lookups go to "
            f"table {', '.join(hot[name] for name in shared[:1])!r} alone",
            "plan both alike, or give the feature another name for one of them",
        ),
    ]


def _replicated_sequences(config: BaseEmbeddingConfig) -> _Refusal:
    return (
        not hasattr(config, "pooling"),
        "a data_parallel plan of a table of sequences, which TorchRec 1.8 cannot train on hosts, "
        "so that it was not tried",
        "plan it table_wise",
    )


def _dropped_optimizer(info: EmbeddingShardingInfo) -> _Refusal:
    return (
        has_optimizer(info.param),
        "a data_parallel plan, under which TorchRec drops the optimizer of "
        "apply_optimizer_in_backward and leaves the table untrained",
        "train it with an optimizer of the model's other parameters, or plan it table_wise",
    )


def _refuse(table: str, refusals: Iterable[_Refusal]) -> None:
    for applies, found, do in refusals:
        if applies:
            raise FAEError(f"{_CANNOT} of table {table!r}", found, do)
