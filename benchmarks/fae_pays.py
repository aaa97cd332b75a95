"""When hot rows pay, by counts: `python -m benchmarks.fae_pays` prints what docs/fae.md tells.

Made-up inputs of benchmarks/fae_gpu, by their skew; several of them put into one of larger bags;
and the same after days in which rows change. Hot rows and what they serve: as `calibrate`
(margin 0) finds and predicts, or as `measure` counts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torchrec import KeyedJaggedTensor

from benchmarks.fae_gpu.inputs import Inputs, _unit
from benchmarks.fae_gpu.setup import Setup
from trainobs.fae import FAEProfile, calibrate, measure

BATCHES = 40
SLOPES = (0.8, 0.95, 1.05, 1.2)
BAGS = (4, 16)
DAYS = (0, 1, 2, 4, 8)
CHANGED_A_DAY = 0.05  # of the rows of each table


class Batches(NamedTuple):
    """A loader of made-up inputs.

    Attributes:
        setup: of the inputs.
        bag: inputs that become one, with the lookups of all.
        day: days in each of which some rows gave their lookups to others.
    """

    setup: Setup
    bag: int = 1
    day: int = 0

    def __iter__(self) -> Iterator[KeyedJaggedTensor]:
        inputs = Inputs(self.setup)
        for _ in range(BATCHES):
            kjt = inputs.draw(1)[0].sparse_features
            yield self._in_bags(self._changed(kjt, [c.num_embeddings for c in inputs.configs]))

    def _changed(self, kjt: KeyedJaggedTensor, rows: list[int]) -> KeyedJaggedTensor:
        ids = kjt.values().view(len(rows), -1).clone()
        for i, count in enumerate(rows):
            is_moved = _unit(ids[i].numpy(), 64 + i) < 1 - (1 - CHANGED_A_DAY) ** self.day
            moved = torch.from_numpy(is_moved)
            ids[i, moved] = (ids[i, moved] + count // 2) % count
        return KeyedJaggedTensor(kjt.keys(), ids.view(-1), lengths=kjt.lengths())

    def _in_bags(self, kjt: KeyedJaggedTensor) -> KeyedJaggedTensor:
        lengths = kjt.lengths().view(-1, self.bag).sum(1, dtype=torch.int32)
        return KeyedJaggedTensor(kjt.keys(), kjt.values(), lengths=lengths)


def main() -> None:
    """Print a row of Markdown for each case."""
    logging.getLogger("trainobs").setLevel(logging.ERROR)
    for slope in SLOPES:
        _print(f"slope {slope}", _calibrated(Batches(Setup(slope=slope))))
    for bag in BAGS:
        _print(f"0.95, {bag} lookups in a bag", _calibrated(Batches(Setup(), bag)))
    profile = _calibrated(Batches(Setup()))
    later = {f"0.95, after {day} days": Batches(Setup(seed=1), day=day) for day in DAYS}
    for name, found in measure(profile, later, inputs=BATCHES * Setup.batch_size).items():
        _print_row(name, found.hot_lookups.value, found.all_hot.value)


def _calibrated(batches: Batches) -> FAEProfile:
    tables = Inputs(batches.setup).configs
    return calibrate(batches, tables, batches.setup.hot_bytes, margin=0, progress=False)


def _print(name: str, profile: FAEProfile) -> None:
    found = profile.predictions
    assert found is not None
    _print_row(name, found.hot_lookup_ratio.value, found.all_hot_ratio.value)


def _print_row(name: str, lookups: float, inputs: float) -> None:
    print(f"| {name} | {100 * lookups:.1f} % | {100 * inputs:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
