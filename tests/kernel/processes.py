"""Processes of all roles that do what a test tells them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path

from tests import warm

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]

WORKER_NAME = "pt_data_worker"
"""What torch/utils/data/_utils/worker.py calls its process."""


def fork(work: Callable[[], object], name: str | None = None) -> int:
    """Start a child that does `work`, under a name of its own if one is given."""
    pid = os.fork()
    if pid:
        return pid
    # Should the test fail before it tells the child to end; pytest-timeout has a handler.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(600)
    status = 1
    try:
        if name:
            Path("/proc/self/comm").write_text(name)
        work()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def join(pid: int) -> None:
    """Wait for a child, which must have ended well."""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def in_child(work: Callable[[], object], name: str | None = None) -> None:
    """Have a child do `work`."""
    join(fork(work, name))


def in_worker(work: Callable[[], object]) -> None:
    """Have a loader worker do `work`."""
    in_child(work, WORKER_NAME)


def in_thread(work: Callable[[], object], meanwhile: Callable[[], object] | None = None) -> None:
    """Have a thread do `work`, while this one does something else."""
    thread = threading.Thread(target=work)
    thread.start()
    if meanwhile:
        meanwhile()
    thread.join()


A_DAY_AHEAD = ("unshare", "--time", "--fork", "--monotonic", "86400")
A_MINUTE_BEHIND = ("unshare", "--time", "--fork", "--monotonic", "-60")
"""Commands that run another one with CLOCK_MONOTONIC set otherwise."""


def start_job(name: str, before: Iterable[str] = (), **settings: object) -> subprocess.Popen[str]:
    """Start a script of `jobs/` in a process of its own; its settings come as JSON.

    Args:
        before: a command that runs another one, such as `unshare`.
    """
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    script = Path(__file__).parent / "jobs" / f"{name}.py"
    start = subprocess.Popen if before else warm.Popen
    return start(
        [*before, sys.executable, str(script), json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish_job(job: subprocess.Popen[str]) -> str:
    """What a job that must end well has printed."""
    output, _ = job.communicate()
    assert job.returncode == 0, output
    return output


def run_job(name: str, before: Iterable[str] = (), **settings: object) -> str:
    """Run a script of `jobs/` to its end; returns what it printed."""
    return finish_job(start_job(name, before, **settings))


class Outsider:
    """A process that is nobody's child, and so is not followed."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        if os.fork() == 0:
            if os.fork() == 0:
                ours.close()
                self._serve(Connection(theirs.detach()))
            os._exit(0)
        theirs.close()
        os.wait()
        self._connection = Connection(ours.detach())
        assert self._connection.poll(PATIENCE_S), "the outsider does not begin"
        self.pid: int = self._connection.recv()

    def do(self, work: Callable[..., object], *arguments: object) -> None:
        """Have it call a function that a module defines."""
        self._connection.send((work, arguments))
        assert self._connection.poll(PATIENCE_S), "the outsider does not answer"
        fault = self._connection.recv()
        assert fault is None, fault

    def stop(self) -> None:
        """Have it end, and see that it did."""
        self._connection.close()
        deadline = time.monotonic() + PATIENCE_S
        while Path(f"/proc/{self.pid}/exe").exists():
            assert time.monotonic() < deadline, "the outsider does not end"
            time.sleep(0.01)

    @staticmethod
    def _serve(connection: Connection) -> None:
        try:
            connection.send(os.getpid())
            while True:
                work, arguments = connection.recv()
                try:
                    work(*arguments)
                    connection.send(None)
                except Exception:
                    connection.send(traceback.format_exc())
        finally:
            os._exit(0)
