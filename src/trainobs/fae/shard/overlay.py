"""Hot rows laid over the tables of a sharded collection."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.core.errors import FAEError
from trainobs.fae.kjt.split import (
    SlotMap,
    SplitMark,
    check_splittable,
    cold_count,
    read_mark,
    split_by,
)
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.shard.agreement import Point, RankAgreement
from trainobs.fae.shard.batch import HotRowStore, SplitBatch, WholeBatch
from trainobs.fae.shard.join import Joiner
from trainobs.fae.shard.served import ServedCounts

MOST_KERNELS = 32  # what a meeting of ranks has words for


class HotOverlay:
    """The hot rows of one sharded collection.

    Either the overlay holds the truth about hot rows, or the tables do. A batch makes it the
    overlay, which then trains them alone; whatever writes to the tables (a load) makes it the
    tables, and the next batch reads the rows from there. A save writes the rows to the tables, and
    leaves the truth where it is. Who was given the tables' tensors by a save may write to them, as
    `torch.distributed.checkpoint.load` does; that is seen by the tensors' versions.

    Args:
        group: the ranks.

    Attributes:
        group: the same; None for a single rank.
        agreement: where they meet; None for a single rank.
        served: what the hot rows did.
        profile: which rows are hot.
        number: of the layers laid so far, by which a batch knows its own.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group if dist.get_world_size(group) > 1 else None
        self.served = ServedCounts()
        self.agreement = None
        if self.group is not None:
            self.agreement = RankAgreement(group, 2 * MOST_KERNELS, self.served.syncing)
        self._batch_count = 0
        self.number = 0

    def lay(self, profile: FAEProfile, rows: HotRowStore) -> None:
        """Lay these hot rows, of which the tables hold the truth, in the place of any others."""
        self.profile = profile
        self._rows = rows
        self._slots: dict[torch.device, SlotMap] = {}
        self._joiners: dict[torch.device, Joiner] = {}
        self._is_behind = True
        self._versions_given: list[int] | None = None
        self.number += 1

    def flush(self) -> None:
        """Write the hot rows to the tables, optimizer state too; on this rank alone."""
        self._look_for_writers()
        if not self._is_behind:
            with self.served.syncing:
                self._rows.write_back.flush()
            self._versions_given = self._rows.write_back.versions()

    def check_layer(self, number: int) -> None:
        """Whether hot lookups are of the rows that are hot now.

        Raises:
            FAEError: they were taken apart before a refresh.
        """
        if number != self.number:
            raise FAEError(
                "cannot look up the hot rows of a batch",
                "a batch that was on its way while the hot rows were changed",
                "let the pipeline run empty before a refresh, and make the loader anew",
            )

    def tables_changed(self) -> None:
        """Hear that the truth about hot rows is in the tables now."""
        self._is_behind = True

    def separate(self, batch: KeyedJaggedTensor) -> SplitBatch:
        """Take the hot lookups of a batch apart, unless the loader did.

        Raises:
            FAEError: the batch was split for other hot rows, or says that it is pure and is not.
        """
        mark, whole = read_mark(batch), None
        if mark is None:
            device = batch.device()
            if device not in self._slots:
                self._slots[device] = SlotMap.from_profile(self.profile, device)
            check_splittable(batch)
            mark = self._slots[device].mark(batch)
            found = self._slots[device].lookup(batch)
            whole = WholeBatch(batch, found >= 0)
            batch = split_by(found, batch, mark)
        count = cold_count(batch, mark)
        self._check(mark, count)
        cold, hot = batch.split([len(mark.features), len(mark.hot_features)])
        twins = tuple(mark.features.index(feature) for feature in mark.hot_features)
        is_pure = mark.pure or (self.group is None and not count)
        self._batch_count += 1
        separated = SplitBatch(self._batch_count - 1, cold, hot, twins, is_pure, whole)
        self.served.expect(separated)
        return separated

    def meet(self, batch: SplitBatch) -> None:
        """Before lookups at other ranks: see that all ranks come to them.

        Raises:
            FAEError: some do not.
        """
        if self.agreement is not None:
            point = Point.PURE_FORWARD if batch.is_pure else Point.FORWARD
            self.agreement.meet(point, batch.number)

    def whole(self, batch: SplitBatch) -> KeyedJaggedTensor:
        """The batch with its hot lookups among the others."""
        if batch.whole is not None:
            return batch.whole.kjt
        device = batch.cold.device()
        if device not in self._joiners:
            self._joiners[device] = Joiner(self.profile, device)
        return self._joiners[device].join(batch.cold, batch.hot, batch.twins)

    def hand_over(self, batch_number: int) -> None:
        """Write the hot rows to the tables, which serve this batch and hold the truth from here."""
        self.served.count(batch_number, by_tables=True)
        self.flush()
        self._is_behind = True

    def watch(self, embeddings: Tensor, *, by_tables: bool) -> None:
        """See that the backward of a batch trains hot rows where they are; else they lose it.

        Args:
            embeddings: of the batch.
            by_tables: whether the tables served its hot lookups.
        """

        def check(_: Tensor) -> None:
            if self._is_behind != by_tables:
                raise FAEError(
                    "cannot train the hot rows of a batch in mode 'paper'",
                    "a batch of the other kind that was looked up before this one's backward",
                    "go backward between lookups of pure and mixed batches, or take another mode",
                )

        if embeddings.requires_grad:
            embeddings.register_hook(check)  # type: ignore[no-untyped-call]

    def gather(self, batch: SplitBatch) -> list[Any]:
        """The hot lookups of a batch."""
        return self._rows.gather(batch)

    def lookup(self, lookups: list[Any], batch_number: int, input_count: int) -> Tensor:
        """See `HotRowStore`."""
        self._catch_up(batch_number)
        self.served.count(batch_number)
        return self._rows.lookup(lookups, batch_number, input_count)

    def _look_for_writers(self) -> None:
        """Hear of those who wrote to the tables since they were given."""
        if self._versions_given not in (None, self._rows.write_back.versions()):
            self._is_behind = True

    def _catch_up(self, batch_number: int) -> None:
        self._look_for_writers()
        self._versions_given = None
        if not self._is_behind:
            return
        if self.agreement is not None:
            self._agree_on_rows(self.agreement, batch_number)
        with self.served.syncing:
            self._rows.write_back.pull(self.group)
        self._is_behind = False

    def _agree_on_rows(self, agreement: RankAgreement, batch_number: int) -> None:
        """Before ranks exchange hot rows for the first time."""
        halves = [int(self.profile.fingerprint[i : i + 8], 16) for i in (0, 8)]  # exact as float64
        heard = agreement.meet(Point.PULL, batch_number, halves)
        prints = {"".join(f"{int(half):08x}" for half in rank[:2]) for rank in heard.tolist()}
        if len(prints) > 1:
            raise FAEError(
                "cannot read the hot rows from their tables",
                f"different profiles on the ranks: {', '.join(sorted(prints)[:4])}",
                "calibrate once, and load the file of that profile on every rank",
            )

    def _check(self, mark: SplitMark, count: int) -> None:
        if mark.fingerprint != self.profile.fingerprint:
            raise FAEError(
                "cannot look up the hot rows of a batch",
                f"slots of profile {mark.fingerprint}; the model has {self.profile.fingerprint}",
                "pack and shard with one profile; after a refresh, make the loader anew",
            )
        if mark.pure and count:
            raise FAEError(
                "cannot look up the hot rows of a batch",
                f"{count} cold lookups in a batch that is marked as pure",
                "leave the keys of packed batches as they are",
            )
