"""A training with programs of a user's, that does a known number of things in each step.

usage: own_probes.py '{"place": DIR, "source": FILE, "run_dir": DIR, "steps": N, "ends": true}'
"""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

from tests.kernel.lifetime import own_programs
from tests.kernel.own import Marked
from trainobs import Probe, observe

BATCH, WORKERS = 2, 4


class Doing(Dataset[torch.Tensor]):
    """Items for which a worker does something."""

    def __init__(self, marked: Marked, length: int) -> None:
        self._marked, self._length = marked, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        self._marked.do(*of_item(index))
        return torch.zeros(1)


def of_item(index: int) -> tuple[int, int, int]:
    """Calls, calls of the function and marks that an item takes."""
    return index % 5, index % 3, index % 4


def of_step(number: int) -> tuple[int, int, int]:
    """The same of a step, in the training thread."""
    return number % 7, number % 11, number % 3


def main(place: str, source: str, run_dir: str, steps: int, ends: bool) -> None:
    torch.set_num_threads(1)
    marked = Marked(Path(place))
    probe = Probe(source, attach=marked.attach)
    loader = DataLoader(Doing(marked, BATCH * steps), BATCH, num_workers=WORKERS)
    with observe(run_dir=run_dir, probes=[probe], quiet=True) as obs, ThreadPoolExecutor(1) as pool:
        print(json.dumps(sorted(own_programs())), flush=True)
        while True:
            for number, _ in enumerate(obs.loader(loader)):
                with obs.step():
                    marked.do(*of_step(number))
                    pool.submit(marked.do, 1, 0, 2).result()
            if ends:
                break


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
