"""The memory that packed batches are in."""

from __future__ import annotations

import torch
from torch.utils.data import DataLoader

from tests.fae.packing import Inputs, collate, digest, make_input, profile, to_batch
from trainobs.fae import pack
from trainobs.fae.kjt.find import KjtFinder
from trainobs.fae.kjt.split import SlotMap
from trainobs.fae.packing.window import Packer


def test_batches_of_one_window_share_its_memory():
    packed = list(pack(DataLoader(Inputs(40), 4, collate_fn=collate), profile(0.9), window=10))
    storages = {batch.sparse_features.values().untyped_storage().data_ptr() for batch in packed}
    assert len(storages) == 1


def test_a_window_is_pinned_whole(monkeypatch):
    # Without a device torch pins nothing: a copy stands for the pinned tensor here.
    copies = []

    def pin(tensor):
        copies.append(tensor.clone())
        return copies[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    of = profile(0.9)
    packer = Packer(SlotMap.from_profile(of), KjtFinder(["f0"]), 4, drop_last=False)
    source = [to_batch([make_input(4 * b + i) for i in range(4)]) for b in range(10)]
    window = packer.pack(source)
    pinned = window.pin_memory()
    memory = {copy.untyped_storage().data_ptr() for copy in copies}
    for i in range(10):
        batch, original = pinned.batch(i, pure=False), window.batch(i, pure=False)
        assert digest(batch) == digest(original)
        kjt = batch.sparse_features
        for part in (
            batch.labels,
            batch.dense_features,
            kjt.values(),
            kjt.lengths(),
            kjt.weights(),
        ):
            assert part.untyped_storage().data_ptr() in memory
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda tensor: any(tensor is c for c in copies))
    values = pinned.redivided(3, 9).batch(0, pure=False).sparse_features.values()
    assert values.untyped_storage().data_ptr() in {c.untyped_storage().data_ptr() for c in copies}
    assert not window.redivided(3, 9).leaves[window.split_leaf].lengths.is_pinned()


def test_a_loader_of_another_class_is_packed_into_pinned_memory_if_it_pins():
    class Other(DataLoader):
        pass

    for pins in (True, False):
        loader = Other(Inputs(8), 4, collate_fn=collate, pin_memory=pins)
        assert pack(loader, profile(0.9))._source._inner.pin_memory is pins
    assert pack([*loader], profile(0.9))._source._inner.pin_memory is False
