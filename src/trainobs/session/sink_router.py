"""Where sinks are called: here, or those of the record in a writer process, if one is wanted.

It is started with the first steps. Should it not start, or end too early, this process
takes the sinks as they were handed back last, makes the calls since then once more, and goes on by
itself: nothing is lost, and nothing is there twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from trainobs.core.errors import SettingError, shown
from trainobs.core.log import logger
from trainobs.core.records import RunInfo, StepTable
from trainobs.core.sink import Sink
from trainobs.session.delivery import Deliveries
from trainobs.session.messages import pack, unpack
from trainobs.session.writer_process import WriterProcess
from trainobs.session.writer_proxies import (
    EVENTS,
    INFO,
    EventReceiver,
    SinkCall,
    Source,
    SourceResult,
    WriterReply,
)

WRITTEN_BY = "written_by"
"""Setting of a run: who writes its record, and, if that is not the writer process, why."""

SWITCH = "TRAINOBS_WRITER"
"""Environment variable; with "process" a run has a writer process, with "thread" it has none."""


def process_is_wanted() -> bool:
    """Whether runs that begin now are to have one.

    Raises:
        SettingError: the variable has another value.
    """
    value = os.environ.get(SWITCH) or "thread"
    if value not in {"process", "thread"}:
        raise SettingError(
            f"bad value in the environment for {SWITCH}",
            shown(value),
            'set it to "process" or "thread"',
        )
    return value == "process"


class SinkRouter:
    """Calls the sinks of a run, as `Deliveries` does, wherever they are.

    Args:
        sinks: of the run; those that say so stay here.
        sources: by name, what they ask of this process.
        events: by which TensorBoard's events go where the user has them go; None for own files.
    """

    def __init__(
        self,
        sinks: Sequence[Sink],
        sources: Mapping[str, Source],
        events: EventReceiver | None = None,
    ) -> None:
        self._here = Deliveries(sink for sink in sinks if sink.stays)
        self._others = Deliveries(sink for sink in sinks if not sink.stays)
        self._sources = dict(sources)
        self._events = events
        self._process: WriterProcess | None = None
        self._wanted = process_is_wanted()

    def prepare(self) -> None:
        """Have the sinks of this process import what the first steps will need."""
        self._here.prepare()
        if not self._wanted:
            self._others.prepare()

    def begin(self, info: RunInfo) -> None:
        """Begin the run, here: the writer process comes with its first steps."""
        self._info = info
        self._note("thread")  # until there is a writer process
        self._here.begin(info)
        self._others.begin(info)

    def start(self) -> None:
        """Have a writer process from now on, if one is wanted and can be had."""
        if not self._wanted:
            return
        self._wanted = False
        try:
            stay = self._stay()
            state = pack(self._others, {id(thing): name for name, thing in stay.items()})
            self._process = WriterProcess(state, self._sources)
        except Exception as error:
            self._note(f"thread: no writer process was started: {error}")
            logger.debug("the observer's thread writes the record", exc_info=True)
        else:
            self._note("process")

    def add(self, sink: Sink) -> None:
        """Begin one more sink, in the middle of a run."""
        if sink.stays:
            self._here.add(sink)
        else:
            self._call("add", sink)

    @property
    def survives(self) -> bool:
        """Whether there is a writer process, or will be one with the first steps."""
        return self._wanted or self._process is not None

    @property
    def is_full(self) -> bool:
        """Whether more would have to wait."""
        return self._process is not None and self._process.is_behind

    def poll(self) -> None:
        """Have the sinks look that are here; heed what the writer process has told."""
        self._here.poll()
        if self._process is None:
            self._others.poll()
        else:
            self._listen(self._process)

    def _listen(self, process: WriterProcess, wait_s: float = 0.0) -> None:
        try:
            replies = process.replies(wait_s)
        except Exception as error:  # it is gone, or not understood
            self._take_over(error)
            return
        for reply in replies:
            self._heed(reply)

    def write(self, table: StepTable) -> None:
        """Hand closed steps to every sink."""
        self._here.write(table)
        self._call("write", table, answers=self._answers())
        self._hand_points()

    def latency(self, buckets: npt.NDArray[np.uint64]) -> None:
        """Hand over the latency histograms since the run began."""
        self._call("latency", buckets)

    def flush(self) -> None:
        """Make every sink safe."""
        self._here.flush()
        self._hand_points()
        self._call("flush")

    def end(self, summary: dict[str, object]) -> None:
        """End every sink; returns once all is written."""
        summary = self._here.settle(summary)
        self._here.close(summary)
        self._hand_points()
        self._call("end", summary, answers=self._answers(is_last=True))
        while self._process and not self._process.is_done:
            self._listen(self._process, wait_s=1.0)
        if self._process:
            self._process.wait()
            self._process.close()
            self._process = None

    def abandon(self) -> None:
        """In a forked child: let go of the parent's writer process."""
        if self._process:
            self._process.close()

    def _answers(self, *, is_last: bool = False) -> dict[str, SourceResult]:
        """What the sources say, for sinks of a writer process: here these ask themselves."""
        if self._process is None:
            return {}
        return {name: source.asked(is_last) for name, source in self._sources.items()}

    def _hand_points(self) -> None:
        for points in self._here.made():
            self._call("points", points)

    def _call(
        self, name: str, *args: object, answers: dict[str, SourceResult] | None = None
    ) -> None:
        if self._process is None:
            getattr(self._others, name)(*args)
            return
        fault = self._events.fault if self._events else None
        call = SinkCall(name, args, answers or {}, fault, vars(self._info))
        try:
            message = pack(call)
        except Exception as error:  # no memory, or something that cannot be pickled
            self._take_over(error)
            self._repeat(call)
            return
        try:
            self._process.send(message)
        except OSError as error:
            self._take_over(error)

    def _heed(self, reply: WriterReply) -> None:
        for level, text in reply.logged:
            logger.log(level, "%s", text)
        if reply.said and sys.stderr is not None:
            with suppress(OSError, ValueError):
                print(reply.said, end="", file=sys.stderr, flush=True)
        if self._events:
            self._events.take(reply.events)

    def _take_over(self, error: Exception) -> None:
        process, self._process = self._process, None
        assert process is not None
        self._note(f"thread: the writer process was given up: {error}")
        logger.debug("the observer's thread goes on writing the record: %s", error)
        process.kill()  # or both would write
        # Those of the start would write over what was written since, should the others be lost.
        self._others = Deliveries(())
        state, calls = process.state()
        others = unpack(state, self._stay())
        assert isinstance(others, Deliveries)
        self._others = others
        for sent in calls:
            if self._events:
                self._events.is_deaf = sent.number <= process.replied
            self._repeat(unpack(sent.fd))
        process.close()

    def _repeat(self, call: object) -> None:
        assert isinstance(call, SinkCall)
        for name, answer in call.answers.items():
            self._sources[name].answer = answer
        getattr(self._others, call.name)(*call.args)
        for source in self._sources.values():
            source.answer = None

    def _stay(self) -> dict[str, object]:
        """What stays here of what the sinks know, by name."""
        events = {} if self._events is None else {EVENTS: self._events}
        return {INFO: self._info, **events, **self._sources}

    def _note(self, state: str) -> None:
        self._info.settings[WRITTEN_BY] = " ".join(state.split())
