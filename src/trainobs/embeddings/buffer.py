"""What the training thread notes of lookups, step by step: as little as it can.

The training thread only appends to the capture of its step. The observer's thread reads a capture
after its step is closed, and does there whatever costs time.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trainobs.core.log import logger
from trainobs.core.now import now_s
from trainobs.core.signals import let_signals_through
from trainobs.embeddings.sampling import SamplingInterval
from trainobs.embeddings.sites import Site
from trainobs.steps.fast_path import untracked

MAX_CAPTURES = 4096
"""Steps that nobody has asked for yet; the oldest is let go."""

MAX_SAMPLE_BYTES = 64 << 20
"""Ids that wait for the observer; while there are more, no step is sampled."""

Host = NDArray[np.integer] | torch.Tensor
"""An array, or a pinned tensor that a copy from the device is on its way to."""


def host(values: Host) -> NDArray[np.integer]:
    """An array of numbers that have arrived."""
    return values.numpy() if isinstance(values, torch.Tensor) else values


class FeatureCounts(NamedTuple):
    """Lookups of each feature of a call, as a device sums them."""

    values: Host
    ends: bool
    """They are the places where features begin and end, one more than there are features."""


class CallIds(NamedTuple):
    """The ids of a call: of one feature after the other, and within one input after the other."""

    values: Host
    lengths: Host | int
    """Lookups of each bag, or of every bag."""
    ends: bool
    """`lengths` are the places where bags begin, perhaps without the end of the last."""


class LookupCall(NamedTuple):
    """A module was asked for rows.

    `lookups` and `bags` have one number for each of `keys`; a single number is that of each key.
    """

    site: Site
    keys: Sequence[str]
    lookups: Sequence[int] | FeatureCounts | None
    """None: not known."""
    bags: Sequence[int] | int | None
    """None: not known."""
    trains: bool
    """Whether autograd was on."""
    ids: CallIds | None
    trained: tuple[int, ...] | None = None
    """What a backward pass changes of the module's weight; None: not known."""
    capture: int = 0
    """Number of its capture among those of steps that became one."""


def _untracked_list() -> list[Any]:
    return untracked([])


@dataclass(eq=False, slots=True)
class LookupCapture:
    """What was asked for in one step."""

    serial: int
    sampled: bool
    calls: list[LookupCall] = field(default_factory=_untracked_list)
    misses: list[tuple[tuple[int, ...], Host]] = field(default_factory=_untracked_list)
    times: list[tuple[Site, int]] = field(default_factory=_untracked_list)
    sample_bytes: int = 0
    hook_ns: int = 0
    streams: set[torch.cuda.Stream] = field(default_factory=lambda: untracked(set()))
    arrived: bool = True


def joined(captures: Sequence[LookupCapture]) -> LookupCapture | None:
    """The captures of steps that became one; sampled only if all of them are."""
    if len(captures) < 2:
        return captures[0] if captures else None
    one = LookupCapture(captures[-1].serial, all(capture.sampled for capture in captures))
    for number, capture in enumerate(captures):
        changed = {"capture": number} if one.sampled else {"ids": None}
        one.calls += [untracked(call._replace(**changed)) for call in capture.calls]
        one.misses += capture.misses
        one.times += capture.times
        one.hook_ns += capture.hook_ns
    return one


