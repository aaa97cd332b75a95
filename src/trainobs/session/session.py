"""One observed run: which level it is on, and all its parts wired together."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from traceback import clear_frames

from trainobs.core.abi import FileClass, Op
from trainobs.core.another_thread import in_another_thread
from trainobs.core.coverage import CALLS, FEEDS, SCHEDULER, Coverage
from trainobs.core.log import logger
from trainobs.core.now import clocks
from trainobs.core.records import DATA_IS_NAMED, RunInfo
from trainobs.core.signals import Ending, let_signals_through, stay_interrupted
from trainobs.core.sink import Sink
from trainobs.host.facts import host_facts
from trainobs.host.procfs import has_rings, has_room_for_files
from trainobs.host.sampler import HostSampler
from trainobs.probes.detach import detach
from trainobs.probes.own_programs import OwnPrograms
from trainobs.session.accelerator import Accelerator, AcceleratorWatch
from trainobs.session.delivery import Deliveries
from trainobs.session.file_watch import FileWatch
from trainobs.session.forks import others_here, register_fork_cleanup, unregister_fork_cleanup
from trainobs.session.lookups import HotRowSource, HotRowWatch, LookupReadings, LookupWatch
from trainobs.session.machine import MachineReadings
from trainobs.session.observer import FULL, Observer
from trainobs.session.opening import Opening
from trainobs.session.readings import RunReadings
from trainobs.session.settings import Settings, library_roots
from trainobs.session.sink_router import SinkRouter
from trainobs.steps.clock import StepClock
from trainobs.steps.collector import Collector
from trainobs.steps.fast_path import LANGUAGE, tell_if_stale
from trainobs.steps.ledger import Ledger

_OVERFLOW = FULL + FULL // 2
"""Closed steps at which the training thread collects them itself, lest the ring comes round."""

_CALIBRATION_SWITCHES = 1000


class Session:
    """Observes the calling process from construction to `stop`.

    Attributes:
        ledger: to be told which batches the training loop gets.
        clock: to be told what the training loop does, by the thread that made the session.
        level: "ebpf", "procfs" or "timing".
        info: what is true for the whole run.

    Raises:
        ProbeError: a probe that was asked for by name cannot run.
    """

    def __init__(
        self,
        settings: Settings,
        sinks: Sequence[Sink] | SinkRouter,
        *,
        rank: int = 0,
        world_size: int = 1,
        noted: Mapping[str, object] | None = None,
        accelerator: Accelerator | None = None,
        lookups: LookupWatch | None = None,
        files: FileWatch | None = None,
        waits_on_host: Callable[[], bool] = lambda: False,
    ) -> None:
        tell_if_stale()
        self._files = files
        self._pid = os.getpid()
        self._stopped = self._forgotten = False
        self._asks_at_each_step = False  # a model's parts
        self._removing = threading.Lock()
        self._machine = MachineReadings()
        self._lookups = lookups or LookupWatch()
        self.look_at_end = self._lookups.look_at_end  # at a model that has no tables yet
        opening = Opening(settings, self._removing)
        try:
            self._kernel, why_not = opening.backend()
            self._coverage = Coverage(self._kernel.status if self._kernel else {})
            sees_calls = self._coverage.knows(CALLS)
            reads_host = settings.probes and not sees_calls and has_room_for_files()
            self._host = HostSampler.open() if reads_host else None
            self.level = "ebpf" if sees_calls else "procfs" if self._host else "timing"
            self.info = self._run_info(settings, why_not, rank, world_size, dict(noted or {}))
            if self._files:
                self._files.attach(self._kernel, why_not, self.info)
            self._tell_why_not(settings, why_not)
            switch_cost_ns = _switch_cost_ns()
            self._hot_rows = HotRowWatch(self.info)
            self._gpu = AcceleratorWatch(accelerator, self.info)
            if self._kernel or self._host:
                self._machine.begin(self.info.host, pressure=not self._host)
            self.clock = StepClock(
                self._kernel.clock if self._kernel else [0],
                sample=self._host.sample if self._host else None,
                on_close=self._on_close,
            )
            self.info.phases = self.clock.named
            self.ledger = self._new_ledger()
            self._collector = self._new_collector(switch_cost_ns)
            self._gpu.attach(self.clock)
            self._readings = RunReadings(
                self._kernel,
                self._coverage,
                host=self._host,
                gpu=self._gpu,
                machine=self._machine,
                ledger=self.ledger,
                files=self._files,
                waits_on_host=waits_on_host,
            )
            calls = sinks if isinstance(sinks, SinkRouter) else Deliveries(sinks)
            self._observer = Observer(self.info, self._collector, calls, self._readings)
            self._begin(settings, opening)
        except BaseException:
            self._machine.close()
            _surely(opening.undo)
            raise

    def _run_info(
        self,
        settings: Settings,
        why_not: str,
        rank: int,
        world_size: int,
        noted: dict[str, object],
    ) -> RunInfo:
        """What is true of the run as it begins."""
        own = self._kernel.own if self._kernel else OwnPrograms()
        if self._kernel is None:
            own.refuse(settings.own, " ".join(why_not.split()), "run `trainobs doctor`")
        status = self._kernel.status if self._kernel else {"ebpf": why_not}
        return RunInfo(
            level=self.level,
            rank=rank,
            world_size=world_size,
            settings=noted,
            host={**host_facts(), "step_clock": LANGUAGE},
            clock=clocks(),
            capabilities={**status, **own.status},
            counters=own.counters,
        )

    def _tell_why_not(self, settings: Settings, why_not: str) -> None:
        """Say why eBPF does not observe, where it was to."""
        if self._kernel and "syscalls" in settings.probes and self.level != "ebpf":
            states = (self._kernel.status[name] for name in self._kernel.status if name in CALLS)
            why_not = f"system calls are not seen: {next(one for one in states if one != 'on')}"
        if why_not and settings.probes:
            _tell_level(self.level, why_not, settings.quiet or settings.unasked)

    def _begin(self, settings: Settings, opening: Opening) -> None:
        try:
            register_fork_cleanup(self)
            self._register(settings)
            atexit.register(self.stop, "interpreter exit")
            self._observer.start()
            opening.keep()
        except BaseException:
            self.stop("not begun")
            raise

    def add_data_roots(self, roots: Sequence[Path]) -> None:
        """Count what lies below some directories as training data."""
        if self._files:
            self._files.add_roots(roots)
        self._add_roots(roots, FileClass.DATA)

    def add_checkpoint_roots(self, roots: Sequence[Path]) -> None:
        """Count what lies below some directories as checkpoints."""
        self._add_roots(roots, FileClass.CHECKPOINT)

    def note_workers(self, count: int | None) -> None:
        """Write down how many workers the training loader has, if it tells; the first counts."""
        if count is not None:
            self.info.settings.setdefault("loader_workers", count)

    def note_steps(self, found: str) -> None:
        """Write down what a step is, in words, where no framework says so."""
        self.info.settings["steps"] = found

    def watch_lookups(self, lookups: LookupReadings) -> None:
        """Record the lookups of a model's embedding tables, once; for the training thread."""
        if self._stopped:
            lookups.close()
        else:
            self._ask_at_each_step()
            self._observer.add_sinks(self._lookups.attach(lookups, self.info))

    def watch_hot_rows(self, hot_rows: HotRowSource) -> None:
        """Record what a model's hot embedding rows do, once; for the training thread."""
        self._ask_at_each_step()
        self._hot_rows.attach(hot_rows)
        self.clock.sample_too(self._read_hot_rows)

    def _read_hot_rows(self, serial: int) -> None:
        if self._hot_rows.source is not None and not self._forgotten:
            self._hot_rows.stepped(serial)

    def _ask_at_each_step(self) -> None:
        self._asks_at_each_step = True
        self.clock.may_wait = 0

    def detach(self) -> None:
        """Be counted by no session of an ancestor.

        To be said again once the ancestor's session has surely begun, too: it adopts its
        descendants as it begins.
        """
        if not others_here(self):
            detach()

    def stop(self, outcome: str = "ok") -> None:
        """Close the last step, take the probes out, write everything. May be called twice.

        Args:
            outcome: how the run ended, for the run log.
        """
        if self._stopped or os.getpid() != self._pid:
            return
        try:
            _surely(partial(self._end, outcome))
        finally:
            _surely(self._forget)
            stay_interrupted()

    def abandon(self) -> None:
        """In a forked child: let go of everything; the parent goes on observing."""
        self._stopped = self._forgotten = True
        self.clock.detach()
        self.clock.on_cancel = None  # or the collector: its lock may be held for ever here
        self._machine.close()
        self._observer.abandon()
        self._gpu.abandon()
        self._lookups.close()
        if self._kernel:
            self._kernel.abandon()
        if self._host:
            self._host.close()

    def _end(self, outcome: str) -> None:
        """May be done twice. A fault of one part keeps none of the others."""
        with Ending() as parts:
            parts.callback(self._machine.close)
            parts.callback(self._stop_observer, outcome)
            parts.callback(self._let_go)
            parts.callback(self.clock.finish)

    def _stop_observer(self, outcome: str) -> None:
        losses = self._kernel.losses() if self._kernel else {}
        self._observer.stop({"outcome": outcome, "losses": losses})

    def _let_go(self) -> None:
        """Take out what is in the kernel, and mark no more."""
        self._stopped = True
        unregister_fork_cleanup(self)
        self.clock.detach()
        self._readings.stop()
        self._gpu.close()
        self._lookups.close()
        if self._kernel:
            # In another thread, since a signal handler may raise anywhere in this one.
            in_another_thread(self._remove)
        if self._host:
            self._host.close()

    def _remove(self) -> None:
        with self._removing:
            if self._kernel:
                self._kernel.stop()

    def _forget(self) -> None:
        """What maps the kernel's arrays keeps them there, and nobody knows who keeps us."""
        atexit.unregister(self.stop)
        self._forgotten = True
        self._kernel = None
        if self._files:
            self._files.release()
        self.ledger.release()
        for name in ("_collector", "_observer", "_readings"):
            self.__dict__.pop(name, None)

    def _new_collector(self, switch_cost_ns: float) -> Collector:
        kernel, host = self._kernel, self._host
        return Collector(
            self.clock,
            kernel,
            coverage=self._coverage,
            rings=kernel is not None and has_rings(),
            own=kernel.own_tables() if kernel else None,
            host_names=host.available if host else (),
            switch_cost_ns=switch_cost_ns,
            ledger=self.ledger,
            lookups=self._lookups,
            sources=[self._machine, self._hot_rows, *self._gpu.sources],
            ready=self._gpu.ready,
        )

    def _new_ledger(self) -> Ledger:
        """A batch is known where the calls are, and what its maker did where the scheduler is."""
        marked = self._kernel if self._coverage.knows(CALLS) else None
        return Ledger(
            marked,
            timed=self._coverage.knows(CALLS | SCHEDULER),
            receives=self._coverage.knows(FEEDS[Op.RECEIVE]),
        )

    def _register(self, settings: Settings) -> None:
        if self._kernel is None:
            return
        self._add_roots(library_roots(), FileClass.LIBRARY)
        self._kernel.infer_data(settings.data_roots is None)
        if settings.data_roots is not None:
            self.info.settings[DATA_IS_NAMED] = True
        self.add_data_roots(settings.data_roots or ())
        self.detach()
        self._kernel.adopt()

    def _add_roots(self, roots: Sequence[Path], file_class: FileClass) -> None:
        kernel = self._kernel
        if kernel is None or self._stopped:
            return
        try:
            kernel.add_roots(roots, file_class)
        except OSError as error:
            logger.warning(
                "cannot follow every root of class %s\n  found: %s\n"
                "  do:    see that it can be opened; the others are followed",
                file_class.name.lower(),
                error,
            )

    def _on_close(self) -> None:
        # A loop that goes on after its run, in a forked child, or after a fault of the observer.
        if self._forgotten or self._observer.gave_up:
            self.clock.closed.clear()
            return
        if self._gpu.unknown:
            self._gpu.ask()
        if self._lookups.failed:
            self._lookups.close()
        waiting = len(self.clock.closed)
        if waiting >= _OVERFLOW:
            try:
                self._collector.collect()
            except Exception as error:  # it would end the training
                let_signals_through()
                self._observer.give_up(error)
        elif waiting == FULL:
            self._observer.wake()
        calm = not self._gpu.unknown and not self._asks_at_each_step
        self.clock.may_wait = FULL if calm else 0


