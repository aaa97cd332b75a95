"""A training that another process has asked to be observed from inside: `trainobs attach --inside`.

All of this runs in that training, which knows nothing of it. It was begun in its main thread, by
`entry.py`, between two instructions of whatever that was doing. What there is to say goes to who
has attached, by a `Caller`. Nothing is printed here, and nothing is raised.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any

from trainobs.core.errors import TrainobsError
from trainobs.core.signals import Ending, pass_on
from trainobs.core.strict_json import dumps
from trainobs.core.switch import switched_off
from trainobs.core.version import __version__
from trainobs.hooks.optimizers import in_use
from trainobs.hooks.watch import LoaderWatch
from trainobs.hooks.wrapping import is_watched
from trainobs.integrations.found_loaders import FoundLoaders
from trainobs.integrations.found_steps import StepFinder
from trainobs.integrations.plain import Observation
from trainobs.session.forks import register_fork_cleanup, unregister_fork_cleanup
from trainobs.session.session import Session
from trainobs.session.settings import Settings, all_with

logger = logging.getLogger("trainobs")

MOST_BYTES = 60_000
"""Of what is told at once."""


def begin(connection: socket.socket, frame: FrameType, request: dict[str, Any]) -> None:
    """Observe this process from now on, until who has asked for it ends it, or is gone.

    Args:
        connection: to that one; `attach/inside.py` reads it.
        frame: below which the training goes on.
        request: `version`, `by_pid`, `run_dir`, `data`, `probes`.
    """
    if _beginning:  # asked twice, by one who waited in vain for an answer to the first
        connection.close()
        return
    _beginning.append(True)
    caller, observation = Caller(connection), None
    try:
        if in_use():
            caller.tell("later", found="went through hooks of optimizers")
            caller.close()
            return
        _refuse_what_cannot_be(request)
        observation = InsideObservation(caller, request)
        caller.listen(observation.end)
        caller.tell(
            "begun",
            run_dir=str(observation.run_dir),
            level=observation.level,
            why=observation.why_not,
        )
    except TrainobsError as error:
        caller.tell("refused", failed=error.failed, found=error.found, do=error.do)
        caller.close()
    except BaseException as error:
        caller.fault(error)
        if observation is not None:
            observation.end()
        caller.close()
        pass_on(error, frame)
    finally:
        _beginning.clear()


_beginning: list[bool] = []


def _refuse_what_cannot_be(request: dict[str, Any]) -> None:
    def refused(found: str, do: str) -> TrainobsError:
        return TrainobsError(f"cannot observe process {os.getpid()} from inside", found, do)

    if request["version"] != __version__:
        found = f"it imports trainobs {__version__}, and {request['version']} asks"
        raise refused(found, "attach with the trainobs of its own environment")
    if switched_off():
        raise refused("TRAINOBS=off in its environment", "attach from outside, without --inside")
    if is_watched():
        raise refused("its script observes it already", "read its run log: `trainobs report RUN`")


class Caller:
    """The connection to who has attached; also what takes our logger's words meanwhile.

    Args:
        connection: of packets (SOCK_SEQPACKET), so that what is told comes whole or not at all.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._log = _ToldHandler(self)
        self._propagates, logger.propagate = logger.propagate, False
        logger.addHandler(self._log)
        register_fork_cleanup(self)

    def tell(self, what: str, **facts: object) -> None:
        """Tell something; nothing waits for who does not listen."""
        packet = dumps({"what": what, **facts}).encode()[:MOST_BYTES]
        with suppress(OSError):
            self._socket.send(packet, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def fault(self, error: BaseException) -> None:
        """Tell of an exception."""
        text = "".join(traceback.format_exception(error))
        self.tell("fault", text=text[-MOST_BYTES // 8 :])

    def listen(self, end: Callable[[], None]) -> None:
        """Have the main thread call `end` once it is asked for, or nobody is there any more."""

        def wait() -> None:
            with suppress(OSError):
                self._socket.recv(16)
            while not _in_main_thread(end, self):
                time.sleep(0.001)

        threading.Thread(target=wait, name="trainobs", daemon=True).start()

    def close(self) -> None:
        """Tell no more, and listen no more. May be called twice."""
        unregister_fork_cleanup(self)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.abandon()

    def abandon(self) -> None:
        """Also in a forked child: the connection is the parent's."""
        logger.removeHandler(self._log)
        logger.propagate = self._propagates
        self._socket.close()


class _ToldHandler(logging.Handler):
    """What else would be printed."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self._caller = caller

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(Exception):  # of a record that cannot be formatted
            self._caller.tell("log", text=self.format(record)[: MOST_BYTES // 8])


_Called = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


def _in_main_thread(action: Callable[[], None], caller: Caller) -> bool:
    """Have the main thread do something at once; False where that must wait.

    It must while that thread is in our own code, or goes through hooks, some of which are ours.

    For another thread. An exception has no way out of there.
    """
    done = threading.Event()
    was_done = []

    def call(_: object) -> int:
        frame = sys._getframe()
        try:
            if not _is_ours(frame.f_back) and not in_use():
                was_done.append(True)
                action()
        except BaseException as error:
            caller.fault(error)
            pass_on(error, frame)
        done.set()
        return 0

    called = _Called(call)
    if ctypes.pythonapi.Py_AddPendingCall(called, None):  # its queue is full
        return False
    done.wait()
    return bool(was_done)


def _is_ours(frame: FrameType | None) -> bool:
    name = frame.f_globals.get("__name__") if frame else None
    return isinstance(name, str) and name.partition(".")[0] == "trainobs"


class InsideObservation(Observation):
    """A training loop that marks no step: these are found by what torch does in its main thread.

    Attributes:
        why_not: why it is observed at a lower level than `ebpf`; or "".
    """

    def __init__(self, caller: Caller, request: dict[str, Any]) -> None:
        self._caller = caller
        self._by_pid = request["by_pid"]
        self._finder: StepFinder | None = None
        settings = Settings.parse(
            probes=all_with(request["probes"]),
            data_roots=request["data"],
            run_dir=request["run_dir"],
            quiet=True,
        )
        super().__init__(settings, None)

    def end(self) -> None:
        """As who has attached asks for it."""
        self._end("ok")

    @property
    def why_not(self) -> str:
        """See the class."""
        session = self._session
        return str(session.info.capabilities.get("ebpf", "")) if session else ""

    def _new_watch(self, session: Session) -> LoaderWatch:
        note: dict[str, Any] = {
            "pid": os.getpid(),
            "command": " ".join(sys.orig_argv),
            "by_pid": self._by_pid,
            "steps": "no step was seen to begin",
        }
        session.info.settings["attached"] = note

        def found(rule: str) -> None:
            note["steps"] = rule
            self._caller.tell("steps", rule=rule)

        self._finder = StepFinder(session.clock, found, self._fault)
        watch = FoundLoaders(self._finder, self.loader, session, on_fault=self._fault)
        watch.join(finds_data=self._settings.data_roots is None)
        self._finder.watch_optimizers()
        return watch

    def _end(self, outcome: str) -> None:
        if self._session is None:
            return
        with Ending() as last:
            last.callback(self._caller.close)
            last.callback(self._caller.tell, "ended", outcome=outcome)
            last.callback(super()._end, outcome)
            if self._finder is not None:
                last.callback(self._finder.close)
