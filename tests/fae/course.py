"""A case from beginning to end: parts of a training, and what comes between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.comm_ops import get_gradient_division, set_gradient_division

from tests.fae.batches import Batch, batches, packed
from tests.fae.cases import Case, Table, profile_of
from tests.fae.compared import Trained, difference
from tests.fae.parity import build, fae_sharder, go_on, look, stock_sharder
from trainobs.fae.kjt.expand import expanded
from trainobs.fae.kjt.split import SlotMap

SHARDINGS = ("table_wise", "row_wise", "column_wise", "table_row_wise", "grid_shard")
_LOOKED_UP = 1000  # added to a part whose batches are not trained on


@dataclass
class Course:
    """A case on its way.

    Attributes:
        is_fae: whether rows are hot; or else the stock sharder trains it.
        rank: this one.
        case: the part that comes next.
        result: so far.
        lookups: of the model, by which Adam corrects its averages.
    """

    is_fae: bool
    rank: int
    case: Case
    result: Trained = field(default_factory=lambda: Trained([], [], {}))
    lookups: int = 0

    def __post_init__(self) -> None:
        self.model = self.built()
        self.saved = self.states()

    def built(self) -> DistributedModelParallel:
        """The model, at its beginning."""
        if self.is_fae:
            return build(self.case, fae_sharder(self.case, profile_of(self.case)))
        return build(self.case, stock_sharder(self.case))

    def train(self) -> None:
        """Train the part."""
        go_on(self.case, self.model, self.feed(self.case), self.result)
        self.lookups += len(self.case.kinds)

    def feed(self, case: Case) -> list[Any]:
        """New batches: FBGEMM writes to bad ids."""
        whole = batches(case, self.rank)
        if self.is_fae:
            slots = SlotMap.from_profile(profile_of(case))
            return [packed(kind, kjt, slots) for kind, kjt in whole]
        # TorchRec itself has no such batches on hosts, but for one rank and few plans
        return [expanded(k) if k.variable_stride_per_key() else k for _, k in whole]

    def states(self) -> dict[str, Any]:
        """Copies of weights and optimizer states."""
        of_optimizer = self.model.fused_optimizer.state_dict()
        return copied(
            {"model": self.model.state_dict(), "tables": of_optimizer, "lookups": self.lookups}
        )

    def load(self, states: dict[str, Any]) -> None:
        """Go on from there."""
        self.model.load_state_dict(states["model"])
        self.model.fused_optimizer.load_state_dict(states["tables"])
        self.lookups = states["lookups"]
        if any("adam" in optimizer for optimizer in self.case.optimizers):
            self.model.fused_optimizer.set_optimizer_step(self.lookups)

    @property
    def collection(self) -> Any:
        """The sharded one, under any feature processors."""
        collection: Any = self.model.module.collection
        return collection.collection if self.case.processed and self.is_fae else collection


def _save(course: Course) -> None:
    """A checkpoint is taken."""
    course.saved = course.states()


def _load(course: Course) -> None:
    """An older checkpoint is loaded in place."""
    course.load(copied(course.saved))


def _restart(course: Course) -> None:
    """Another process goes on from a checkpoint."""
    states = course.states()
    course.model = course.built()
    course.load(states)


def _refresh(course: Course) -> None:
    """Other rows are hot."""
    if course.is_fae:
        course.collection.refresh(profile_of(course.case))


def _rates(course: Course) -> None:
    """Each parameter group has a rate of its own; those of a table, on all ranks, have one."""
    optimizer = course.model.fused_optimizer
    names = {id(parameter): name for name, parameter in optimizer.params.items()}
    kinds = {table.name: SHARDINGS.index(table.sharding) for table in _split(course.case)}
    for group in optimizer.param_groups:
        table = names[id(group["params"][0])].split(".")[-2]
        group["lr"] = (0.03 + 0.05 * kinds[table]) / course.case.part
    optimizer.step()


def _settings(course: Course) -> None:
    """The optimizer has other settings."""
    changed = {"eps": 0.02 * course.case.part, "beta1": 0.5, "weight_decay": 0.03}
    course.model.fused_optimizer.update_hyper_parameters(changed)


def _write(course: Course) -> None:
    """Others write to the tables."""
    with torch.no_grad():
        for parameter in course.model.module.collection.parameters():
            parameter.mul_(0.5)


def _evaluate(course: Course) -> None:
    """Batches are looked up without autograd."""
    with torch.no_grad():
        _skip(course)


def _skip(course: Course) -> None:
    """Batches are looked up, and nothing is trained on their losses."""
    kinds = ("plain", *course.case.kinds)
    case = replace(course.case, kinds=kinds, part=course.case.part + _LOOKED_UP)
    for kjt in course.feed(case):
        loss, output = course.model(Batch(kjt))
        course.result.losses.append(float(loss.detach()))
        course.result.outputs.append(output.detach())
    course.lookups += len(kinds)


EVENTS: dict[str, Callable[[Course], None]] = {
    "save": _save,
    "load": _load,
    "restart": _restart,
    "refresh": _refresh,
    "rates": _rates,
    "settings": _settings,
    "write": _write,
    "evaluate": _evaluate,
    "skip": _skip,
}


def run(case: Case, rank: int = 0) -> dict[str, float]:
    """Train a case both ways and compare."""
    return difference(follow(case, rank, is_fae=False), follow(case, rank, is_fae=True))


def follow(case: Case, rank: int, *, is_fae: bool) -> Trained:
    """What a case comes to."""
    before = get_gradient_division()
    set_gradient_division(case.is_divided)
    try:
        first, *others = parts(case)
        course = Course(is_fae, rank, first)
        course.train()
        for event, course.case in zip(case.events, others, strict=True):
            EVENTS[event](course)
            course.train()
        look(course.case, course.model, course.result)
    finally:
        set_gradient_division(before)
    return course.result


def parts(case: Case) -> Iterator[Case]:
    """The parts of a case, with the batches and hot rows of each."""
    tables = case.tables
    for part, kinds in enumerate(np.array_split(case.kinds, len(case.events) + 1)):
        if part and case.events[part - 1] == "refresh":
            tables = _with_other_rows(tables, [case.seed, 6, part])
        yield replace(case, tables=tables, kinds=tuple(map(str, kinds)), part=part)


def _with_other_rows(tables: tuple[Table, ...], seed: list[int]) -> tuple[Table, ...]:
    """The same tables with other hot rows, one set for all: some share their features."""
    is_hot = np.random.default_rng(seed).random(max(table.rows for table in tables)) < 0.4
    return tuple(
        replace(table, hot=tuple(np.flatnonzero(is_hot[: table.rows]))) if table.hot else table
        for table in tables
    )


def _split(case: Case) -> list[Table]:
    """Tables that the fused optimizer trains."""
    return [table for table in case.tables if not table.is_replicated]


def copied(state: Any) -> Any:
    """A state dict whose tensors are no longer those of the model."""
    if isinstance(state, dict):
        return {key: copied(value) for key, value in state.items()}
    if not hasattr(state, "local_shards"):
        return state.clone() if isinstance(state, Tensor) else state
    shards = [Shard(s.tensor.clone(), s.metadata) for s in state.local_shards()]
    return ShardedTensor._init_from_local_shards_and_global_metadata(
        shards, state.metadata(), process_group=state._process_group
    )