def _surely(action: Callable[[], None]) -> None:
    """Do what may be done twice, though a signal handler raises in the middle of it.

    Torch's handler of SIGCHLD does when a loader worker is killed, and so does a second Ctrl-C.
    """
    try:
        _releasing(action)
    except BaseException:
        _releasing(action)
        raise


def _releasing(action: Callable[[], None]) -> None:
    """Keep nothing alive by what was raised: it knows our frames, and an Ending's knows it."""
    try:
        action()
    except BaseException as error:
        clear_frames(error.__traceback__)
        raise


@cache  # once for a process: a notebook's cells are run again and again
def _tell_level(level: str, why_not: str, quiet: bool) -> None:
    source = "/proc counters of the process tree" if level == "procfs" else "timing only"
    grade = logging.INFO if quiet else logging.WARNING
    logger.log(grade, "trainobs runs without eBPF, on %s: %s", source, why_not)


def _switch_cost_ns() -> float:
    """Cost of one switch of phase on this machine, measured on a clock of its own."""
    clock = StepClock(memoryview(bytearray(8)).cast("Q"))
    begin = time.perf_counter_ns()
    for _ in range(_CALIBRATION_SWITCHES // 2):
        clock.enter(1)
        clock.leave()
    return (time.perf_counter_ns() - begin) / _CALIBRATION_SWITCHES
