"""All arms on one device, in turn."""

from __future__ import annotations

import json
import statistics
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torchrec.datasets.utils import Batch

from benchmarks.fae_gpu.arms import Feed, Task, Trainer
from benchmarks.fae_gpu.inputs import DENSE_COUNT, Inputs
from benchmarks.fae_gpu.meter import Meter, between_us, quartiles
from benchmarks.fae_gpu.setup import ARMS, CHECKED_STEPS, WINDOW, Setup
from trainobs.core.errors import SettingError
from trainobs.fae import FAEProfile, ShuffleScheduler, calibrate, pack
from trainobs.fae.kjt.split import SlotMap, split

Save = Callable[[dict[str, Any]], None]


class Bench:
    """All arms on one device.

    Raises:
        SettingError: tables of all arms do not fit the host's memory.
    """

    def __init__(self, setup: Setup, device: torch.device, names: list[str]) -> None:
        self.setup, self.device, self._names = setup, device, names
        self.meter, inputs = Meter(device), Inputs(setup)
        check_memory(setup, inputs, names, device)
        self.task = task_of(setup, inputs, self.meter, device)
        self._feeds = self._batches(inputs)
        self._trainers: dict[str, Trainer] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._rounds: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def run(self, save: Callable[[dict[str, Any]], None]) -> None:
        """Build the arms, and measure them in turn; one that fails is told and left out.

        What is known is saved after each round: time on a GPU may end before the last.
        """
        for name in self._names:
            self._facts[name] = {}
            self._try(name, self._build)
            print(name, json.dumps(self._facts[name]), flush=True)
        for i in range(self.setup.rounds):
            for name in self._names[i % len(self._names) :] + self._names[: i % len(self._names)]:
                if name in self._trainers:
                    self._try(name, self._round)
            save(self._results())

    def _batches(self, inputs: Inputs) -> dict[str, list[Batch]]:
        """What the arms of each mode train on: the same inputs, each once."""
        first, drawn = inputs.draw(CHECKED_STEPS), inputs.draw(self.setup.batches)
        modes, profile = {ARMS[name].mode for name in self._names}, self.task.profile
        feeds = {"": [*first, *drawn]}
        slots = SlotMap.from_profile(profile)
        apart = [Batch(b.dense_features, split(b.sparse_features, slots), b.labels) for b in first]
        if modes & {"overlay", "partitioned"}:
            packed = [*apart, *pack(drawn, profile, window=WINDOW, seed=self.setup.seed)]
            feeds["overlay"] = feeds["partitioned"] = packed
        if "paper" in modes:  # in runs, as a swap costs a copy of the hot rows
            runs = pack(drawn, profile, window=WINDOW, scheduler=ShuffleScheduler())
            feeds["paper"] = [*apart, *runs]
        return feeds

    def _try(self, name: str, do: Callable[[str], None]) -> None:
        try:
            do(name)
        except SettingError as error:
            self._facts[name]["left_out"] = f"{error.failed}: {error.found}"
        except Exception as error:  # one arm of many: the others are still worth their time
            self._facts[name]["error"] = f"{type(error).__name__}: {error}"[:2000]
            print(name, traceback.format_exc(), flush=True)
            self._trainers.pop(name, None)

    def _build(self, name: str) -> None:
        arm, facts = ARMS[name], self._facts[name]
        if arm.prefetches and self.device.type == "cpu":
            facts["left_out"] = "prefetching needs a GPU"
            return
        before = self._allocated()
        batches = self._feeds[arm.mode]
        feed = map(Batch.pin_memory, batches) if self.device.type == "cuda" else batches
        trainer = Trainer(arm, self.task, Feed(feed))
        facts["device_bytes"] = None if before is None else (self._allocated() or 0) - before
        facts["first_losses"] = [float(trainer.step()[2]) for _ in range(CHECKED_STEPS)]
        facts["settled"] = self._warm_up(trainer)
        self._trainers[name] = trainer

    def _warm_up(self, trainer: Trainer) -> float | None:
        """Time of the third quarter of the warm-up over the last: 1 once nothing changes."""
        taken = []
        for _ in range(4):
            begin = time.perf_counter()
            for _ in range(self.setup.warmup // 4):
                trainer.step()
            self._wait()
            taken.append(time.perf_counter() - begin)
        return taken[2] / taken[3] if self.setup.warmup >= 4 else None

    def _round(self, name: str) -> None:
        """Some steps of an arm."""
        trainer, steps = self._trainers[name], []
        self._wait()
        missed = trainer.missed_rows()
        self.meter.read()
        begin, marks = time.perf_counter(), [self._mark()]
        for _ in range(self.setup.steps):
            steps.append(trainer.step()[:2])
            marks.append(self._mark())
        self._wait()
        seconds, read = time.perf_counter() - begin, self.meter.read()
        inputs = sum(count for _, count in steps)
        step_us = defaultdict(list)
        for (kind, count), mark, next_mark in zip(steps, marks, marks[1:], strict=False):
            if count == self.setup.batch_size:  # the last of a window may be smaller
                step_us[kind].append(between_us(mark, next_mark))
        joules, link, source = read["joules"], read["link_bytes"], "PCIe counters, both ways"
        if link is None and missed is not None:
            link = float((trainer.missed_rows() or 0) - missed) * self.setup.dim * 4
            source = "rows that missed the cache, one way"
        self._rounds[name].append(
            {
                "samples_per_s": inputs / seconds,
                "step_us": dict(step_us),
                "pure_step_ratio": sum(kind == "pure" for kind, _ in steps) / len(steps),
                "joules_per_1000_inputs": None if joules is None else joules / inputs * 1000,
                "link_bytes_per_input": None if link is None else link / inputs,
                "link_source": None if link is None else source,
            }
        )

    def _results(self) -> dict[str, Any]:
        arms = {name: facts | self._summary(name) for name, facts in self._facts.items()}
        speeds = {
            name: [r["samples_per_s"] for r in rounds] for name, rounds in self._rounds.items()
        }
        caching = [name for name in speeds if name.startswith(("uvm", "caching"))]
        best = max(caching, key=lambda name: statistics.median(speeds[name]), default=None)
        for name, facts in arms.items():
            for what, other in (("cpu", "cpu"), ("best_uvm", best), ("hbm", "hbm")):
                ratios = [
                    a / b
                    for a, b in zip(speeds.get(name, []), speeds.get(other or "", []), strict=False)
                ]
                facts[f"speed_over_{what}"] = quartiles(ratios)
        return {
            "setup": asdict(self.setup) | {"batches": self.setup.batches},
            "device": self.meter.about,
            "tables": about(self.task.profile),
            "best_uvm": best,
            "arms": arms,
        }

    def _summary(self, name: str) -> dict[str, Any]:
        rounds = self._rounds.get(name, [])
        kinds = sorted({kind for r in rounds for kind in r["step_us"]})
        plain = (
            "samples_per_s",
            "pure_step_ratio",
            "joules_per_1000_inputs",
            "link_bytes_per_input",
        )
        return {
            **{what: quartiles([r[what] for r in rounds if r[what] is not None]) for what in plain},
            "link_source": rounds[0]["link_source"] if rounds else None,
            "step_us": {
                kind: quartiles([t for r in rounds for t in r["step_us"].get(kind, [])])
                for kind in kinds
            },
        }

    def _allocated(self) -> int | None:
        return torch.cuda.memory_allocated(self.device) if self.device.type == "cuda" else None

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _mark(self) -> Any:
        """A moment: of the GPU's main stream, without waiting for it, or of the host."""
        if self.device.type == "cpu":
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event


def task_of(setup: Setup, inputs: Inputs, meter: Meter, device: torch.device) -> Task:
    """What the arms share; hot rows are chosen from inputs that nobody trains on."""
    sample = inputs.draw(setup.sample)
    profile = calibrate(sample, inputs.configs, setup.hot_bytes, progress=False)
    return Task(setup, inputs.configs, profile, device, counts_misses=not meter.sees_link)


def about(profile: FAEProfile) -> dict[str, Any]:
    """The tables and their hot rows, in numbers."""
    assert profile.predictions is not None
    return {
        "bytes": sum(t.row_count * t.row_bytes for t in profile.tables),
        "rows": sum(t.row_count for t in profile.tables),
        "hot_bytes": profile.hot_bytes,
        "hot_rows": sum(len(t.hot_ids) for t in profile.tables),
        "wholly_hot": sum(t.is_wholly_hot for t in profile.tables),
        "hot_lookup_ratio": profile.predictions.hot_lookup_ratio.value,
        "all_hot_ratio": profile.predictions.all_hot_ratio.value,
    }


def check_memory(setup: Setup, inputs: Inputs, names: list[str], device: torch.device) -> None:
    """Whether the tables of all arms fit the host, and the inputs beside them.

    Raises:
        SettingError: they do not.
    """
    arms = sum(ARMS[name].kernel != "fused" or device.type == "cpu" for name in names)
    rows_bytes = sum(c.num_embeddings * (4 * c.embedding_dim + 4) for c in inputs.configs)
    forms = 1 + len({ARMS[name].mode for name in names} & {"overlay", "paper"})
    batch_bytes = setup.batch_size * (12 * len(inputs.configs) + 4 * DENSE_COUNT + 8)
    needed = arms * rows_bytes + forms * setup.batches * batch_bytes
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable:")) << 10
    if needed > 0.8 * free:
        raise SettingError(
            "the tables of all arms do not fit the memory of this machine",
            f"{arms} arms of {rows_bytes:,} bytes each, with inputs {needed:,}; {free:,} are free",
            "give a smaller --scale, or fewer --arm",
        )