class LookupBuffer:
    """Opens a capture for each step, for the hooks, and hands captures out.

    `enter` and `settle` are for the training thread; `ready` and `hand_out` for the observer's.

    Args:
        serial: the serial of the step that runs.
        interval: which steps are sampled.

    Attributes:
        armed: whether lookups are noted.
        aside: whether those of now are for no training step.
        serial: the serial of the step that runs.
        failed_serial: the first step of which not all was noted, because of a fault.
        error: that fault; None: there was none.
    """

    def __init__(
        self,
        serial: Callable[[], int],
        interval: SamplingInterval,
        aside: Callable[[], bool] = lambda: False,
    ) -> None:
        self.armed = True
        self.aside = aside
        self.failed_serial = 2**63
        self.error: Exception | None = None
        self.serial = serial
        self._interval = interval
        self._captures: dict[int, LookupCapture] = {}
        self._current = LookupCapture(-1, sampled=False)
        self._on_the_way: deque[tuple[LookupCapture, list[torch.cuda.Event]]] = deque()
        self._waiting_bytes = 0

    def enter(self) -> LookupCapture:
        """The capture of the step that runs."""
        serial = self.serial()
        if serial != self._current.serial:
            self._turn(serial)
        if self._on_the_way:
            self._look()
        return self._current

    def fault(self, error: Exception) -> None:
        """An exception is being handled: lookups are counted no more."""
        let_signals_through()
        if self.armed:
            self.armed = False
            self.failed_serial = self.serial()
            logger.debug("the fault in counting lookups", exc_info=error)
            self.error = error.with_traceback(None)  # whose frames hold tensors

    def ready(self, serial: int) -> bool:
        """Whether all that was copied from devices in a closed step is there."""
        capture = self._captures.get(serial)
        return capture is None or capture.arrived

    def hand_out(self, serial: int) -> LookupCapture | None:
        """The capture of a closed step, once; None where nothing was asked for."""
        capture = self._captures.pop(serial, None)
        if capture is not None:
            self._waiting_bytes -= capture.sample_bytes
        return capture

    def settle(self, patience_s: float = 0.25) -> None:
        """Take no more, and wait a little for what is on its way from devices."""
        if self.armed:
            self._turn(-1)
        until = now_s() + patience_s
        while self._on_the_way and now_s() < until:
            self._look()
            time.sleep(0.001)

    def _turn(self, serial: int) -> None:
        done = self._current
        if done.streams:
            events = [stream.record_event() for stream in done.streams]
            done.streams = set()
            self._on_the_way.append((done, events))
        self._waiting_bytes += done.sample_bytes
        capture = self._captures.get(serial)
        if capture is None:
            room = self._waiting_bytes < MAX_SAMPLE_BYTES
            capture = untracked(
                LookupCapture(serial, serial >= 0 and room and self._interval.choose())
            )
            if serial >= 0:
                self._captures[serial] = capture
                if len(self._captures) > MAX_CAPTURES:
                    self.hand_out(next(iter(self._captures)))
        else:
            self._waiting_bytes -= capture.sample_bytes
        self._current = capture

    def _look(self) -> None:
        """See what has arrived, without waiting for it."""
        while self._on_the_way:
            capture, events = self._on_the_way[0]
            if not all(event.query() for event in events):  # type: ignore[no-untyped-call]
                return
            capture.arrived = True
            self._on_the_way.popleft()


_PLAIN = {torch.Tensor, torch.nn.Parameter}
"""What can be read as it is; a subclass may be a part of something, or nothing at all."""


def readable(tensor: torch.Tensor) -> bool:
    """Whether the numbers of a tensor can be had without a wait."""
    return type(tensor) in _PLAIN and tensor.device.type in {"cpu", "cuda"}


def copy(capture: LookupCapture, tensor: torch.Tensor) -> NDArray[np.integer] | torch.Tensor:
    """The numbers of a tensor as they are now.

    On CUDA the copy goes into pinned memory in the current stream, so it comes before whatever
    changes the tensor later, and nothing waits for it.
    """
    capture.sample_bytes += tensor.numel() * tensor.element_size()
    if not tensor.is_cuda:
        return tensor.numpy().flatten()
    pinned = torch.empty(tensor.numel(), dtype=tensor.dtype, pin_memory=True)
    pinned.copy_(tensor.reshape(-1), non_blocking=True)
    capture.streams.add(torch.cuda.current_stream(tensor.device))
    capture.arrived = False
    return pinned


def capturing(tensor: torch.Tensor) -> bool:
    """Whether a CUDA graph is being captured: its replays come past no hook."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()
