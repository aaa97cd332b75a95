"""A group of ranks for what they tell each other on hosts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


def host_group(group: dist.ProcessGroup) -> dist.ProcessGroup | None:
    """A gloo group of the same ranks, which waits as long; None where there is one rank.

    All of them come here, in one order with other groups that they make. It stays as long as the
    process. torch names a group by how many there are on a rank: if one were given back, the next
    would have a name that is taken, or another one on each rank.
    """
    if dist.get_world_size(group) == 1:
        return None
    ranks = dist.get_process_group_ranks(group)
    made: dist.ProcessGroup = dist.new_group(
        ranks, timeout_of(group), "gloo", use_local_synchronization=True
    )
    return made


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    """How long a collective of a group may take."""
    # _device_types, _get_backend, _timeout: a group may have a backend for each kind of device
    backend: Any = group._get_backend(group._device_types[0])
    found: timedelta = backend.options._timeout
    return found
