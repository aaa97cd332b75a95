"""What the collections with hot rows of one model share."""

from __future__ import annotations

from weakref import WeakSet

import torch.distributed as dist
from torchrec.distributed.types import ShardingEnv

from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.barrier import RankBarrier
from trainobs.fae.sharding.bounds import BoundsCheck
from trainobs.fae.sharding.overlay import HotOverlay
from trainobs.fae.sharding.served import ServedCounts
from trainobs.fae.sharding.torchrec_private import timeout_of

_ATTRIBUTE = "trainobs_hot_collections"


class HotCollections:
    """The collections with hot rows of one model, and the group of ranks for their barriers.

    It is an attribute of the model's ShardingEnv, since DistributedModelParallel gives the same one
    to all sharders. If you shard the collections of a model one by one, use one ShardingEnv.

    The group stays as long as the process. torch names a group by how many there are on a rank: if
    one were given back, the next would have a name that is taken, or another one on each rank.

    Args:
        group: the ranks.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group if dist.get_world_size(group) > 1 else None
        self._host_group: dist.ProcessGroup | None = None
        if self._group is not None:
            ranks = dist.get_process_group_ranks(group)
            self._host_group = dist.new_group(
                ranks, timeout_of(group), "gloo", use_local_synchronization=True
            )
        self._count = 0
        self._overlays: WeakSet[HotOverlay] = WeakSet()

    @classmethod
    def from_env(cls, env: ShardingEnv) -> HotCollections:
        """The collections that are sharded in this environment."""
        if not hasattr(env, _ATTRIBUTE):
            setattr(env, _ATTRIBUTE, cls(env.process_group))
        collections: HotCollections = getattr(env, _ATTRIBUTE)
        return collections

    def add(
        self,
        profile: FAEProfile,
        features: frozenset[str],
        bounds: BoundsCheck,
        asks_tables: bool,
    ) -> HotOverlay:
        """The overlay of one more collection; all ranks add them in the same order.

        Args:
            profile: which rows are hot.
            features: that the collection looks up.
            bounds: what ids outside of their table are.
            asks_tables: see `HotOverlay`.
        """
        served, barrier = ServedCounts(), None
        if self._host_group is not None:
            barrier = RankBarrier(self._host_group, self._count, served.syncing)
        overlay = HotOverlay(self._group, barrier, served, profile, features, bounds, asks_tables)
        self._overlays.add(overlay)
        self._count += 1
        return overlay

    def features(self, fingerprint: str) -> frozenset[str]:
        """Features whose hot rows, of the profile with this fingerprint, a collection keeps."""
        fitting = [o.features for o in self._overlays if o.profile.fingerprint == fingerprint]
        return frozenset[str]().union(*fitting)
