"""How many inputs a second `pack` sorts into batches; part of fae_cpu.py."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchrec.datasets.utils import Batch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from trainobs.fae import FAEProfile, pack
from trainobs.fae.kjt.find import KjtFinder
from trainobs.fae.kjt.split import SlotMap, read_mark, split
from trainobs.fae.packing.window import KjtBlock, Packer

DENSE = 13
WINDOW = 32


class Ready(IterableDataset[Batch]):
    """Gives batches that were made beforehand: what a loader costs beside packing is left out."""

    def __init__(self, kjts: list[KeyedJaggedTensor]) -> None:
        count = kjts[0].stride()
        self.batches = [
            Batch(torch.full((count, DENSE), float(i)), kjt, torch.full((count,), i))
            for i, kjt in enumerate(kjts)
        ]

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        return iter(self.batches[first::step])


def measure_pack(kjts: list[KeyedJaggedTensor], profile: FAEProfile, rounds: int) -> dict[str, Any]:
    """Packing in one process of one thread, as in a loader's worker, and a loader with two workers.

    Returns:
        `split_inputs_per_cpu_second` of single batches; `pack_inputs_per_cpu_second` of windows,
        sorted and split; `plain_loader_` and `packed_loader_inputs_per_second`, in turn;
        `hand_out_us`, what a packed batch takes of the process that trains; `window_bytes` of a
        packed window; and `pure_step_ratio`, the share of batches that are pure.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    data, slots = Ready(kjts), SlotMap.from_profile(profile)
    packer = Packer(slots, KjtFinder(list(slots.slots)), kjts[0].stride(), False)
    windows = [data.batches[i : i + WINDOW] for i in range(0, len(kjts), WINDOW)]
    loader = DataLoader(data, batch_size=None, num_workers=2, persistent_workers=True)
    packed = pack(loader, profile, window=WINDOW)
    pure = [sum(map(_touch, one)) for one in (loader, packed)]  # starts their workers
    seconds: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, clock, run in (
            ("split", time.process_time, lambda: [split(kjt, slots) for kjt in kjts]),
            ("pack", time.process_time, lambda: list(map(packer.pack, windows))),
            ("plain_loader", time.perf_counter, lambda: list(map(_touch, loader))),
            ("packed_loader", time.perf_counter, lambda: list(map(_touch, packed))),
        ):
            begin = clock()
            run()
            end = "cpu_second" if clock is time.process_time else "second"
            seconds.setdefault(f"{name}_inputs_per_{end}", []).append(clock() - begin)
    window = packer.pack(windows[0])
    begin = time.process_time()
    for i in range(len(window.sizes)):
        window.batch(i, pure=False)
    hand_out = (time.process_time() - begin) / len(window.sizes)
    torch.set_num_threads(threads)
    inputs = len(kjts) * kjts[0].stride()
    return {
        "inputs": inputs,
        "rounds": rounds,
        "pure_step_ratio": round(pure[1] / len(kjts), 4),
        "hand_out_us": round(hand_out * 1e6, 1),
        "window_bytes": sum(map(_bytes, window.leaves)),
        **{name: round(inputs / statistics.median(taken)) for name, taken in seconds.items()},
    }


def _bytes(leaf: Any) -> int:
    """Memory of all batches' share of a leaf."""
    if isinstance(leaf, KjtBlock):
        return leaf.lengths.nbytes + leaf.values.nbytes
    return leaf.nbytes if isinstance(leaf, torch.Tensor) else 0


def _touch(batch: Batch) -> bool:
    """Read every lookup, as a training does; whether the batch is pure."""
    batch.sparse_features.values().sum()
    mark = read_mark(batch.sparse_features)
    return mark is not None and mark.pure
