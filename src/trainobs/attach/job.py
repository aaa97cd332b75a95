"""The ranks of a job on this machine, observed from outside until something ends it."""

from __future__ import annotations

import os
import select
import shlex
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType

from trainobs.attach.clock import OverrunError
from trainobs.attach.functions import NONE_FOUND, places_in
from trainobs.attach.periodic import PeriodWatch, observe, record
from trainobs.attach.process import (
    IDLE_S,
    IDLE_SHARE,
    TORCH,
    Target,
    attach_to,
    cpu_s,
    ended,
    find,
    has_ended,
    image_of,
    look_at,
    named,
    refused,
    training_below,
    why_it_stands,
)
from trainobs.attach.run import AttachedRun, loaded
from trainobs.attach.target_files import file_of
from trainobs.core.abi import SLOTS, Event
from trainobs.core.errors import AttachError
from trainobs.core.pidfd import pidfd_open
from trainobs.core.sink import Sink
from trainobs.host.procfs import PROC, parse_stat, read_bytes
from trainobs.host.tree import find_tree
from trainobs.probes.own_probe import Probe
from trainobs.probes.own_programs import SHARED_MAPS, OwnPrograms
from trainobs.probes.shared import SharedProbes
from trainobs.runlog.directory import claim, give_back, try_to_write
from trainobs.runlog.writer import RunLogSink
from trainobs.session.ending import tell, tell_end
from trainobs.session.runs import default_run_dir
from trainobs.session.settings import LOG_EVERY_N_STEPS, run_dir_at
from trainobs.steps.rule import SEVERAL, EventCounts, Rule, rule_for
from trainobs.tensorboard.layout import LayoutWriter
from trainobs.tensorboard.sink import EventFile, TensorBoardSink

READ_S = 0.05
"""How often steps are read: the kernel keeps 128 of them."""

_INSIDE = "observe its steps from inside, by `trainobs.observe`"

_COUNT_BY_TIME = "count by time: `bpftrace -f json`, docs/own-probes.md"

_IMAGE_EVERY_S = 1.0


