"""All names of TorchRec, FBGEMM and torch that `fae/sharding` uses and that are no public API.

Each was read in TorchRec 1.6.1, 1.7.0 and 1.8.0, where it means the same; those of `set_optimizer`
in 1.8.0 alone. Before pyproject.toml allows another version, read them there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
from fbgemm_gpu.split_embedding_configs import EmbOptimType
from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
    SplitTableBatchedEmbeddingBagsCodegen,
)
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder, ShardedEmbeddingCollection
from torchrec.distributed.embedding_sharding import EmbeddingShardingInfo
from torchrec.distributed.embedding_types import ShardedEmbeddingTable
from torchrec.distributed.embeddingbag import (
    ShardedEmbeddingBagCollection,
    _create_mean_pooling_divisor,
)
from torchrec.distributed.fp_embeddingbag import ShardedFeatureProcessedEmbeddingBagCollection
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import Topology
from torchrec.distributed.types import ParameterSharding
from torchrec.distributed.utils import modify_input_for_feature_processor
from torchrec.modules.embedding_modules import (
    EmbeddingBagCollectionInterface,
    EmbeddingCollectionInterface,
)
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.jagged import constant

Plan = Mapping[str, ParameterSharding]  # by table

WRAPPED = "_dmp_wrapped_module"
"""Where DistributedModelParallel has the model."""


def configs_in(module: Any) -> Sequence[Any]:
    """The tables of a collection, sharded by TorchRec or not; none of other modules."""
    if isinstance(module, EmbeddingBagCollectionInterface):
        return list(module.embedding_bag_configs())
    if isinstance(module, EmbeddingCollectionInterface):
        return list(module.embedding_configs())
    if isinstance(module, ShardedEmbeddingBagCollection):
        return list(module._embedding_bag_configs)
    if isinstance(module, ShardedEmbeddingCollection):
        return list(module._embedding_configs)
    return []


class StockSequences:
    """A ShardedEmbeddingCollection of TorchRec.

    Args:
        module: an EmbeddingCollection.
        plan: by table.
        *rest: other arguments of the sharded collection.
        **settings: more of these.

    Attributes:
        module: the sharded collection.
        lookups: its lookup modules, one for each type of sharding, but for data_parallel.
        output_names: names of the embeddings, in the order of the output.
        needs_rows: whether the row comes with each embedding.
    """

    _kind: Any = ShardedEmbeddingCollection
    _path: tuple[str, ...] = ()  # of the tables, where TorchRec asks for it

    def __init__(self, module: Any, plan: Plan, *rest: Any, **settings: Any) -> None:
        self.module = stock = self._kind(module, plan, *rest, **settings)
        # _lookups: in a list, so that torch does not see the modules
        # those of data_parallel tables are wrapped, and have no fused kernel
        self.lookups: list[Any] = [
            lookup for lookup in stock._lookups if not isinstance(lookup, DistributedDataParallel)
        ]
        self._read(stock)

    @classmethod
    def infos(
        cls, module: Any, plan: Plan, fused_params: dict[str, Any] | None
    ) -> list[EmbeddingShardingInfo]:
        """How the plan shards each table, with the settings of its optimizer."""
        grouped = cls._kind.create_grouped_sharding_infos(module, plan, *cls._path, fused_params)
        return list(itertools.chain.from_iterable(grouped.values()))

    def _read(self, stock: Any) -> None:
        # _embedding_names_per_sharding: the shards of a column-wise table have one name
        names = itertools.chain.from_iterable(stock._embedding_names_per_sharding)
        self.output_names: list[str] = list(dict.fromkeys(names))
        self.needs_rows: bool = stock._need_indices

    @property
    def is_prepared(self) -> bool:
        """Whether the collection has seen a batch, or was told the keys of one."""
        # _has_uninitialized_input_dist: set until the first `input_dist`
        return not self.module._has_uninitialized_input_dist

    def prepare(self, keys: list[str]) -> None:
        """Do what the first `input_dist` does, without sending a batch."""
        # _create_input_dist: makes the modules that send lookups, and the order of features
        self.module._create_input_dist(keys)
        self.module._has_uninitialized_input_dist = False

    def send(self, kind: torch.dtype) -> None:
        """Have ranks without tables send and expect embeddings of the type that others send.

        TorchRec has float32 there: gloo then ends the processes in the exchange.
        """
        for lookup in self.lookups:
            # _dummy_embs_tensor: of no values, what a lookup module without tables gives
            none = lookup._dummy_embs_tensor.detach().to(kind)
            lookup._dummy_embs_tensor = none.requires_grad_()

    def share_with(self, outer: nn.Module) -> None:
        """Give a module that holds this one its children, buffers, lookups and dists.

        Parameters, buffers and submodules then have the names that they have in the stock module,
        and pipelines, which look for dists and lookups in what a model has, find them in `outer`.
        The collection adds to these containers, and replaces none.
        """
        # dicts of torch's nn.Module, and lists of ShardedEmbeddingModule
        for name in ("_modules", "_buffers", "_lookups", "_input_dists", "_output_dists"):
            setattr(outer, name, getattr(self.module, name))

    def load_from(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Have the collection turn the values in a state dict into those of its shards."""
        # _load_from_state_dict: nn.Module's step of a load that runs the hooks of one module
        self.module._load_from_state_dict(state_dict, prefix, *rest)


