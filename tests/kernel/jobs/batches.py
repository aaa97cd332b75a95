"""Two epochs of a DataLoader whose batches are told apart, once for each of several set-ups.

usage: batches.py '{"data": DIR, "runs": DIR, "set_ups": [{"kind": ..., "workers": ...}, ...]}'

What each batch knows of itself goes to RUN/truth.json, in the order in which the loop got them.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import trainobs
from tests.kernel.ground_truth import read_whole
from tests.stolen import stolen_ns

EPOCHS = 2
WORK_S = 0.004
SLEEP_S = 0.01
BLOCK = 4096


def clocks() -> tuple[int, int, int]:
    """Time of this thread on a CPU, ready without one, and on the wall, in ns."""
    ready = int(Path("/proc/thread-self/schedstat").read_text().split()[1])
    return time.thread_time_ns(), ready, time.monotonic_ns()


def compute() -> None:
    """Work for some time of this thread on a CPU, not of the clock on the wall."""
    end = time.thread_time() + WORK_S
    while time.thread_time() < end:
        pass


def read_directly(path: Path) -> None:
    """Read a file block by block from the device: every call sleeps."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with mmap.mmap(-1, BLOCK) as block:
        while os.readv(fd, [block]) == BLOCK:
            pass
    os.close(fd)


class Files(Dataset[Any]):
    """One item a file; `kind` says what is done to make it."""

    def __init__(self, kind: str, paths: list[Path]) -> None:
        self.kind = kind
        self.paths = paths
        self.big = torch.zeros(32 << 20) if kind == "big" else None

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        if self.kind == "big":
            return self.big
        before = clocks()
        path = self.paths[index]
        if self.kind == "direct":
            read_directly(path)
        elif self.kind == "at once":
            path.read_bytes()
        else:
            read_whole(path)
        if self.kind == "busy":
            compute()
        if self.kind == "asleep":
            time.sleep(SLEEP_S)
        if self.kind == "bad" and index == 5:
            raise KeyError("index 5")
        if self.kind == "dies" and index == 5:
            os._exit(1)
        after = clocks()
        return [index, *(now - then for now, then in zip(after, before, strict=True))]


class Stream(IterableDataset[Any]):
    """The same files, each from the worker whose turn it is."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        assert info is not None
        for index in range(info.id, len(self.paths), info.num_workers):
            read_whole(self.paths[index])
            yield [index, 0, 0, 0]


def to_cpu(worker: int) -> None:
    """A `worker_init_fn`: all workers on one CPU."""
    os.sched_setaffinity(0, [0])


def keep(items: Any) -> Any:
    """A `collate_fn` that leaves items alone."""
    return items


def loader_of(paths: list[Path], set_up: dict[str, Any]) -> DataLoader[Any]:
    kind, workers = set_up["kind"], set_up.get("workers", 3)
    data = Stream(paths) if kind == "stream" else Files(kind, paths)
    more: dict[str, Any] = {"in_order": False} if set_up.get("any_order") else {}
    if workers:
        more["multiprocessing_context"] = set_up.get("method", "fork")
        more["persistent_workers"] = set_up.get("persistent", False)
        more["prefetch_factor"] = set_up.get("ahead", 2)
    return DataLoader(
        data,
        batch_size=set_up.get("batch_size", 2),
        num_workers=workers,
        collate_fn=keep,
        worker_init_fn=to_cpu if set_up.get("crowded") else None,
        **more,
    )


def train(data: Path, run_dir: Path, set_up: dict[str, Any]) -> None:
    loader = loader_of(sorted(data.iterdir()), set_up)
    truth: list[Any] = []
    fault = ""
    before = stolen_ns()
    with trainobs.observe(
        run_dir=run_dir, data_roots=data, probes=set_up.get("probes", "auto")
    ) as obs:
        batches = obs.loader(loader)
        for _ in range(EPOCHS):
            try:
                for number, batch in enumerate(batches):
                    with obs.step():
                        truth.append(None if set_up["kind"] == "big" else batch)
                    if number + 1 == set_up.get("stop_after"):
                        break
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
    told = {"batches": truth, "fault": fault, "stolen_ns": stolen_ns() - before}
    (run_dir / "truth.json").write_text(json.dumps(told))


if __name__ == "__main__":
    settings = json.loads(sys.argv[1])
    torch.set_num_threads(1)
    for number, set_up in enumerate(settings["set_ups"]):
        train(Path(settings["data"]), Path(settings["runs"], str(number)), set_up)
