"""Finds the embedding tables of a model, and the modules that look their rows up."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from trainobs.core.embedding_table import EmbeddingTable
from trainobs.core.hot_rows import ATTRIBUTE, COLLECTION
from trainobs.core.log import logger
from trainobs.embeddings.sites import ModelEmbeddings, Site, SiteKind, some_of
from trainobs.embeddings.table import Gradient, TablePart, WatchedTable, device_memory, reads

_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
    "DistributedModelParallel": "_dmp_wrapped_module",
    "DMPCollection": "_dmp_wrapped_module",
}
"""Classes that stand for the module in one of their attributes; that name is in no path."""


def find(model: nn.Module, rank: int = 0) -> ModelEmbeddings:
    """All tables of a model and the modules that look them up, in the order of the model.

    Args:
        model: any module, wrapped (DDP, FSDP, torch.compile, DistributedModelParallel) or not.
        rank: this rank, for what lies on others.
    """
    found = ModelEmbeddings()
    compiled_before = _dynamo_has_compiled()
    scripted: list[str] = []
    for module, path, hidden in _walk(model, "", False):
        site_and_tables = _describe(module, path, rank)
        if site_and_tables:
            site, tables = site_and_tables
            is_scripted = site.kind is SiteKind.SCRIPTED
            scripted += [path or type(module).__name__] * is_scripted
            site.unseen = is_scripted or has_own_forward(module, site.kind)
            site.blind = hidden or compiled_before or site.unseen
            found.add(site, tables)
    if scripted:
        logger.warning(
            "trainobs does not count lookups of %s; the training goes on\n"
            "  found: torch.jit has scripted or traced what looks them up, and calls no hooks\n"
            "  do:    observe and train the model that it was made of",
            some_of(scripted),
        )
    return found


def sites_of(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """The modules of a model that look rows up, and their paths."""
    for module, path, _ in _walk(model, "", False):
        if _kind(module) is not None:
            yield module, path or type(module).__name__


def _walk(root: nn.Module, path: str, hidden: bool) -> Iterator[tuple[nn.Module, str, bool]]:
    """Each module once, outermost first; nothing below one that `_describe` knows."""
    seen: set[int] = set()
    stack = [(root, path, hidden)]
    while stack:
        module, path, hidden = stack.pop()
        inner = _wrapped(module)
        hidden = hidden or _compiled(module)
        if inner is not None:
            stack.append((inner, path, hidden))
            continue
        if id(module) in seen:
            continue
        seen.add(id(module))
        yield module, path, hidden
        if _kind(module) is None:
            hidden = hidden or _is_of("torchrec.", module, "ShardedModule")
            children = [
                (child, f"{path}.{name}" if path else name, hidden)
                for name, child in module.named_children()
            ]
            stack += reversed(children)


def _wrapped(module: nn.Module) -> nn.Module | None:
    for cls in type(module).__mro__:
        attribute = _WRAPPERS.get(cls.__name__)
        if attribute and cls.__module__.startswith(("torch.", "torchrec.")):
            inner = getattr(module, attribute, None)
            return inner if isinstance(inner, nn.Module) else None
    return None


def _compiled(module: nn.Module) -> bool:
    """Whether its lookups run in compiled code, which a hook may have come too late for."""
    return type(module).__name__ == "OptimizedModule" or (
        getattr(module, "_compiled_call_impl", None) is not None
    )


def _dynamo_has_compiled() -> bool:
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters.get("frames"))


def _is_of(package: str, one: object, *names: str) -> bool:
    """Whether an object is of one of these classes of a package, which need not be imported."""
    return any(
        cls.__name__ in names and cls.__module__.startswith(package) for cls in type(one).__mro__
    )


def _kind(module: nn.Module) -> SiteKind | None:
    if isinstance(module, nn.Embedding):
        return SiteKind.EMBEDDING
    if isinstance(module, nn.EmbeddingBag):
        return SiteKind.BAG
    if isinstance(module, torch.jit.ScriptModule):
        return SiteKind.SCRIPTED if _plain_weight(module) is not None else None
    serves_hot_rows = hasattr(module, COLLECTION) and hasattr(module, ATTRIBUTE)
    if serves_hot_rows or _is_of("torchrec.", module, *_COLLECTIONS):
        return SiteKind.JAGGED
    return SiteKind.BATCHED if _is_of("fbgemm_gpu.", module, *_KERNELS) else None


def _plain_weight(module: torch.jit.ScriptModule) -> torch.Tensor | None:
    """Of what TorchScript made of an `nn.Embedding` or `nn.EmbeddingBag`."""
    if getattr(module, "original_name", None) not in ("Embedding", "EmbeddingBag"):
        return None
    weight = getattr(module, "weight", None)
    return weight if isinstance(weight, torch.Tensor) and weight.dim() == 2 else None


def has_own_forward(module: nn.Module, kind: SiteKind) -> bool:
    """Whether a user's forward stands in for the known one: ids may be others than its caller's.

    That of an instance is only looked at in torch's modules: TorchRec's pipelines set their own.
    Accelerate's own move ids and weights, and call the known one.
    """
    names = {SiteKind.JAGGED: _COLLECTIONS, SiteKind.BATCHED: tuple(_KERNELS)}
    known = names.get(kind, ("Embedding", "EmbeddingBag"))
    classes: tuple[Any, ...] = type(module).__mro__
    is_set = "forward" in vars(module) and not _is_of(
        "accelerate.hooks", getattr(module, "_hf_hook", None), *_MOVES
    )
    return (kind not in names and is_set) or any(
        cls.forward is not classes[0].forward
        for cls in classes
        if cls.__name__ in known
        and cls.__module__.startswith(("torch.", "torchrec.", "fbgemm_gpu."))
    )


_MOVES = ("AlignDevicesHook", "CpuOffload")  # from one device to another, and no more
_COLLECTIONS = (
    "EmbeddingBagCollection",
    "EmbeddingCollection",
    "ShardedEmbeddingBagCollection",
    "ShardedEmbeddingCollection",
    "FusedEmbeddingBagCollection",
    "FusedEmbeddingCollection",
)


_KERNELS = {
    "SplitTableBatchedEmbeddingBagsCodegen": Gradient.FUSED,
    "DenseTableBatchedEmbeddingBagsCodegen": Gradient.DENSE,
}


def _describe(module: nn.Module, path: str, rank: int) -> tuple[Site, list[WatchedTable]] | None:
    kind = _kind(module)
    if kind is None:
        return None
    site = Site(module, kind, path)
    if kind is SiteKind.JAGGED:
        from trainobs.embeddings.collections import collection_tables

        return site, collection_tables(site, rank)
    if kind is SiteKind.BATCHED:
        return site, _kernel_tables(site, module)
    if isinstance(module, torch.jit.ScriptModule):
        weight = _plain_weight(module)
        assert weight is not None
        return site, [_table(site, weight, *weight.shape)]
    return site, [_plain_table(site, module)]


def _plain_table(site: Site, module: nn.Module) -> WatchedTable:
    """The table of an `nn.Embedding` or `nn.EmbeddingBag`."""
    assert isinstance(module, nn.Embedding | nn.EmbeddingBag)
    site.passed_over = module.padding_idx if isinstance(module, nn.EmbeddingBag) else None
    table = _table(site, module.weight, module.num_embeddings, module.embedding_dim)
    table.gradient = Gradient.SPARSE if module.sparse else Gradient.DENSE
    table.untrained = module.padding_idx
    return table


def _table(site: Site, weight: torch.Tensor, rows: int, dim: int) -> WatchedTable:
    """A table that is one tensor."""
    site.features = {"": [0]}
    memory = device_memory(weight.device)
    row_bytes = dim * weight.element_size()
    info = EmbeddingTable(
        name=site.path or type(site.module).__name__,
        row_count=rows,
        dim=dim,
        row_bytes=row_bytes,
        module=site.path,
        placement=memory,
    )
    part = TablePart(0, memory, 0, rows, row_bytes)
    return WatchedTable(info, reads([part], rows, 0), Gradient.DENSE, weight)


_LOCATIONS = {"DEVICE": "hbm", "MANAGED": "uvm", "MANAGED_CACHING": "uvm_caching", "HOST": "host"}


def _kernel_tables(site: Site, module: Any) -> list[WatchedTable]:
    """The tables of a table-batched kernel of FBGEMM."""
    names = getattr(module, "table_names", None)
    specs = module.embedding_specs
    gradient = next(_KERNELS[c.__name__] for c in type(module).__mro__ if c.__name__ in _KERNELS)
    value_bytes = module.weights_precision.bit_rate() / 8
    mapping = _feature_tables(module, len(specs))
    for feature, table in enumerate(mapping):
        site.features[str(feature)] = [table]
    tables = []
    for index, spec in enumerate(specs):
        rows, dim = spec[0], spec[1]
        memory = (
            _LOCATIONS.get(spec[2].name, spec[2].name.lower())
            if len(spec) > 2
            else device_memory(module.weights.device)
        )
        row_bytes = dim * value_bytes
        name = names[index] if names else f"{site.path}.{index}" if site.path else str(index)
        info = EmbeddingTable(
            name,
            rows,
            dim,
            round(row_bytes),
            site.path,
            tuple(str(f) for f, t in enumerate(mapping) if t == index),
            memory,
        )
        part = TablePart(0, memory, 0, rows, row_bytes)
        weight = module.weights if gradient is Gradient.DENSE else None
        tables.append(WatchedTable(info, reads([part], rows, 0), gradient, weight))
    return tables


def _feature_tables(module: Any, table_count: int) -> list[int]:
    """Table of each feature, from where the kernel says that features' weights begin."""
    mapping = getattr(module, "feature_table_map", None)
    if mapping is not None:
        return [int(table) for table in mapping]
    ends = [int(offset) for offset in module.weights_physical_offsets]
    begins = {offset: table for table, offset in reversed(list(enumerate(ends[:table_count])))}
    return [begins[int(offset)] for offset in module.weights_offsets.tolist()]
