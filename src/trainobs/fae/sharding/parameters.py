"""The parameters of a collection's tables, which show the hot rows to whoever uses them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torchrec.distributed.composable.table_batched_embedding_slice import (
    TableBatchedEmbeddingSlice,
)

from trainobs.fae.sharding.torchrec_private import plain_operators

_SHAPES = frozenset(  # what asks a tensor for no value
    {"size", "dim", "numel", "stride", "element_size", "is_contiguous", "is_floating_point"}
    | {"register_hook", "retain_grad", "requires_grad_", "__len__", "__hash__"}
)
_SHOW = "_show_hot_rows"
_SHARING = (Tensor.data, Tensor.T, Tensor.mT, Tensor.H, Tensor.mH)  # properties that give values


class _Shown(Tensor):
    """A parameter that shows hot rows: a base before TorchRec's."""

    @staticmethod
    def _show_hot_rows() -> None:
        """What a copy has, which is of no collection."""

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an operator of torch on the parameter."""
        with plain_operators():
            if _uses_values(func):
                for argument in (*args, *(kwargs or {}).values()):
                    parts = argument if isinstance(argument, (list, tuple)) else (argument,)
                    for part in parts:
                        if isinstance(part, _Shown):
                            part._show_hot_rows()
            return func(*args, **(kwargs or {}))


class ShownSlice(
    _Shown,
    TableBatchedEmbeddingSlice,  # type: ignore[misc]  # TorchRec has no types
):
    """A table's parameter, as TorchRec makes it, with the newest values of its hot rows.

    They are written to the table before an operator reads or writes the parameter, also through
    `data`, which gives a tensor that does so no more.
    """


class ShownElsewhere(_Shown, nn.Parameter):
    """The empty parameter of a table that other ranks have.

    A write to it tells that there is one on all ranks (`TableWrites`): hot rows that this rank has
    trained must be in the tables by then.
    """


_SHOWN = {TableBatchedEmbeddingSlice: ShownSlice, nn.Parameter: ShownElsewhere}


def show_in(module: nn.Module, show: Callable[[], None], but: Collection[str] = ()) -> None:
    """Have the tables' parameters of a sharded collection call `show` before they are used.

    Args:
        module: the collection.
        show: what they call.
        but: tables whose parameters do not.
    """
    for name, parameter in module.named_parameters():
        shown = _SHOWN.get(type(parameter))
        if shown is not None and name.split(".")[-2] not in but:
            parameter.__class__ = shown  # type: ignore[assignment]  # of the same layout
            setattr(parameter, _SHOW, show)


def _uses_values(func: Any) -> bool:
    """Whether an operator reads or writes values, rather than the shape, type or place."""
    if func.__name__ in ("__get__", "__set__", "__delete__"):
        return func.__self__ in _SHARING
    return func.__name__ not in _SHAPES
