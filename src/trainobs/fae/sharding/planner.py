"""Room for the hot rows: in TorchRec's plan, and on the device."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import nn
from torchrec.distributed.planner.storage_reservations import HeuristicalStorageReservation
from torchrec.distributed.planner.types import ParameterConstraints, Topology
from torchrec.distributed.types import ModuleSharder

from trainobs.core.control_groups import memory_left
from trainobs.core.errors import FAEError, shown
from trainobs.core.log import logger
from trainobs.core.text import size
from trainobs.fae.kjt.bitmap import bitmap_bytes
from trainobs.fae.profile.arguments import check_profile, told_bytes
from trainobs.fae.profile.model_tables import optimizers_in, trained_row_bytes
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.mode import Mode, check_mode
from trainobs.fae.sharding.torchrec_private import remember_topology

_SLOT_ROW_BYTES = 8  # of `SlotRows`
_DEFAULT_PERCENTAGE = 0.15  # what TorchRec's planner reserves by default


class HotRowReservation(HeuristicalStorageReservation):  # type: ignore[misc]  # no types
    """Reserves what hot rows take on each device, beside what TorchRec reserves by default.

        EmbeddingShardingPlanner(topology, storage_reservation=HotRowReservation(profile))

    TorchRec's planner does not ask a sharder for its storage, so without this it fills devices with
    tables and leaves no room.

    It reserves the hot rows of all tables: give those of tables that a plan puts on the device up
    by `planned_profile`, and plan once more. A table that fits the device only in the place of its
    own hot rows stays on the host.

    Args:
        profile: the hot rows, all of which each device holds, with a map that finds them in
            batches that come whole: 0.27 bytes for each row of their tables, hot or not.
        percentage: of a device, for what is in neither a table nor a parameter nor a batch.
        mode: of the sharder. Under "partitioned" hot rows are charged by the shard, with
            `HotRowEnumerator`, and 16 bytes for each are reserved; "paper" takes 8 bytes more.

    Raises:
        SettingError: there is no such mode, or the profile is none.
    """

    def __init__(
        self,
        profile: FAEProfile,
        percentage: float = _DEFAULT_PERCENTAGE,
        mode: Mode = "overlay",
    ) -> None:
        with warnings.catch_warnings():  # TorchRec's planner takes the same by default
            warnings.simplefilter("ignore", FutureWarning)
            super().__init__(percentage)
        check_mode(mode, "cannot reserve room for hot rows")
        self._profile = check_profile(profile)
        self._mode: Mode = mode

    def reserve(
        self,
        topology: Topology,
        batch_size: int,
        module: nn.Module,
        sharders: list[ModuleSharder[nn.Module]],
        constraints: dict[str, ParameterConstraints] | None = None,
    ) -> Topology:
        """The topology less what is reserved.

        Raises:
            FAEError: a device has no room for the hot rows.
        """
        reserved = super().reserve(topology, batch_size, module, sharders, constraints)
        room = "hbm" if topology.compute_device == "cuda" else "ddr"
        tables = self._profile.overlaid
        said = ((c, optimizer) for c, optimizer in optimizers_in(module) if c.name in tables)
        hot_bytes = needed_bytes(self._profile, tables, trained_row_bytes(said), self._mode)
        for device in reserved.devices:
            left = getattr(device.storage, room) - hot_bytes
            if left < 0:
                _no_room(hot_bytes, getattr(device.storage, room), f"device {device.rank}")
            setattr(device.storage, room, left)
        remember_topology(self, reserved)
        return reserved


def needed_bytes(
    profile: FAEProfile,
    tables: Collection[str],
    row_bytes: Mapping[str, int],
    mode: Mode = "overlay",
) -> int:
    """Bytes that the hot rows of some tables take on a device, and the maps that find them.

    Args:
        profile: which rows are hot.
        tables: which ones.
        row_bytes: what a row takes in the training; of other tables what the profile says.
        mode: of the sharder. Under "partitioned" it is the maps alone: what rows take on a device
            depends on the plan.
    """
    of_tables = [profile.table(name) for name in tables]
    slots = bitmap_bytes(table.row_count for table in of_tables)
    rows = sum(len(t.hot_ids) * row_bytes.get(t.name, t.row_bytes) for t in of_tables)
    if mode != "overlay":  # of all tables, as the batch that is made whole has their lookups
        slots += _SLOT_ROW_BYTES * sum(len(table.hot_ids) for table in profile.tables)
    if mode == "partitioned":
        return slots + _SLOT_ROW_BYTES * sum(len(table.hot_ids) for table in of_tables)
    return rows + slots


def warn_of_more(profile: FAEProfile, row_bytes: Mapping[str, int]) -> None:
    """Tell where hot rows take more than the limit, since they were chosen for less state.

    Args:
        profile: which rows are hot.
        row_bytes: what a row of a table of a collection takes in the training.
    """
    of_tables = [profile.table(name) for name in row_bytes if name in profile.overlaid]
    more = {t.name: len(t.hot_ids) * (row_bytes[t.name] - t.row_bytes) for t in of_tables}
    taken = profile.hot_bytes + sum(more.values())
    if taken > profile.budget_bytes and any(each > 0 for each in more.values()):
        table = profile.table(max(more, key=more.__getitem__))
        logger.warning(
            "trainobs: the hot rows take %s, more than the %s that their profile was made for: a "
            "row of %s takes %d bytes, weights and optimizer state, and was taken for %d. "
            "Calibrate with tables=model or optimizer=, so that it knows the optimizer.",
            size(taken),
            told_bytes(profile.budget_bytes),
            shown(table.name),
            row_bytes[table.name],
            table.row_bytes,
        )


def check_room(needed_bytes: int, device: torch.device) -> None:
    """Raise an FAEError if a device has no room for weights and optimizer state of hot rows."""
    free_bytes = _device_bytes(device) if device.type == "cuda" else _host_bytes()
    if free_bytes is not None and needed_bytes > free_bytes:
        _no_room(needed_bytes, free_bytes, str(device))


def _device_bytes(device: torch.device) -> int:
    """Free memory of a GPU, with what torch keeps for later allocations."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + kept


def _host_bytes() -> int | None:
    """Memory that the host has, and that its control groups leave; None where neither is known."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        lines = []
    found = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    if (left := memory_left()) is not None:
        found.append(left)
    return min(found, default=None)


def _no_room(needed_bytes: int, free_bytes: int, where: str) -> None:
    raise FAEError(
        "no room for the hot rows",
        f"{needed_bytes:,} bytes of them, {free_bytes:,} bytes free on {where}",
        "calibrate with smaller hot_bytes, or give the rest of the model less",
    )
