"""What each observation of a GPU costs: pairs of rounds, with it and without, in turn.

    PYTHONPATH=src python -m benchmarks.gpu.observers --out observers.json

A round trains a small network for some steps, with a collective in each; its time is that of all
steps, to the end of the last one on the device. What cannot run here is told as left out.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.pairs import compare
from trainobs import observe
from trainobs.core.abi import Phase
from trainobs.gpu.watch import GpuWatch
from trainobs.hooks.cuda import Cuda
from trainobs.hooks.distributed import TorchJob

TIMING = "TORCH_NCCL_ENABLE_TIMING"
Mark = Callable[[int, int], None]
PHASES = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value, Phase.OTHER.value)


class LeftOut(Exception):
    """Why an observation cannot be measured here."""


class Training:
    """A network whose step takes some milliseconds on a GPU: hundreds of kernels, a collective."""

    def __init__(self, device: torch.device, steps: int, group: Any) -> None:
        width = 1024 if device.type == "cuda" else 32
        self.device, self.steps, self.group = device, steps, group
        self.serial = 0
        self.net = nn.Sequential(*(nn.Linear(width, width) for _ in range(24))).to(device)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.inputs = torch.randn(1024, width, device=device)
        self.gradient = torch.zeros(width * width, device=device)

    def round(self, mark: Mark = lambda serial, phase: None, group: Any = None) -> list[int]:
        """Train for some steps: the mean time of one, ns."""
        self._wait()
        begin = time.perf_counter_ns()
        for _ in range(self.steps):
            self.serial += 1
            self.optimizer.zero_grad()
            mark(self.serial, PHASES[0])
            loss = self.net(self.inputs).square().mean()
            mark(self.serial, PHASES[1])
            loss.backward()
            dist.all_reduce(self.gradient, group=group or self.group)
            mark(self.serial, PHASES[2])
            self.optimizer.step()
            mark(self.serial, PHASES[3])
        self._wait()
        return [(time.perf_counter_ns() - begin) // self.steps]

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def events(training: Training) -> Callable[[bool], list[int]]:
    """CUDA events at each phase, as the observer takes them."""
    cuda = Cuda()
    _need_gpu(training, cuda.uuid())
    return lambda observed: training.round(cuda.mark) if observed else training.round()


def readings(training: Training) -> Callable[[bool], list[int]]:
    """NVML and GPM, each 100 ms: ten times as often as the observer asks."""
    uuid = Cuda().uuid()
    _need_gpu(training, uuid)

    @contextmanager
    def watched() -> Iterator[None]:
        watch = GpuWatch(lambda reading: None, interval_s=0.1)
        watch.start(str(uuid))
        time.sleep(0.3)
        try:
            yield
        finally:
            watch.close()

    return _within(training, watched)


def timed_collectives(training: Training) -> Callable[[bool], list[int]]:
    """The flight recorder's times of collectives, in a group that was made for it."""
    _need_gpu(training, Cuda().uuid())
    os.environ[TIMING] = "1"
    timed = dist.new_group([0])
    del os.environ[TIMING]
    dist.all_reduce(training.gradient, group=timed)
    return lambda observed: training.round(group=timed if observed else None)


def arrivals(training: Training) -> Callable[[bool], list[int]]:
    """The flight recorder read once a round, at once: the observer reads it now and then."""
    job = TorchJob()

    @contextmanager
    def read() -> Iterator[None]:
        yield
        job.arrivals(at_once=True)

    return _within(training, read)


def monitor(training: Training) -> Callable[[bool], list[int]]:
    """The CUPTI monitor of torch 2.13, collecting kernels and copies."""
    _need_gpu(training, Cuda().uuid())
    try:
        cupti = importlib.import_module("torch.profiler._cupti_monitor")
    except ImportError:
        raise LeftOut(f"torch {torch.__version__} has no CUPTI monitor") from None

    @contextmanager
    def collected() -> Iterator[None]:
        with tempfile.TemporaryDirectory() as folder:
            cupti.start_collection(folder)
            try:
                yield
            finally:
                cupti.stop_collection()

    return _within(training, collected)


def everything(training: Training) -> Callable[[bool], list[int]]:
    """A whole observed run, without probes, against `TRAINOBS=off`."""

    def round_(observed: bool) -> list[int]:
        os.environ["TRAINOBS"] = "on" if observed else "off"
        with tempfile.TemporaryDirectory() as folder:
            run_dir = Path(folder, "run")
            with observe(run_dir=run_dir, probes="off", quiet=True) as obs:
                training_round = _Stepped(training, obs)
                return training_round()

    return round_


class _Stepped:
    """A round whose steps and phases the observer sees."""

    def __init__(self, training: Training, obs: Any) -> None:
        self._training, self._obs = training, obs

    def __call__(self) -> list[int]:
        training, obs = self._training, self._obs
        begin = time.perf_counter_ns()
        for _ in range(training.steps):
            with obs.step():
                training.optimizer.zero_grad()
                with obs.phase("forward"):
                    loss = training.net(training.inputs).square().mean()
                with obs.phase("backward"):
                    loss.backward()
                    dist.all_reduce(training.gradient, group=training.group)
                with obs.phase("optimizer"):
                    training.optimizer.step()
        training._wait()
        return [(time.perf_counter_ns() - begin) // training.steps]


def _within(
    training: Training, around: Callable[[], AbstractContextManager[None]]
) -> Callable[[bool], list[int]]:
    def round_(observed: bool) -> list[int]:
        with around() if observed else nullcontext():
            return training.round()

    return round_


def _need_gpu(training: Training, uuid: str | None) -> None:
    if training.device.type != "cuda" or not uuid:
        raise LeftOut("needs a GPU")


OBSERVERS = {
    "CUDA events": events,
    "NVML and GPM": readings,
    "flight recorder, timing": timed_collectives,
    "flight recorder, read": arrivals,
    "CUPTI monitor": monitor,
    "all that observe() does": everything,
}


def run(device: torch.device, pairs: int, steps: int) -> dict[str, Any]:
    """Measure each observation by itself."""
    found: dict[str, Any] = {"steps_per_round": steps}
    training = Training(device, steps, dist.new_group([0]))
    training.round()
    for name, make in OBSERVERS.items():
        try:
            measured = compare(make(training), pairs)
            found[name] = {k: v for k, v in measured.items() if k != "steps_per_round"}
        except LeftOut as error:
            found[name] = {"left_out": str(error)}
        except Exception as error:  # one of several: the others are still worth their time
            found[name] = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(name, json.dumps(found[name]), flush=True)
    return found


def main() -> None:
    """Measure, print, and write down what came out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300, help="of a round")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    with tempfile.TemporaryDirectory() as folder:
        backend = "nccl" if arguments.device == "cuda" else "gloo"
        dist.init_process_group(backend, f"file://{folder}/store", rank=0, world_size=1)
        found = run(device, arguments.pairs, arguments.steps)
        dist.destroy_process_group()
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
