"""What the collections with hot rows of one model share."""

from __future__ import annotations

from weakref import WeakSet

import torch.distributed as dist
from torchrec.distributed.types import ShardingEnv

from trainobs.fae.kjt.host_group import host_group
from trainobs.fae.profile.profile import FAEProfile
from trainobs.fae.sharding.barrier import RankBarrier
from trainobs.fae.sharding.bounds import BoundsCheck
from trainobs.fae.sharding.overlay import HotOverlay
from trainobs.fae.sharding.served import ServedCounts

_ATTRIBUTE = "trainobs_hot_collections"


class HotCollections:
    """The collections with hot rows of one model, and the group of ranks for their barriers.

    It is an attribute of the model's ShardingEnv, since DistributedModelParallel gives the same one
    to all sharders. If you shard the collections of a model one by one, use one ShardingEnv.

    Args:
        group: the ranks.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._host_group = host_group(group)
        self._group = None if self._host_group is None else group
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