class StopCondition:
    """Why to end: a signal, the death of a process, or another program that it runs.

    Raises:
        AttachError: one has ended already.
    """

    def __init__(self, processes: Sequence[Target]) -> None:
        self.reason = ""
        self._poll = select.poll()
        self._images = {process.tgid: image_of(process.tgid) for process in processes}
        self._next_s = time.monotonic() + _IMAGE_EVERY_S
        self._pidfds: list[int] = []
        for process in processes:
            try:
                self._pidfds.append(pidfd_open(process.tgid))
            except ProcessLookupError as error:
                self.close()
                raise ended(process.tgid) from error
            self._poll.register(self._pidfds[-1], select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Wait, at most until there is a reason; whether there is one."""
        if not self.reason and self._poll.poll(seconds * 1000):
            self.reason = "the process has ended"
        if not self.reason and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + _IMAGE_EVERY_S
            if any(_is_replaced(tgid, image) for tgid, image in self._images.items()):
                self.reason = "the process runs another program now"
        return bool(self.reason)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Let Ctrl-C, and whoever ends this process in an orderly way, be a reason."""
        asked = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as behind nohup
            asked.append(signal.SIGHUP)
        before = {number: signal.signal(number, self._asked) for number in asked}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """Close the descriptors."""
        while self._pidfds:
            os.close(self._pidfds.pop())

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.reason = f"ended by {signal.Signals(number).name}"


def _is_replaced(tgid: int, image: bytes) -> bool:
    """Whether a process runs another program than the one with that image."""
    return image_of(tgid) not in (image, b"") and not has_ended(tgid)


def attach(
    pid: int,
    *,
    seconds: float | None = None,
    look_s: float = 60.0,
    data: Sequence[Path] | None = None,
    own: Sequence[Probe] = (),
    run_dir: Path | None = None,
) -> Path:
    """Observe a process from outside, and the other ranks of its job on this machine.

    Args:
        pid: the process, as this one sees it.
        seconds: how long, from the first step on; None: until it ends, or Ctrl-C.
        look_s: how long to look for its steps.
        data: directories and files with training data, as the process names them; None: to be
            found.
        own: programs of the user's; a library's name is that of a file that the process has mapped.
        run_dir: where the run log goes; if a run is there already, a directory beside it.

    Returns:
        The run directory.

    Raises:
        AttachError: it cannot be observed, or no steps are seen.
        ProbeError: the kernel side cannot run.
        SettingError: `run_dir` is a file, or a URL.
    """
    run_dir = run_dir and run_dir_at(run_dir, "--run-dir")  # told before steps are looked for
    process = find(pid)
    if not places_in(process):
        OwnPrograms().refuse(own, "this process has no steps to count for", _COUNT_BY_TIME)
        return _attach_without_steps(process, seconds, look_s, run_dir)
    processes = ranks_of(process)
    with ExitStack() as parts:
        ending = parts.enter_context(ending_of(processes))
        probes = loaded(SharedProbes)
        parts.callback(probes.stop)
        programs = OwnPrograms(len(processes), partial(file_of, process))
        parts.callback(programs.close)
        programs.load(own, probes.maps(SHARED_MAPS))
        runs = []
        for slot, (process, rank) in enumerate(zip(processes, _ranks(processes), strict=True)):
            runs.append(AttachedRun(process, probes, slot, data, rank, programs))
            parts.callback(runs[-1].end, "not begun")
        rules = _look(runs, ending, look_s)
        return _observe(runs, rules, ending, seconds, run_dir)


def ranks_of(process: Target) -> list[Target]:
    """A process and, where a launcher has started it as a rank, the other ranks of its job here."""
    if process.number("WORLD_SIZE", 1) < 2 or "RANK" not in process.environment:
        return [process]
    try:
        parent = parse_stat(read_bytes(f"{PROC}/{process.tgid}/stat")).parent
    except OSError as error:
        raise ended(process.tgid) from error
    found = {process.tgid: process}
    for tgid in find_tree(PROC).descendants(parent) or ():
        with suppress(OSError):
            other = found.get(tgid) or look_at(tgid)
            if _is_rank_of(other, process) and not other.is_observed:
                found[tgid] = other
    ranks = sorted(found.values(), key=lambda one: one.number("RANK", 0))
    return ranks if len({one.number("RANK", 0) for one in ranks}) == len(ranks) else [process]


_OF_A_JOB = ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _is_rank_of(other: Target, process: Target) -> bool:
    """Whether it is another rank of the job, and no worker of one, which has the same settings."""
    mine, theirs = process.environment, other.environment
    same = all(mine.get(name) == theirs.get(name) for name in _OF_A_JOB)
    is_new = theirs.get("RANK", "") != mine["RANK"] and other.uid == process.uid
    return same and is_new and other.torch is not None and not _is_worker(other)


def _is_worker(process: Target) -> bool:
    """Whether its parent has the same rank."""
    with suppress(OSError):
        stat = parse_stat(read_bytes(f"{PROC}/{process.tgid}/stat"))
        parent = look_at(stat.parent).environment
        return parent.get("RANK") == process.environment.get("RANK")
    return False


def _ranks(processes: Sequence[Target]) -> list[int]:
    """Their ranks in the run log, which begins with 0, also where that one is elsewhere."""
    ranks = [process.number("RANK", 0) for process in processes]
    return ranks if 0 in ranks and len(ranks) <= SLOTS else list(range(len(processes)))


@contextmanager
def ending_of(processes: Sequence[Target]) -> Iterator[StopCondition]:
    """What ends the observation of some processes; signals, until it is left.

    Raises:
        AttachError: one has ended already.
    """
    ending = StopCondition(processes)
    try:
        with ending.on_signals():
            yield ending
    finally:
        ending.close()


def _attach_without_steps(
    process: Target, seconds: float | None, look_s: float, run_dir: Path | None
) -> Path:
    why = NONE_FOUND if process.torch else f"no {TORCH} is mapped"
    with ending_of([process]) as ending:
        watch = loaded(partial(PeriodWatch, process, why))
        try:
            observe(watch, ending.wait, seconds=seconds, look_s=look_s)
        finally:
            watch.stop()
        _tell_reason(ending)
        place = _claim((run_dir or default_run_dir(Path(), 1)).absolute(), 0)
        record(watch, place, "ok")
    tell(f"the run is in {place}", f"see `trainobs report {shlex.quote(str(place))}`")
    return place


def _observe(
    runs: Sequence[AttachedRun],
    rules: Sequence[Rule],
    ending: StopCondition,
    seconds: float | None,
    run_dir: Path | None,
) -> Path:
    asked = (run_dir or default_run_dir(Path(), 1)).absolute()
    place = asked
    for run, rule in zip(runs, rules, strict=True):
        place = _claim(place, run.rank)
        run.begin(rule, _sinks(run, place, asked))
        tell(f"attached to process {run.process.tgid}: {rule.told}")
    _follow(runs, ending, None if seconds is None else time.monotonic() + seconds)
    _tell_reason(ending)
    for run in runs:
        run.end("ok")
    return place


def _tell_reason(ending: StopCondition) -> None:
    if ending.reason:
        tell(ending.reason)


def _claim(place: Path, rank: int) -> Path:
    """A directory that a run can be written to; it is asked for some bytes.

    Raises:
        AttachError: there is none.
    """
    try:
        found = claim(place, rank)
        try:
            try_to_write(found, rank)
        except OSError:
            give_back(found, rank)
            raise
    except OSError as error:
        do = "give a directory on a disk with space left, which you may write to: `--run-dir`"
        raise AttachError("cannot write the run log", str(error), do) from error
    return found


def _look(runs: Sequence[AttachedRun], ending: StopCondition, seconds: float) -> list[Rule]:
    """The rule of each, as soon as all have one."""
    before = [cpu_s(run.process.tgid) for run in runs]
    next_s = IDLE_S
    while True:
        rules = [rule_for(run.clock.look()) for run in runs]
        found = [rule for rule in rules if rule is not None]
        if len(found) == len(runs):
            return found
        without = runs[rules.index(None)]
        seen = without.clock.look()
        is_hopeless = seen.elsewhere[Event.OPTIMIZER] or seen.seconds > seconds
        if seen.seconds > next_s:
            next_s += IDLE_S
            used_s = cpu_s(without.process.tgid) - before[rules.index(None)]
            is_idle = not any(seen.counts) and used_s < IDLE_SHARE * seen.seconds
            is_hopeless = is_hopeless or (is_idle and bool(training_below(without.process.tgid)))
        if ending.wait(READ_S) or is_hopeless:
            raise _no_steps(without, ending.reason)


def _no_steps(run: AttachedRun, reason: str) -> AttachError:
    seen = run.clock.look()
    counts = ", ".join(
        f"{what} {seen.counts[event]}"
        for event, what in {
            Event.BACKWARD: "backward passes",
            Event.OPTIMIZER: "steps of an optimizer",
            Event.FETCH: "fetches of a batch",
        }.items()
    )
    tgid = run.process.tgid
    why, do = _why_no_steps(tgid, seen)
    reason = f"; {reason or why}" if reason or why else ""
    found = f"no step boundary found: in {seen.seconds:.1f} s {counts}{reason}"
    return refused(tgid, found, do)


def _why_no_steps(tgid: int, seen: EventCounts) -> tuple[str, str]:
    """Why no steps were seen, or ""; and what to do."""
    why, do = why_it_stands(tgid)
    if why:
        return why, do
    if seen.elsewhere[Event.OPTIMIZER]:
        return SEVERAL, f"{_INSIDE} in one of them"
    below = () if any(seen.counts) else training_below(tgid)
    if below:
        return f"it has started {named(below)}, with torch", attach_to(below)
    if any(seen.counts) and not seen.counts[Event.BACKWARD]:
        return "", f"attach while it trains; where that is without autograd, {_INSIDE}"
    return "", "attach while it trains; where a step takes longer, with a longer `--look`"


def _sinks(run: AttachedRun, place: Path, asked: Path) -> list[Sink]:
    log = RunLogSink(place, run.rank, claimed=True)
    if run.rank:
        return [log]
    board = LayoutWriter(EventFile(place / "tensorboard"))
    at_end = partial(tell_end, place, asked, str(place))
    return [log, TensorBoardSink(board, LOG_EVERY_N_STEPS, on_verdict=at_end)]


def _follow(runs: Sequence[AttachedRun], ending: StopCondition, until: float | None) -> None:
    while not ending.wait(READ_S) and (until is None or time.monotonic() < until):
        try:
            for run in runs:
                run.read()
        except OverrunError as error:
            for run in runs:
                run.end(f"given up: {error}")
            return