class StockBags(StockSequences):
    """A ShardedEmbeddingBagCollection of TorchRec; see `StockSequences`.

    Attributes:
        output_widths: columns of each embedding of the output.
        widths_on_device: the same, as a tensor.
        divides_means: whether the collection divides pooled sums of row-wise tables by a divisor.
    """

    _kind: Any = ShardedEmbeddingBagCollection
    _path = ("embedding_bags.",)

    def _read(self, stock: Any) -> None:
        self.output_names = stock._embedding_names
        self.output_widths: list[int] = stock._embedding_dims
        self.widths_on_device: Tensor = stock._dim_per_key
        self.divides_means: bool = stock._has_mean_pooling_callback

    def prepare(self, keys: list[str]) -> None:
        """Do what the first `input_dist` does, without sending a batch."""
        super().prepare(keys)
        if self.divides_means:
            # _init_mean_pooling_callback: the place of each output among the features
            self.module._init_mean_pooling_callback(keys, None)

    def mean_divisor(self, keys: list[str], amounts: Tensor) -> Tensor:
        """The divisor that the collection makes from lengths: [inputs, columns].

        Args:
            keys: keys of the batch.
            amounts: [keys, inputs], by which the sums of each bag are divided.
        """
        stock = self.module
        # _features_order: place of each feature among the keys; empty where they are in order
        order = stock._features_order or list(range(len(amounts)))
        ordered = [keys[i] for i in order]
        stride = amounts.shape[1]
        divisor: Tensor = _create_mean_pooling_divisor(
            lengths=amounts.index_select(0, constant(tuple(order), amounts.device)).view(-1),
            keys=ordered,
            offsets=amounts,  # used with weights only, and sums of weights are amounts here
            stride=stride,
            stride_per_key=[stride] * len(ordered),
            dim_per_key=self.widths_on_device,
            pooling_type_to_rs_features=stock._pooling_type_to_rs_features,
            embedding_names=self.output_names,
            embedding_dims=self.output_widths,
            variable_batch_per_feature=False,
            kjt_inverse_order=stock._kjt_inverse_order,
            kjt_key_indices=stock._kjt_key_indices,
            kt_key_ordering=stock._kt_key_ordering,
        )
        return divisor


class StockProcessed(ShardedFeatureProcessedEmbeddingBagCollection):  # type: ignore[misc]
    """A ShardedFeatureProcessedEmbeddingBagCollection of TorchRec."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        # _row_wise_sharded: whether the input of a batch is changed in place, to note places in it
        self._row_wise_sharded = False

    @property
    def collection(self) -> Any:
        """The sharded collection of the tables."""
        return self._embedding_bag_collection

    @property
    def processors(self) -> list[nn.Module]:
        """The feature processors, or the one for all features."""
        processors = self._feature_processors
        return [processors] if self._is_collection else list(processors.values())

    def note_places(self, kjt: KeyedJaggedTensor) -> None:
        """Have the processors write to the weights what they need of whole bags."""
        modify_input_for_feature_processor(kjt, self._feature_processors, self._is_collection)


def table_kernels(
    stock: StockSequences,
) -> Iterator[tuple[SplitTableBatchedEmbeddingBagsCodegen, list[ShardedEmbeddingTable]]]:
    """Each FBGEMM kernel on this rank, and the shards that it holds."""
    for lookup in stock.lookups:
        for group in lookup._emb_modules:  # one for each kernel
            yield group.emb_module, group.config.embedding_tables


class LookupKey(NamedTuple):
    """A key of what a lookup module takes: a feature's lookups in a shard on this rank."""

    feature: str
    table: str
    column: int  # first of the shard
    row: int  # first of the shard
    rows: int
    columns: int


