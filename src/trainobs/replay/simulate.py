"""Discrete events in virtual time: a training thread, the workers of its loader, CPUs, a device.

Batch i of an epoch belongs to worker i % workers. A worker may begin it when fewer than
`prefetch * workers` batches are ahead of what was taken, as torch has it
(`_MultiProcessingDataLoaderIter`).
CPUs are shared evenly by all that compute (processor sharing). The device, and what else makers of
batches sleep for, is either shared like that, or each takes its own time, whatever else goes on.
"""

from __future__ import annotations

import numpy as np

from trainobs.replay.metric_columns import Floats
from trainobs.replay.trace import Trace

CPU, DEVICE, SLEEP, AWAY = range(4)

SLICES = 2
"""Turns of device, sleep and CPU in which a batch is made."""

_NOTHING = 1e-3

Parts = list[list[float]]
"""Kind and ns of what is to be done, the next part last."""


def simulate(trace: Trace, *, shared: bool) -> Floats:
    """Time of each step, ns.

    Args:
        trace: what there is to be done.
        shared: whether what makers of batches sleep for divides a fixed rate among them.
    """
    return _Run(trace, shared).steps() if trace.workers else _in_turn(trace, shared)


def _in_turn(trace: Trace, shared: bool) -> Floats:
    """Without workers one thing comes after another, and no other maker is waited for."""
    device, sleep = trace.concurrency if shared else (1.0, 1.0)
    alone = min(1.0, trace.cpus)
    beside = min(1.0, trace.cpus / (1.0 + trace.side))
    making = trace.make_cpu / alone + trace.make_device / device + trace.make_sleep / sleep
    rare = trace.checkpoint + trace.validation
    drawing = trace.draw.cpu / alone + trace.draw.away
    return making + drawing + trace.cpu / beside + trace.away + rare


class _Run:
    """The training thread is actor 0, then come the workers, then what hands over for each."""

    def __init__(self, trace: Trace, shared: bool) -> None:
        self._trace = trace
        self._shared = shared
        device, sleep = trace.concurrency if shared else (1.0, 1.0)
        making = (trace.make_device / device, trace.make_sleep / sleep, trace.make_cpu)
        self._making = np.column_stack(making).tolist()
        self._ends = [*np.flatnonzero(trace.is_first).tolist(), len(trace)]
        self._jobs: dict[int, Parts] = {}
        self._next = list(range(trace.workers))
        self._made: dict[int, int] = {}
        self._leaving: list[list[int]] = [[] for _ in range(trace.workers)]
        self._ready: set[int] = set()
        self._taken = 0
        self._now = 0.0

    def steps(self) -> Floats:
        trace = self._trace
        ends = np.zeros(len(trace))
        first = 0
        for end in self._ends:
            if first and trace.start:
                self._do([[AWAY, trace.start]])
            self._next = [first + worker for worker in range(trace.workers)]
            for number in range(first, end):
                self._step(number, end)
                ends[number] = self._now
            first = end
        return np.diff(ends, prepend=0.0)

    def _step(self, number: int, end: int) -> None:
        self._give_work(end)
        while number not in self._ready:
            self._advance()
            self._give_work(end)
        self._ready.discard(number)
        self._taken = number + 1
        self._give_work(end)
        trace = self._trace
        rare = trace.checkpoint[number] + trace.validation[number]
        away = trace.away[number] + rare
        parts = [
            [AWAY, away],
            [CPU, trace.cpu[number]],
            [AWAY, trace.hand.away + trace.draw.away],
            [CPU, trace.hand.receive + trace.draw.cpu],
        ]
        self._do([part for part in parts if part[1] > _NOTHING], end)

    def _do(self, parts: Parts, end: int = 0) -> None:
        """Go on until the training thread has done this."""
        if not parts:
            return
        self._jobs[0] = parts
        while 0 in self._jobs:
            self._advance()
            self._give_work(end)

    def _give_work(self, end: int) -> None:
        trace, jobs = self._trace, self._jobs
        if end == len(trace):  # no end of an epoch, but of the record: workers go on
            end += trace.prefetch * trace.workers
        most = min(end, self._taken + trace.prefetch * trace.workers)
        for worker in range(trace.workers):
            actor = 1 + worker
            if actor not in jobs and self._next[worker] < most:
                number = self._next[worker]
                self._next[worker] += trace.workers
                self._made[worker] = number
                jobs[actor] = self._parts(number % len(trace), worker)
            feeder = actor + trace.workers
            if feeder not in jobs and self._leaving[worker]:
                rest = max(0.0, trace.hand.feed - trace.hand.feed_cpu)
                parts = [[AWAY, max(1.0, rest)], [CPU, trace.hand.feed_cpu]]
                jobs[feeder] = [part for part in parts if part[1] > _NOTHING]

    def _parts(self, number: int, worker: int) -> Parts:
        """Workers are not in step: each begins with another kind."""
        device, sleep, cpu = (ns / SLICES for ns in self._making[number])
        once = [[CPU, cpu], [SLEEP, sleep], [DEVICE, device]]
        once = [part for part in once if part[1] > _NOTHING]
        turn = worker % max(1, len(once))
        parts = [list(part) for _ in range(SLICES) for part in once[turn:] + once[:turn]]
        return parts or [[CPU, 1.0]]

    def _advance(self) -> None:
        """To the next moment at which somebody has done something."""
        jobs, trace = self._jobs, self._trace
        computing = 0.0
        asleep = [0, 0, 0, 0]
        for actor, parts in jobs.items():
            kind = parts[-1][0]
            if kind == CPU:
                computing += 1.0 + trace.side if actor == 0 else 1.0
            else:
                asleep[int(kind)] += 1
        cpu = min(1.0, trace.cpus / computing) if computing else 1.0
        device, sleep = (
            1.0 / asleep[kind] if asleep[kind] and self._shared else 1.0 for kind in (DEVICE, SLEEP)
        )
        rates = (cpu, device, sleep, 1.0)
        step = min(parts[-1][1] / rates[int(parts[-1][0])] for parts in jobs.values())
        self._now += step
        for actor in list(jobs):
            parts = jobs[actor]
            part = parts[-1]
            part[1] -= step * rates[int(part[0])]
            if part[1] <= _NOTHING:
                parts.pop()
                if not parts:
                    del jobs[actor]
                    self._done(actor)

    def _done(self, actor: int) -> None:
        worker = (actor - 1) % self._trace.workers
        if actor > self._trace.workers:
            self._ready.add(self._leaving[worker].pop(0))
        elif actor:
            self._leaving[worker].append(self._made[worker])
