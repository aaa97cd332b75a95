"""Tells of collections that DistributedModelParallel shards without their hot rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.types import ShardedModule
from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

from trainobs.core.errors import FAEError, a_type, with_article
from trainobs.core.hot_rows import ATTRIBUTE
from trainobs.core.log import logger
from trainobs.core.once import Once
from trainobs.fae.profile.model_tables import some_of
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.torchrec_private import WRAPPED, configs_in

_watch = Once()


def watch_wrapping() -> None:
    """Tell of them wherever a model is wrapped from here on.

    A sharder is not asked about collections of another class, nor where another one of its own
    class comes later. So the model is looked through as it becomes a part of its wrapper.
    """
    if _watch.first():
        register_module_module_registration_hook(_look_through)


def _look_through(wrapper: nn.Module, name: str, model: nn.Module | None) -> None:
    if not isinstance(wrapper, DistributedModelParallel) or name != WRAPPED or model is None:
        return
    ours = [sharder for sharder in wrapper.sharders if _is_ours(sharder)]
    if not ours or name in wrapper._modules or wrapper._env.rank:  # DDP comes around it later
        return
    taken = {sharder.module_type: sharder for sharder in wrapper.sharders}
    for path, module in model.named_modules():
        if hasattr(module, ATTRIBUTE):
            continue
        tables = sorted({name for each in ours for name in _hot_tables(module, each.profile)})
        if tables:
            found, do = _reason(module, taken, {each.module_type for each in ours})
            logger.warning(
                "hot rows of %s are not used\n  found: %s, %s\n  do:    %s; or calibrate without "
                "its tables. Do not give it packed batches",
                some_of(tables),
                path or "the model",
                found,
                do,
            )


def _is_ours(sharder: Any) -> bool:
    return isinstance(getattr(sharder, "profile", None), FAEProfile)


def _hot_tables(module: nn.Module, profile: FAEProfile) -> Iterator[str]:
    """Tables of a collection that the profile has hot rows of."""
    for config in configs_in(module):
        try:
            profile.check([config])
        except FAEError:  # another one of that name
            continue
        if config.name in profile.overlaid and len(profile.table(config.name).hot_ids):
            yield config.name


def _reason(module: Any, taken: Mapping[type[nn.Module], Any], ours: set[type]) -> tuple[str, str]:
    """Why it has no hot rows, and what to do."""
    is_whole = not isinstance(module, ShardedModule)
    pools = hasattr(configs_in(module)[0], "pooling")
    kind = base = EmbeddingBagCollection if pools else EmbeddingCollection
    if is_whole:
        kind = type(module)  # TorchRec goes by the class itself
    if kind not in ours:
        make = f"make it {with_article(base.__name__)}"
        return (
            f"{with_article(kind.__name__)}, a class for which no sharder with a profile was given",
            f"give FAE{base.__name__}Sharder(profile) too" if kind is base else make,
        )
    if not _is_ours(taken[kind]):
        return (
            f"for which TorchRec takes the last sharder of its class, {a_type(taken[kind])}",
            "leave that one out, or put FAE's behind it",
        )
    if is_whole:
        return "which the plan does not shard", "plan with FAE's sharders, or add it to the plan"
    return "sharded by the sharder of a module around it", "give FAE's for that module"
