"""Packs the training loader of a Lightning data module, without importing Lightning."""

from __future__ import annotations

import copy
from typing import Any

from torch.utils.data import DataLoader, SequentialSampler

from trainobs.fae.packing.loader import PackedLoader, pack
from trainobs.fae.profile.arguments import check_profile
from trainobs.fae.profile.profile import FAEProfile

_STATE = "trainobs.fae.pack"


def pack_data_module(module: Any, profile: FAEProfile, **arguments: Any) -> Any:
    """A data module like `module`, whose `train_dataloader` is packed.

    Its class derives from that of `module`, and has its name, so Lightning takes it for what it is:
    behind an epoch either goes on from a checkpoint of the other. The other loaders are as they
    were: the sharded module takes batches that are not packed.

        trainer.fit(model, datamodule=pack_data_module(module, profile, seed=1))

    Args:
        module: a `LightningDataModule`, or an object with its methods; not changed.
        profile: of the hot rows.
        arguments: of `trainobs.fae.pack`.

    Returns:
        A shallow copy, with the packed loader as `packed` once Lightning asked for it. Checkpoints
        tell where that stands.
    """
    check_profile(profile)
    packed: Any = copy.copy(module)
    packed.__class__ = _packed_class(type(module))
    packed._pack_arguments = (profile, arguments)
    packed._packed_state = None
    packed.packed = None
    return packed


class _Packs:
    """What a packed data module does otherwise."""

    _pack_arguments: tuple[FAEProfile, dict[str, Any]]
    _packed_state: dict[str, Any] | None
    packed: PackedLoader | None

    def train_dataloader(self) -> PackedLoader:
        """The loader of the original module, packed."""
        profile, arguments = self._pack_arguments
        if self.packed is not None:  # its group of ranks stays, so that a second would be too much
            arguments = {"process_group": self.packed.group, **arguments}
        loader = _shared_out(super().train_dataloader(), self)  # type: ignore[misc]
        self.packed = pack(loader, profile, **arguments)
        try:
            len(self.packed)
        except TypeError:  # Lightning fetches a batch ahead to know which one is the last
            self.packed.ahead = 1
        if self._packed_state is not None:
            self.packed.load_state_dict(self._packed_state)
            self._packed_state = None
        return self.packed

    def state_dict(self) -> dict[str, Any]:
        """The original module's, with where the packed loader stands as `trainobs.fae.pack`.

        Lightning saves the states of loaders too, but takes them up only in mid-epoch.
        """
        state: dict[str, Any] = dict(super().state_dict())  # type: ignore[misc]
        if self.packed is not None:
            state[_STATE] = self.packed.state_dict()
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take that up, with the next `train_dataloader`."""
        state = dict(state_dict)
        self._packed_state = state.pop(_STATE, None)
        super().load_state_dict(state)  # type: ignore[misc]

    def __reduce__(self) -> tuple[Any, ...]:
        """Classes made on the way do not pickle by name."""
        original = type(self).__mro__[2]
        return _restored, (original, self.__dict__)


def _shared_out(loader: Any, module: Any) -> Any:
    """The loader with the sampler that Lightning gives it in a job of several ranks.

    Lightning looks for a `DataLoader`, which a packed one is not. What asks it is private: where
    it has another name, ranks that read the same inputs are told.
    """
    trainer = getattr(module, "trainer", None)
    prepare = getattr(getattr(trainer, "_data_connector", None), "_prepare_dataloader", None)
    if prepare is None or not isinstance(loader, DataLoader):
        return loader
    is_shuffled = not isinstance(loader.sampler, SequentialSampler)
    return prepare(loader, shuffle=is_shuffled, mode=trainer.state.stage)  # type: ignore[union-attr]


def _packed_class(original: type) -> type:
    """Of the same name: by it Lightning finds a module's state in a checkpoint."""
    names = {"__module__": original.__module__, "__qualname__": original.__qualname__}
    return type(original.__name__, (_Packs, original), names)


def _restored(original: type, attributes: dict[str, Any]) -> Any:
    packed: Any = object.__new__(_packed_class(original))
    packed.__dict__.update(attributes)
    return packed
