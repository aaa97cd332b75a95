"""The overlay: the hot rows of a sharded collection, on the device, over its tables."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torchrec.distributed.embedding_types import KJTList
from torchrec.optim.keyed import CombinedOptimizer
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.core.log import logger
from trainobs.fae.kjt.bitmap import HotBitmap
from trainobs.fae.kjt.split import SplitMark, cold_count, read_mark, split_by
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.barrier import RankBarrier, SyncPoint
from trainobs.fae.sharding.batch import SlotRows, SplitBatch, WholeBatch, join
from trainobs.fae.sharding.bounds import BoundsCheck
from trainobs.fae.sharding.partition import Partition
from trainobs.fae.sharding.replicas import Replicas
from trainobs.fae.sharding.served import ServedCounts
from trainobs.fae.sharding.write_back import TableWrites

_CANNOT = "cannot look up the hot rows of a batch"


@dataclass(eq=False)
class HotOverlay:
    """The hot rows of one sharded collection.

    Either the overlay has the newest values of the hot rows, or the tables do. A batch trains them
    in the overlay alone. After a write to the tables (a load, or another's) the next batch reads
    the rows from there; each batch asks torch's version counts of the tables whether there was one.
    A save, or a use of the tables' parameters, writes the rows to the tables first, and the overlay
    still has the newest values.

    Attributes:
        group: the ranks; None for a single rank.
        barrier: of the ranks; None for a single rank.
        served: what the hot rows do is counted there.
        profile: which rows are hot.
        features: that the collection looks up.
        bounds: what ids outside of their table are.
        asks_tables: whether the collection has tables without hot rows that pure batches look up.
        generation: how often the hot rows were set; a batch on its way has that of its split.
        rows: the hot rows.
    """

    group: dist.ProcessGroup | None
    barrier: RankBarrier | None
    served: ServedCounts
    profile: FAEProfile
    features: frozenset[str]
    bounds: BoundsCheck
    asks_tables: bool
    generation: int = field(default=0, init=False)
    _batch_count: int = field(default=0, init=False)
    _settings: dict[str, float] = field(default_factory=dict, init=False)

    def use(
        self, profile: FAEProfile, rows: Replicas | Partition, table_writes: TableWrites
    ) -> None:
        """Use these hot rows, whose newest values are in the tables, in the place of any others."""
        self.profile = profile
        self.rows: Replicas | Partition | _NoRows = rows
        rows.set_optimizer(self._settings)
        self._table_writes = table_writes
        self._bitmaps: dict[torch.device, HotBitmap] = {}
        self._slot_rows: dict[torch.device, SlotRows] = {}
        self._is_behind = True
        self._is_ahead = False  # whether batches have trained rows since they were written back
        self.generation += 1

    def set_optimizer(self, settings: Mapping[str, float]) -> None:
        """Train hot rows by other settings, which the tables were given in mid-training.

        Args:
            settings: as FBGEMM takes them. Rates are asked of the tables in each step.
        """
        self._settings.update({name: settings[name] for name in settings if name != "lr"})
        self.rows.set_optimizer(self._settings)

    def let_go(self) -> None:
        """Give the memory of hot rows that were flushed back; `use` comes next."""
        self.rows = _NoRows()
        self._bitmaps, self._slot_rows = {}, {}
        gc.collect()  # TorchRec's sharded collections are in cycles

    def flush(self) -> None:
        """Write the hot rows to the tables, optimizer state too; on this rank alone."""
        self._look_for_writes()
        if self._is_ahead and not self._is_behind:
            with self.served.syncing:
                self.rows.write_back.flush()
            self._is_ahead = False

    def tables_changed(self) -> None:
        """Read the hot rows from the tables at the next batch."""
        self._is_behind, self._is_ahead = True, False

    def check_generation(self, generation: int) -> None:
        """Raise an FAEError if hot lookups were split before a refresh."""
        if generation != self.generation:
            raise FAEError(
                _CANNOT,
                "a batch that was on its way while the hot rows were changed",
                "let the pipeline run empty before a refresh, and make the loader anew",
            )

    def separate(self, batch: KeyedJaggedTensor) -> SplitBatch:
        """Split the hot lookups of a batch from the others, unless the loader did.

        Raises:
            FAEError: the batch was split for other hot rows, or is marked pure and is not.
        """
        mark, whole, refused = read_mark(batch), None, 0
        if mark is None:
            came, bitmap = batch, self._bitmap(batch.device())
            found = bitmap.lookup(batch)
            if found.is_bad.any():
                refused = self.bounds.refused(batch, found.is_bad, self.profile)
                batch = self.bounds.replaced(batch, found.is_bad)
                found = bitmap.lookup(batch)
            mark = bitmap.mark(batch)
            whole = WholeBatch(came, found.slots >= 0)
            batch = split_by(found.slots, batch, mark)
        count = cold_count(batch, mark)
        self._check(mark, count)
        cold, hot = batch.split([len(mark.features), len(mark.hot_features)])
        is_pure = mark.pure or (self.group is None and not count)
        is_pure = is_pure and not self.asks_tables
        self._batch_count += 1
        number = self._batch_count - 1
        separated = SplitBatch(number, cold, hot, mark.pairs, is_pure, whole, refused)
        self.served.expect(separated)
        return separated

    def wait_for_ranks(self, batch: SplitBatch) -> None:
        """Wait until all ranks are at the forward of a batch of this kind.

        All read replicas from the tables where some have seen a write to them: the others must not
        wait for the embeddings of who waits for them.

        Raises:
            FAEError: they are not, or have other hot rows, or one has bad ids that are refused.
        """
        if self.barrier is None:
            return
        self._look_for_writes()
        point = SyncPoint.PURE_FORWARD if batch.is_pure else SyncPoint.FORWARD
        told = self._wait(self.barrier, point, batch.number, batch.refused, self._is_behind)
        refused, are_behind = zip(*told, strict=True)
        self.bounds.check(dict(zip(self.barrier.ranks, refused, strict=True)))
        if any(are_behind) and self.rows.write_back.is_of_all_ranks:
            self.hand_over()

    def whole(self, batch: SplitBatch) -> KeyedJaggedTensor:
        """The batch with its hot lookups among the others."""
        if batch.whole is not None:
            return batch.whole.kjt
        device = batch.cold.device()
        if device not in self._slot_rows:
            self._slot_rows[device] = SlotRows.from_profile(self.profile, device)
        return join(batch.cold, batch.hot, batch.pairs, self._slot_rows[device])

    def hand_over(self) -> None:
        """Write the hot rows to the tables, which serve a batch and train the rows."""
        self.flush()
        self.tables_changed()

    def watch(self, embeddings: Tensor, *, by_tables: bool) -> None:
        """Check in a batch's backward that hot rows are where it trains them."""

        def check(_: Tensor) -> None:
            if self._is_behind != by_tables:
                raise FAEError(
                    "cannot train the hot rows of a batch in mode 'paper'",
                    "a batch of the other kind that was looked up before this one's backward",
                    "go backward between lookups of pure and mixed batches, or take another mode",
                )

        if embeddings.requires_grad:
            embeddings.register_hook(check)  # type: ignore[no-untyped-call]

    @contextmanager
    def serving(
        self, batch_number: int, device: torch.device, is_whole: bool, by_tables: bool
    ) -> Iterator[None]:
        """While the tables look up what was sent to them; then the batch counts as served.

        Args:
            batch_number: how many batches came before.
            device: where the lookups are.
            is_whole: whether hot lookups were sent with the others.
            by_tables: whether the tables serve them; else hot rows do.
        """
        if by_tables:
            self.hand_over()
            yield
        elif is_whole:
            assert isinstance(self.rows, Partition)
            self._catch_up(batch_number)
            with self.rows.serving(self._bitmap(device), self._watch_training):
                yield
        else:
            yield
        self.served.count(batch_number, by_tables=by_tables)

    def cold(self, modules: Iterable[nn.Module], received: KJTList) -> KJTList:
        """The cold ones of lookups that were sent to this rank, for each lookup module."""
        assert isinstance(self.rows, Partition)
        return self.rows.cold(modules, received, self._bitmap(received[0].device()))

    def lookup(self, lookups: list[Any], batch_number: int, input_count: int) -> list[Tensor]:
        """The embeddings of hot lookups; see `Replicas.lookup`."""
        self._catch_up(batch_number)
        found = self.rows.lookup(lookups, batch_number, input_count)
        for embeddings in found:
            self._watch_training(embeddings)
        return found

    def _bitmap(self, device: torch.device) -> HotBitmap:
        if device not in self._bitmaps:
            self._bitmaps[device] = HotBitmap(self.profile, device)
        return self._bitmaps[device]

    def _watch_training(self, embeddings: Tensor) -> None:
        """Note that a batch's backward trains hot rows, which must be those that it looked up."""
        generation = self.generation

        def will_train(_: Tensor) -> None:
            if generation != self.generation:
                raise FAEError(
                    "cannot train the hot rows of a batch",
                    "a refresh after its lookup, which gave the rows back to their tables",
                    "go backward, and let the pipeline run empty, before a refresh",
                )
            self._is_ahead = True

        if embeddings.requires_grad:
            embeddings.register_hook(will_train)  # type: ignore[no-untyped-call]

    def _look_for_writes(self) -> None:
        """Note what others wrote to the tables."""
        if not self._table_writes.are_new():
            return
        if self._is_ahead:
            logger.warning(
                "trainobs: a tensor of the embedding tables was written to that had been taken "
                "before the hot rows were trained. The tables' values replace those of the hot "
                "rows, older ones too where nothing was written. Take the model's parameters or "
                "its state dict anew before each write, or call flush() of the collection."
            )
        self.tables_changed()

    def _catch_up(self, batch_number: int) -> None:
        """Read the hot rows from the tables if the newest values are there."""
        self._look_for_writes()
        if not self._is_behind:
            return
        if self.barrier is not None and self.rows.write_back.is_of_all_ranks:
            self._wait(self.barrier, SyncPoint.PULL, batch_number)
        with self.served.syncing:
            self.rows.write_back.pull(self.group)
        self._is_behind = False

    def _wait(
        self, barrier: RankBarrier, point: SyncPoint, batch_number: int, *numbers: int
    ) -> list[list[int]]:
        """Wait for all ranks, see that they have the same hot rows; returns the numbers of each."""
        halves = [int(self.profile.fingerprint[i : i + 8], 16) for i in (0, 8)]  # exact as float64
        sent = torch.tensor([*halves, *numbers], dtype=torch.float64)
        told = barrier.wait(point, batch_number, sent).long().tolist()
        if any(rank[:2] != halves for rank in told):
            prints = {f"{high:08x}{low:08x}" for high, low, *_ in told}
            raise FAEError(
                "ranks cannot train with different hot rows",
                f"different profiles on the ranks: {', '.join(sorted(prints)[:4])}",
                "calibrate once, load the file of that profile on every rank, and call refresh "
                "with it on every rank",
            )
        return [rank[2:] for rank in told]

    def _check(self, mark: SplitMark, count: int) -> None:
        if mark.fingerprint != self.profile.fingerprint:
            raise FAEError(
                _CANNOT,
                f"slots of profile {mark.fingerprint}; the model has {self.profile.fingerprint}",
                "pack and shard with one profile; after a refresh, make the loader anew",
            )
        if mark.pure and count:
            raise FAEError(
                _CANNOT,
                f"{count} cold lookups in a batch that is marked as pure",
                "leave the keys of packed batches as they are",
            )


class WrittenBackOptimizer(CombinedOptimizer):  # type: ignore[misc]
    """The fused optimizer of a collection's tables, whose state has the hot rows' in it."""

    def __init__(self, stock: CombinedOptimizer, overlay: HotOverlay) -> None:
        super().__init__(list(stock.optimizers))
        self._overlay = overlay

    @property
    def state(self) -> Mapping[Tensor, Any]:
        """State of each parameter, for reading or for loading into."""
        self._overlay.flush()
        state: Mapping[Tensor, Any] = super().state
        return state

    def update_hyper_parameters(self, params_dict: dict[str, Any]) -> None:
        """Give the tables other settings, and their hot rows; on all ranks."""
        super().update_hyper_parameters(params_dict)
        self._overlay.set_optimizer(params_dict)

    def post_load_state_dict(self) -> None:
        """Read the hot rows' state from the tables' at the next batch."""
        super().post_load_state_dict()
        self._overlay.tables_changed()


class _NoRows:
    """In the place of hot rows that a refresh gave up, while there are no others."""

    def __getattr__(self, name: str) -> Any:
        raise FAEError(
            "cannot use hot rows",
            "none, as a refresh failed, and those of before could not come back",
            "refresh again with fewer hot rows; the tables have the newest values",
        )
