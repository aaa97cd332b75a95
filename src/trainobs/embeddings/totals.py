"""From what the training thread noted to rows of the run log: the observer's thread counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from trainobs.access import AccessCounts
from trainobs.access.input_steps import RowCounts, StepTotals, step_number
from trainobs.core.embedding_table import LOOKUP_FIELDS, LOOKUP_ROW
from trainobs.core.hot_rows import ServedBy
from trainobs.core.log import logger
from trainobs.core.once import Once
from trainobs.embeddings.buffer import CallIds, FeatureCounts, LookupCall
from trainobs.embeddings.caches import MissRates
from trainobs.embeddings.hot import HottestRows
from trainobs.embeddings.inputs import offer
from trainobs.embeddings.sample import sample
from trainobs.embeddings.sites import ModelEmbeddings
from trainobs.embeddings.step_lookups import CapturedStep, StepLookups, TableIds
from trainobs.embeddings.table import TIERS, Gradient, WatchedTable
from trainobs.embeddings.timing import lay_times
from trainobs.steps.fast_path import untracked

ID_BYTES = 8
"""Bytes of an id in the all-reduce of a sparse gradient."""


class LookupTotals:
    """Turns captures into rows.

    What a data-parallel job moves for a table is, of each rank of `W`: with a dense gradient
    `2 * (W - 1) / W` times the bytes of the table (a ring all-reduce), with a sparse one `W - 1`
    times the rows that it trains, with 8 bytes of id for each (an all-gather). Sharded tables move
    neither; for them it says what they would. One rank moves nothing: 0.

    Args:
        found: the model's tables and sites.
        counts: where the ids of sampled steps are counted.
        world_size: ranks of the job.
        rank: this one's number.
    """

    def __init__(
        self, found: ModelEmbeddings, counts: AccessCounts, world_size: int, rank: int = 0
    ) -> None:
        tables = found.tables
        self._found = found
        self._counts = counts
        self._others = world_size - 1
        self._rank = rank
        self._before: dict[str, RowCounts] = {}  # of the step that was counted last
        self._hot = HottestRows([table.info for table in tables], counts)
        self._rates = MissRates(len(tables))
        self._once = Once()
        self._row_count = np.array([float(table.info.row_count) for table in tables])
        self._row_bytes = np.array([float(table.info.row_bytes) for table in tables])
        self._dense = np.array([table.gradient is Gradient.DENSE for table in tables], dtype=bool)
        self._tiers = np.array(
            [
                table.reads.bytes[0]
                if table.reads.uniform
                else np.where(table.reads.bytes.any(axis=0), np.nan, 0.0)
                for table in tables
            ]
        ).reshape(len(tables), len(TIERS))
        self._near = np.zeros((len(tables), len(TIERS)))
        for site in found.sites:
            if site.near in TIERS:
                self._near[site.tables, TIERS.index(site.near)] = self._row_bytes[site.tables]
        self._owned = self._by_owners(self._tiers, np.arange(len(tables)))

    def rows(self, steps: Sequence[CapturedStep], epoch: int) -> NDArray[np.void]:
        """One row for each table that was asked, or may have been unseen, in each step.

        Args:
            steps: consecutive steps.
            epoch: their epoch, for the sample of inputs.
        """
        table_count = len(self._found.tables)
        asked = [untracked(StepLookups(table_count, captured)) for captured in steps]
        blind = [t for site in self._found.sites if site.blind for t in site.tables]
        for one in asked:
            one.unmeasured(blind)
        of, tables = np.nonzero(self._matrix([one.asked for one in asked]))
        rows = np.full(len(of), _unknown_row())
        rows["step"] = np.array([captured.step for captured in steps], dtype=np.int64)[of]
        rows["epoch"] = np.array([captured.epoch for captured in steps], dtype=np.int64)[of]
        rows["table"] = tables
        rows["lookup_count"] = self._matrix([one.lookups for one in asked])[of, tables]
        rows["bag_count"] = self._matrix([one.bags for one in asked])[of, tables]
        trains = self._matrix([one.trains for one in asked])[of, tables] > 0
        near = self._matrix([one.near for one in asked])[of, tables]
        owned = self._matrix([one.owned for one in asked])[of, tables]
        self._derive(rows, trains, near, owned)
        missed = [
            self._rates.step(
                captured.capture if captured.measured else None, np.nan_to_num(one.lookups)
            )
            for captured, one in zip(steps, asked, strict=True)
        ]
        counted = self._count_ids(rows, of, near, asked, missed)
        lay_times(rows, of, asked)
        infos = [table.info for table in self._found.tables]
        for step, own in counted.items():
            step_totals = StepTotals(step_number(steps[step].step, self._rank), own, self._before)
            self._before = own
            if not asked[step].lost:
                offer(asked[step].calls, infos, self._counts, epoch, step_totals)
        self._counts.pass_steps(sum(any(one.asked) for one in asked), len(counted))
        return rows

    def _count_ids(
        self,
        rows: NDArray[np.void],
        of: NDArray[np.intp],
        near: NDArray[np.float64],
        asked: Sequence[StepLookups],
        missed: Sequence[NDArray[np.float64]],
    ) -> dict[int, dict[str, RowCounts]]:
        """Fill in what takes the ids, of the steps whose ids were taken.

        Returns:
            Of each of these steps what `_fill` counted, by the name of the table.
        """
        sampled = np.array([bool(one.ids) for one in asked], dtype=bool)
        counted: dict[int, dict[str, RowCounts]] = {
            step: {} for step in np.flatnonzero(sampled).tolist()
        }
        for place in np.flatnonzero(sampled[of]):
            step, table = int(of[place]), int(rows["table"][place])
            if place == 0 or step != of[place - 1]:
                self._hot.begin_step()
            ids = asked[step].ids.get(table)
            if ids is not None:
                name = self._found.tables[table].info.name
                counted[step][name] = self._fill(rows[place], ids, near[place])
                self._split_cached(rows[place], missed[step][table])
        return counted

    def forget_bytes(self, tables: Sequence[int]) -> None:
        """Nobody knows any more how wide rows of some tables are, or where they lie."""
        self._row_bytes[tables] = np.nan
        self._tiers[tables] = self._near[tables] = self._owned[tables] = np.nan

    def _matrix(self, lines: list[list[float]] | list[list[bool]]) -> NDArray[np.float64]:
        """Numbers of steps and tables; of no steps, too."""
        return np.array(lines, dtype=np.float64).reshape(len(lines), len(self._found.tables))

    def blame(self, call: LookupCall, ids: torch.Tensor) -> None:
        """Name ids of a call that are outside their table, if they can be read without a device."""
        if ids.device.type == "cpu" and not isinstance(call.lookups, FeatureCounts):
            call = call._replace(ids=CallIds(ids.reshape(-1).numpy(), 0, ends=False))
            asked = StepLookups(len(self._found.tables), CapturedStep(0, 0, None, measured=True))
            asked.add(call)
            for table, arrays in asked.ids.items():
                rows = self._found.tables[table].info.row_count
                self._tell(table, sample([looked.ids for looked in arrays], rows).worst)

    def _tell(self, table: int, worst: int | None) -> None:
        """Say, once a table, that an id was asked for which it does not have."""
        if worst is not None and self._once.first(table):
            info = self._found.tables[table].info
            logger.warning(
                "an id is outside its embedding table\n  found: id %d of table %s, which has %d "
                "rows\n  do:    check how the ids are made; the run log counts those of "
                "sampled steps",
                worst,
                info.name,
                info.row_count,
            )

    def _derive(
        self,
        rows: NDArray[np.void],
        trains: NDArray[np.bool_],
        near: NDArray[np.float64],
        owned: NDArray[np.float64],
    ) -> None:
        """What follows from the numbers of lookups alone."""
        tables = rows["table"]
        lookups, row_bytes = rows["lookup_count"], self._row_bytes[tables]
        rows["bytes"] = lookups * row_bytes
        far = lookups - near - owned
        amounts = far[:, None] * self._tiers[tables] + near[:, None] * self._near[tables]
        held = owned[:, None] > 0  # else what is not known of copies would spread to all
        self._split(rows, amounts + np.where(held, owned[:, None] * self._owned[tables], 0.0))
        trainable = np.array([table.trains for table in self._found.tables], dtype=bool)
        known = ~np.isnan(lookups)
        idle = known & ~(trains & trainable[tables])
        whole = known & trains & trainable[tables]
        dense = whole & self._dense[tables]
        rows["gradient_rows"] = np.where(
            idle, 0.0, np.where(dense, self._row_count[tables], np.nan)
        )
        rows["gradient_bytes"] = rows["gradient_rows"] * row_bytes
        ring_ratio = 2 * self._others / (self._others + 1)
        rows["dense_allreduce_bytes"] = np.where(
            idle, 0.0, np.where(whole, ring_ratio * self._row_count[tables] * row_bytes, np.nan)
        )
        nothing = idle | (known & (self._others == 0))
        rows["sparse_allreduce_bytes"] = np.where(nothing, 0.0, np.nan)

    def _by_owners(
        self, amounts: NDArray[np.float64], tables: NDArray[np.int64] | int
    ) -> NDArray[np.float64]:
        """Bytes of rows by tier, if copies on the devices of their ranks are read instead."""
        remote = amounts[..., -1:] * (np.array(TIERS) == "remote")
        is_near = self._near[tables] > 0
        local = amounts[..., :-1].sum(axis=-1, keepdims=True)
        by_tier: NDArray[np.float64] = np.where(is_near, local, remote)
        return by_tier

    def _split(self, rows: NDArray[np.void] | np.void, amounts: NDArray[np.float64]) -> None:
        """Bytes by tier; behind a cache nobody knows hits from misses, without one all miss."""
        of = {name: amounts[..., place] for place, name in enumerate(TIERS)}
        hidden = np.where(of["uvm_caching"] == 0, 0.0, np.nan)
        rows["hbm_bytes"], rows["host_bytes"] = of["hbm"], of["host"]
        rows["uvm_hit_bytes"], rows["uvm_miss_bytes"] = hidden, of["uvm"] + hidden
        rows["remote_bytes"] = of["remote"]

    def _split_cached(self, row: np.void, missed_ratio: float) -> None:
        """Bytes of a table behind a cache, at the rate at which lookups missed it of late."""
        if np.isnan(row["uvm_hit_bytes"]) and not np.isnan(missed_ratio):
            others = row["hbm_bytes"] + row["host_bytes"] + row["remote_bytes"]
            row["uvm_miss_bytes"] = (row["bytes"] - others) * missed_ratio
            row["uvm_hit_bytes"] = row["bytes"] - others - row["uvm_miss_bytes"]

    def _fill(self, row: np.void, ids: list[TableIds], near: float) -> RowCounts:
        """What takes the ids of a table in a step, and count them: rows and their lookups."""
        index = int(row["table"])
        table = self._found.tables[index]
        seen = sample([looked.ids for looked in ids], table.info.row_count)
        self._tell(index, seen.worst)
        row["sampled"] = True
        row["unique_rows"], row["outside_count"] = len(seen.ids), seen.outside_count
        if not table.reads.uniform:
            far, owned = (
                _bytes_by_tier([one.ids for one in ids if one.by is by], table)
                for by in (ServedBy.TABLE, ServedBy.OWNER)
            )
            here = near * self._near[index] + self._by_owners(owned, index)
            self._split(row, far + here)
        if np.isnan(row["gradient_rows"]):
            row["gradient_rows"] = seen.trained_rows(table)
            row["gradient_bytes"] = row["gradient_rows"] * self._row_bytes[index]
        if np.isnan(row["sparse_allreduce_bytes"]):
            moved = seen.trained_rows(table) * (self._row_bytes[index] + ID_BYTES)
            row["sparse_allreduce_bytes"] = self._others * moved
        hottest = self._hot.served(index, seen.ids, seen.counts)
        row["hottest_1pct_count"], row["hottest_10pct_count"] = hottest
        self._counts.add(table.info.name, seen.asked)
        return seen.ids, seen.counts


def _bytes_by_tier(ids: list[NDArray[np.integer]], table: WatchedTable) -> NDArray[np.float64]:
    """Bytes that lookups of a table read from each of `TIERS`."""
    if not ids:
        return np.zeros(len(TIERS))
    return sample(ids, table.info.row_count).bytes_by_tier(table.reads)


def _unknown_row() -> NDArray[np.void]:
    """A row of which nothing is known."""
    row = np.zeros((), LOOKUP_ROW)
    for name in LOOKUP_FIELDS:
        row[name] = np.nan
    return row
