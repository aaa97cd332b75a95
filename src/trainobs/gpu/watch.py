"""The thread that brings readings of this process's GPU: from NVML, or from the node's poller."""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing

from trainobs.core.errors import REPORT, GpuError
from trainobs.core.log import logger
from trainobs.gpu import share
from trainobs.gpu.nvml import Nvml
from trainobs.gpu.poller import INTERVAL_S, Poller
from trainobs.gpu.reading import Reading

SILENCE = 10
"""Intervals without a word after which a poller that hangs is given up."""

CLOSE_S = 2.0
"""How long a run waits for the thread to end: a driver that hangs must not hang the training."""


_AGAIN_S = 0.05


class GpuWatch:
    """Readings of one device, brought by a thread of its own.

    The thread exists from `start` to `close`, and makes all NVML calls: they may take long, and
    must hold up neither the training nor the record.

    Args:
        take: is given each reading, in that thread.
        interval_s: between two readings.

    Attributes:
        about: what is true of the device for the whole run; empty until it is known.
        cpu_ns: CPU time of the thread so far.
    """

    def __init__(
        self,
        take: Callable[[Reading], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.about: dict[str, str] = {}
        self.cpu_ns = 0
        self._sink = take
        self._interval_s = interval_s
        self._uuid = ""
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._sockets: list[socket.socket] = []

    @property
    def alive(self) -> bool:
        """Whether more readings may come."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, uuid: str) -> None:
        """Begin to watch a device, as CUDA tells its UUID. Only the first call does anything."""
        if self._thread or self._stopping:
            return
        self._uuid = uuid
        thread = threading.Thread(target=self._run, name="trainobs-gpu", daemon=True)
        try:
            self._sockets = list(socket.socketpair())
            thread.start()
        except (OSError, RuntimeError) as error:  # no more descriptors or threads
            self._stopping = True
            logger.warning(
                "the GPU is not watched\n  found: %s\n"
                "  do:    raise the limit of open files, or of processes",
                error,
            )
            return
        self._thread = thread

    def close(self) -> None:
        """End the thread. May be called twice."""
        self._stopping = True
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._sockets[1].close()  # the thread's end of the pair becomes readable
        thread.join(CLOSE_S)
        if thread.is_alive():
            logger.warning(
                "the thread that reads the GPU is left behind\n"
                "  found: NVML did not return within %.0f s\n"
                "  do:    look at the kernel's log for faults of the driver",
                CLOSE_S,
            )

    def abandon(self) -> None:
        """In a forked child, which has the sockets but not the thread."""
        self._stopping = True
        self._thread = None
        for each in list(self._sockets):
            each.close()

    def _run(self) -> None:
        try:
            while not self._stopping and self._follow_or_poll():
                pass
        except GpuError as error:
            self.about = {"uuid": self._uuid, "gpm": f"NVML: {error.found}"}
            logger.debug("no readings of the GPU: %s", error)
        except Exception:
            logger.warning(
                "the GPU is watched no more; the training goes on\n  found: the fault below\n"
                "  do:    %s",
                REPORT,
                exc_info=True,
            )
        finally:
            self._sockets[0].close()
            self.cpu_ns = time.thread_time_ns()

    def _follow_or_poll(self) -> bool:
        """Be the node's poller, or follow it until it ends; False if there is nothing more."""
        listener = share.claim()
        if listener:
            self._sockets.append(listener)
            try:
                self._poll(listener)
            finally:
                listener.close()
                self._sockets.remove(listener)
            return False
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        link = share.connect(self._uuid, visible)
        if link is None:  # a poller of another user, or one that has just begun, or just ended
            time.sleep(_AGAIN_S)
            link = share.connect(self._uuid, visible)
        if link is None:
            self._poll(None)
            return False
        self._sockets.append(link)
        try:
            return self._follow(link)
        finally:
            link.close()
            self._sockets.remove(link)

    def _poll(self, listener: socket.socket | None) -> None:
        wake, interval_s = self._sockets[0], self._interval_s
        with closing(Nvml()) as nvml, closing(Poller(nvml, listener, wake, interval_s)) as poller:
            self.about = poller.watch(self._uuid, self._take)
            poller.serve(lambda: self._stopping)

    def _follow(self, link: socket.socket) -> bool:
        """Take what the node's poller sends; True if it ended, so that another takes its place."""
        with selectors.DefaultSelector() as selector:
            for each in (self._sockets[0], link):
                selector.register(each, selectors.EVENT_READ)
            while not self._stopping:
                ready = [key.fileobj for key, _ in selector.select(SILENCE * self._interval_s)]
                if not ready:
                    self._poll(None)
                    return False
                if link not in ready:
                    continue
                packet = share.receive(link)
                if packet is None:
                    return True
                if "refused" in packet:  # it may not see our device: another container
                    self._poll(None)
                    return False
                if "gone" in packet:
                    logger.warning("%s", GpuError(*map(str, packet["gone"])))
                    return False
                self._heed(packet)
        return False

    def _heed(self, packet: dict[str, object]) -> None:
        about, reading = packet.get("about"), share.unpack(packet)
        if isinstance(about, dict):
            self.about = {str(key): str(value) for key, value in about.items()}
        if reading:
            self._take(reading)

    def _take(self, reading: Reading) -> None:
        self._sink(reading)
        self.cpu_ns = time.thread_time_ns()
