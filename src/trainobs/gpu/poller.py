"""Reads the devices of a node in turn, and passes on what others asked for."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable

from trainobs.core.errors import GpuError
from trainobs.core.log import logger
from trainobs.core.now import now_s
from trainobs.gpu import share
from trainobs.gpu.device import Device
from trainobs.gpu.nvml import Nvml
from trainobs.gpu.reading import Reading

INTERVAL_S = 1.0
"""Between two readings of a device: energy and power mean nothing over less."""


class Poller:
    """For one thread: `serve` until told to stop.

    Args:
        nvml: the library, open.
        listener: socket of the node's poller, or None to serve nobody else.
        wake: a socket that becomes readable when the thread shall stop.
        interval_s: between two readings of a device, 0.1 at least.
    """

    def __init__(
        self,
        nvml: Nvml,
        listener: socket.socket | None,
        wake: socket.socket,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._nvml = nvml
        self._listener = listener
        self._interval_s = interval_s
        self._devices: dict[str, Device] = {}
        self._own: dict[str, Callable[[Reading], None]] = {}
        self._followers: dict[socket.socket, str] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(wake, selectors.EVENT_READ)
        if listener:
            self._selector.register(listener, selectors.EVENT_READ, self._welcome)

    def watch(self, uuid: str, take: Callable[[Reading], None]) -> dict[str, str]:
        """Read a device for this process.

        Returns:
            What is true of it for the whole run.

        Raises:
            GpuError: it cannot be read.
        """
        device = self._open(uuid, None)
        self._own[device.uuid] = take
        return device.about

    def serve(self, stopping: Callable[[], bool]) -> None:
        """Read and pass on, until `stopping` or until there is nothing left to do."""
        due = now_s() + self._interval_s
        while not stopping() and (self._devices or self._listener):
            # Without a device there is nothing to read until somebody asks for one.
            wait_s = max(0.0, due - now_s()) if self._devices else None
            for key, _ in self._selector.select(wait_s):
                if hear := key.data:  # not where it is `wake`
                    hear(key.fileobj)
            now = now_s()
            if now >= due:
                # A reading that came late does not make the next one come early.
                due = now + self._interval_s
                self._round()

    def close(self) -> None:
        """Hang up, and give back the devices; not the listener, which is the caller's."""
        for follower in list(self._followers):
            self._hang_up(follower)
        for device in self._devices.values():
            device.close()
        self._devices.clear()
        self._selector.close()

    def _round(self) -> None:
        # Not what was opened since the round before: less than a window would mean nothing.
        ripe_ns = time.monotonic_ns() - round(0.5e9 * self._interval_s)
        for uuid, device in list(self._devices.items()):
            if device.read_ns > ripe_ns:
                continue
            try:
                reading = device.read()
            except GpuError as error:
                self._disarm(uuid, device, error)
                continue
            if uuid in self._own:
                self._own[uuid](reading)
            for follower in [f for f, wanted in self._followers.items() if wanted == uuid]:
                self._tell(follower, share.pack(reading))

    def _disarm(self, uuid: str, device: Device, error: GpuError) -> None:
        """A device that fails is left out alone; those who asked for it are told."""
        del self._devices[uuid]
        device.close()
        if uuid in self._own:
            logger.warning("%s", error)
        for follower in [f for f, wanted in self._followers.items() if wanted == uuid]:
            self._tell(follower, {"gone": [error.failed, error.found, error.do]})

    def _open(self, uuid: str, visible: str | None) -> Device:
        device = self._nvml.open(uuid, visible)
        known = self._devices.get(device.uuid)
        if known:  # already read for another process
            device.close()
            return known
        self._devices[device.uuid] = device
        return device

    def _welcome(self, listener: socket.socket) -> None:
        try:
            follower, _ = listener.accept()
        except OSError:  # it left while it waited
            return
        if len(self._followers) >= share.FOLLOWERS or not share.same_user(follower):
            follower.close()
            return
        follower.setblocking(False)
        self._followers[follower] = ""
        self._selector.register(follower, selectors.EVENT_READ, self._answer)

    def _answer(self, follower: socket.socket) -> None:
        """A follower speaks once, to ask for a device; all else is the end of it."""
        wish = share.receive(follower)
        uuid, visible = (wish or {}).get("uuid"), (wish or {}).get("visible")
        if self._followers[follower] or not isinstance(uuid, str) or not isinstance(visible, str):
            self._hang_up(follower)
            return
        try:
            device = self._open(uuid, visible)
        except GpuError as error:
            self._tell(follower, {"refused": error.found})
            return
        self._followers[follower] = device.uuid
        self._tell(follower, {"about": device.about})

    def _tell(self, follower: socket.socket, packet: dict[str, object]) -> None:
        try:
            share.send(follower, packet)
        except BlockingIOError:
            pass  # it does not read: it will miss this one
        except OSError:
            self._hang_up(follower)

    def _hang_up(self, follower: socket.socket) -> None:
        uuid = self._followers.pop(follower)
        self._selector.unregister(follower)
        follower.close()
        if uuid and uuid not in self._own and uuid not in self._followers.values():
            device = self._devices.pop(uuid, None)
            if device:
                device.close()