def lookup_keys(lookup: nn.Module) -> Iterator[LookupKey]:
    """The keys of a lookup module, in order."""
    groups: Any = lookup._emb_modules  # one for each kernel
    for group in groups:
        for table in group.config.embedding_tables:
            row, column = table.local_metadata.shard_offsets
            for feature in table.feature_names:
                size = table.local_rows, table.local_cols
                yield LookupKey(feature, table.name, column, row, *size)


@contextmanager
def without_clipping(kernel: SplitTableBatchedEmbeddingBagsCodegen) -> Iterator[None]:
    """Lookups of a kernel whose backward takes gradients as they are."""
    given = kernel.optimizer_args  # which a forward hands to its backward
    kernel.optimizer_args = given._replace(gradient_clipping=False)
    try:
        yield
    finally:
        kernel.optimizer_args = given


COUNTING = (EmbOptimType.ADAM, EmbOptimType.PARTIAL_ROWWISE_ADAM)


def counts_lookups(kernel: SplitTableBatchedEmbeddingBagsCodegen) -> bool:
    """Whether a kernel trains by how often it was looked up.

    FBGEMM's Adam counts forwards, with or without a backward, and corrects its averages by them.
    """
    return kernel.optimizer in COUNTING


def lookup_count(kernel: SplitTableBatchedEmbeddingBagsCodegen) -> int:
    """How often a kernel was looked up. As in FBGEMM, 0 is asked of the device."""
    # iter_cpu: the count; 0 before the first lookup, when FBGEMM takes what was set from `iter`
    return int(kernel.iter_cpu) or int(kernel.iter)


def set_lookup_count(kernel: SplitTableBatchedEmbeddingBagsCodegen, count: int) -> None:
    """Set that count, which the next lookup makes one more of."""
    kernel.iter_cpu.fill_(count)
    kernel.iter.fill_(count)


def has_optimizer(parameter: Any) -> bool:
    """Whether `apply_optimizer_in_backward` gave a parameter an optimizer."""
    return getattr(parameter, "_optimizer_classes", [None])[0] is not None


def set_optimizer(parameter: Any, settings: dict[str, Any]) -> None:
    """Have a sharded collection train a parameter by these settings of FBGEMM's optimizers."""
    # _optimizer_classes, _optimizer_kwargs: where apply_optimizer_in_backward leaves them
    parameter._optimizer_classes, parameter._optimizer_kwargs = [None], [settings]


def collection_settings(sharder: Any) -> dict[str, Any]:
    """What TorchRec's sharders give to collections of one kind only."""
    if isinstance(sharder, EmbeddingCollectionSharder):
        return {"use_index_dedup": sharder._use_index_dedup}
    return {"sharded_module_order_overwrite": sharder._sharded_module_order_overwrite}


def remember_topology(reservation: HeuristicalStorageReservation, reserved: Topology) -> None:
    """Set the topology of a reservation that the planner's report shows."""
    reservation._last_reserved_topology = reserved


plain_operators = torch._C.DisableTorchFunctionSubclass
"""A context in which operators take subclasses of Tensor for tensors."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def write_counts(tensors: Sequence[Tensor]) -> list[int]:
    """How often torch wrote to each tensor; writes of FBGEMM, and through `data`, do not count.

    A compiler would look into the tables' parameters, which look here as they are used.
    """
    with plain_operators():
        return [tensor._version for tensor in tensors]  # torch's count, for autograd's checks


class NotWrapped:
    """What refuses to be the collection inside of another sharded module of TorchRec.

    That of managed collisions reaches for its shardings, and gives its ids other rows.
    """

    @property
    def _sharding_type_to_sharding(self) -> NoReturn:
        raise FAEError(
            "cannot shard with hot rows",
            "a collection inside of one that gives ids other rows, as managed collisions do",
            "give that one's sharder the stock sharder, and FAE's to other collections",
        )
