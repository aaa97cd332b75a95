"""One process observed from outside: from its number to its run log."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from trainobs.attach.clock import KernelStepClock
from trainobs.attach.functions import NONE_FOUND, TorchFunction, places_in
from trainobs.attach.process import DO_ROOT, Target, ended, out_of_reach, refused, worker_count
from trainobs.attach.readings import OutsideReadings
from trainobs.attach.roots import data_roots, library_roots_of
from trainobs.attach.siblings import Siblings
from trainobs.attach.unknown import unknown_metrics
from trainobs.core.abi import Event, FileClass
from trainobs.core.coverage import Coverage
from trainobs.core.errors import AttachError, ProbeCause, ProbeError
from trainobs.core.now import clocks
from trainobs.core.records import DATA_IS_NAMED, RunInfo
from trainobs.core.sink import Sink
from trainobs.host.facts import host_facts
from trainobs.host.procfs import PROC, has_rings
from trainobs.probes.attached_backend import FUNCTIONS, AttachedBackend
from trainobs.probes.own_programs import OwnPrograms
from trainobs.probes.shared import SharedProbes
from trainobs.probes.time_namespace import kernel_now_ns
from trainobs.session.delivery import Deliveries
from trainobs.session.ending import tell
from trainobs.session.observer import FULL, Observer
from trainobs.steps.collector import Collector
from trainobs.steps.rule import Rule

LEVEL = "attached"
"""What `run.json` says of such a run."""

_OF_FETCHES = frozenset({"tobs_named", "tobs_ended"})

_SEVERAL = 1.05
"""Steps of optimizers in a step, from which on a step is more than one, and is said to be."""

_Loaded = TypeVar("_Loaded")


def loaded(load: Callable[[], _Loaded]) -> _Loaded:
    """Load what observes processes, which the service does for nobody.

    Raises:
        AttachError: this user may not.
        ProbeError: the kernel side cannot run.
    """
    try:
        return load()
    except ProbeError as error:
        if error.cause is not ProbeCause.NO_PERMISSION:
            raise
        # What root is told of the service, and of a run by other means, is of no use here.
        do = DO_ROOT if os.geteuid() else re.split(", or |; until then", error.do)[0]
        raise AttachError("cannot observe processes from outside", error.found, do) from error


class AttachedRun:
    """Observes one process.

    Once there is a rule for what the clock sees: `begin`, then `read` again and again, then `end`;
    `start` alone where nothing is recorded.

    Args:
        process: the process.
        probes: the probes, in which it gets a slot.
        slot: a free one.
        data: directories and files with training data; None: to be found.
        rank: in its run log.
        own: programs of the user's, which whoever made them closes.

    Attributes:
        clock: its steps.
        info: of the run.

    Raises:
        AttachError: the process cannot be observed.
        ProbeError: the kernel side cannot run.
    """

    def __init__(
        self,
        process: Target,
        probes: SharedProbes,
        slot: int,
        data: Sequence[Path] | None = None,
        rank: int = 0,
        own: OwnPrograms | None = None,
    ) -> None:
        self.process = process
        self._has_data = data is not None
        self._backend = AttachedBackend(probes, slot, process.tgid, own)
        self._observer: Observer | None = None
        self._doubt = ""
        self._siblings: Siblings | None = None
        try:
            self._add_roots(data)
            self._seen = self._see_functions()
            if not self._backend.follow(process.own_tid):
                raise ended(process.tgid)
            self.clock = KernelStepClock(self._backend.clock, self._backend.seen)
            self.info = self._info(rank)
            if data is not None:
                self.info.settings[DATA_IS_NAMED] = True
        except BaseException:
            self._backend.stop()
            raise

    @property
    def rank(self) -> int:
        """Its rank in the run log."""
        return self.info.rank

    @property
    def rows(self) -> npt.NDArray[np.void]:
        """Step rows as the kernel counts them."""
        return self._backend.rows

    def program_fds(self) -> dict[str, int]:
        """Descriptors of the programs that run on events."""
        return self._backend.program_fds()

    def times_fetches(self, rule: Rule) -> bool:
        """Whether the wait for the loader can be told under a rule."""
        ends = self._seen >= _OF_FETCHES and self.clock.look().ends_are_seen
        return rule.opens is Event.FETCH and ends

    def start(self, rule: Rule, *, times_fetches: bool) -> None:
        """Have steps by a rule."""
        self._backend.follow(rule.tid)
        self.clock.start(rule, times_fetches=times_fetches)

    def begin(self, rule: Rule, sinks: Sequence[Sink]) -> None:
        """Have steps by a rule, and record them."""
        times_fetches = self.times_fetches(rule)
        self._note(rule, times_fetches)
        coverage = Coverage(self._backend.status)
        self._readings = OutsideReadings(self._backend, coverage, self.process.tgid, self.info.host)
        workers = self.info.settings.get("loader_workers")
        self._collector = Collector(
            self.clock,
            self._backend,
            coverage=coverage,
            rings=has_rings(PROC / str(self.process.tgid) / "fd"),
            own=self._backend.own_tables(),
            unknown=unknown_metrics(
                times_fetches=times_fetches,
                finds_data=self._has_data or times_fetches or bool(workers),
            ),
            sources=[self._readings],
        )
        self._observer = Observer(self.info, self._collector, Deliveries(sinks), self._readings)
        self._observer.start()  # which takes a while, and steps may be short
        self.start(rule, times_fetches=times_fetches)
        if self.info.world_size == 1:  # of ranks it is known what is theirs
            self._siblings = Siblings(self.process.tgid)

    def read(self) -> None:
        """Close the steps that are over, and copy them before the kernel's ring comes round.

        Raises:
            OverrunError: it has come round.
        """
        self.clock.read()
        if not self._doubt and (doubt := self.clock.doubt()):
            self._doubt = doubt
            self._qualify(doubt)
        if len(self.clock.closed) >= FULL:
            self._collector.collect()

    def end(self, outcome: str) -> None:
        """Take everything out of the kernel, and write what is left. May be called twice."""
        observer, self._observer = self._observer, None
        with ExitStack() as parts:
            if observer:
                parts.callback(self._readings.close)
                parts.callback(self._stop, observer, outcome)
                parts.callback(self._readings.stop)
            parts.callback(self._backend.stop)
            if observer:
                parts.callback(self._finish)

    def _stop(self, observer: Observer, outcome: str) -> None:
        observer.stop({"outcome": outcome, "losses": self._backend.losses()})

    def _add_roots(self, data: Sequence[Path] | None) -> None:
        for root in library_roots_of(self.process):
            with suppress(OSError):  # gone, or not for this user to see
                self._backend.add_root(root, FileClass.LIBRARY)
        self._backend.infer_data(data is None)
        self._backend.add_roots(data_roots(self.process, data or ()), FileClass.DATA)

    def _see_functions(self) -> frozenset[str]:
        """Have the process come by our programs; which of them it does."""
        places = places_in(self.process)
        if not places:
            do = "`trainobs attach` tells its period; from inside, `trainobs.observe` its steps"
            raise refused(self.process.tgid, NONE_FOUND, do)
        for place in places:
            self._see(place)
        return frozenset(place.program for place in places)

    def _see(self, place: TorchFunction) -> None:
        try:
            self._backend.see(*place)
        except ProbeError as error:
            raise out_of_reach(self.process.tgid, f"{error.failed}: {error.found}") from error

    def _info(self, rank: int) -> RunInfo:
        process = self.process
        world_size = process.number("WORLD_SIZE", 1)
        host = host_facts(tgid=process.tgid)
        host["local_world_size"] = process.number("LOCAL_WORLD_SIZE", 0) or None
        missing = {name: f"this torch has no {FUNCTIONS[name]}" for name in FUNCTIONS}
        return RunInfo(
            level=LEVEL,
            rank=rank,
            world_size=world_size,
            host=host,
            clock={**clocks(), "monotonic_ns": kernel_now_ns()},  # as its steps have it
            capabilities=dict(self._backend.status)
            | {name: "on" if name in self._seen else why for name, why in missing.items()}
            | self._backend.own.status,
            counters=self._backend.own.counters,
            gpu={"name": process.gpu} if process.gpu else {},
        )

    def _note(self, rule: Rule, times_fetches: bool) -> None:
        process = self.process
        workers = worker_count(process.tgid)
        if times_fetches:
            self.info.settings["loader_workers"] = workers
        self.info.settings[LEVEL] = {
            "pid": process.tgid,
            "user": process.user,
            "command": process.command,
            "torch": process.torch.path if process.torch else None,
            "steps": rule.told,
            "waits_are_timed": times_fetches,
            "by_pid": os.getpid(),
        }

    def _finish(self) -> None:
        """Have no step follow, and tell of the others, and how often a step had each event."""
        self.clock.finish()
        if self._siblings and (note := self._siblings.note()):
            self._noted()["siblings"] = note
        if count := self.clock.step_count:
            means = (self.clock.counts / count).tolist()
            names = (event.name.lower() for event in Event)
            self._noted()["events_per_step"] = dict(zip(names, means, strict=True))
            if means[Event.OPTIMIZER] >= _SEVERAL:
                self._qualify(f"{means[Event.OPTIMIZER]:.3g} optimizer steps in a step")

    def _qualify(self, what: str) -> None:
        """Tell of the rule what was not known as it was taken."""
        self._noted()["steps"] = f"{what}: {self._noted()['steps']}"
        tell(f"process {self.process.tgid}: {what}")

    def _noted(self) -> dict[str, Any]:
        note = self.info.settings[LEVEL]
        assert isinstance(note, dict)
        return note
