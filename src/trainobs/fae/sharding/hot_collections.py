"""What the collections with hot rows of one model share."""

from __future__ import annotations

from weakref import WeakKeyDictionary, WeakSet

import torch.distributed as dist
from torchrec.distributed.types import ShardingEnv

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
        self._group = group if dist.get_world_size(group) > 1 else None
        self._host_group: dist.ProcessGroup | None = None
        if self._group is not None:
            self._host_group = _host_group(group)
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


_HOST_GROUPS: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def _host_group(group: dist.ProcessGroup) -> dist.ProcessGroup:
    """The group of the same ranks on hosts: one for all models, since a group keeps its threads."""
    if group not in _HOST_GROUPS:
        ranks = dist.get_process_group_ranks(group)
        made = dist.new_group(ranks, backend="gloo", use_local_synchronization=True)
        _HOST_GROUPS[group] = made
    return _HOST_GROUPS[group]
