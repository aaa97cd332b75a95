"""What a training finds around itself: limits of control groups, neighbours, a server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from os import sched_getaffinity
from pathlib import Path

from faults.groups import JOIN, Unavailable, device_of, group
from faults.training import IMAGE_BYTES

CPUS = len(sched_getaffinity(0))
URL = "TRAINOBS_FAULT_URL"
"""Variable with the address of the server."""

FIRST_EPOCH_OVER = "first-epoch-over"
"""File that a job makes in its directory as its first epoch ends."""


@dataclass(frozen=True)
class Machine:
    """What is around a training; by default nothing.

    Attributes:
        read_mb_s: megabytes a second that it may read from the disk.
        cpus: CPUs' worth of time that it may use.
        memory_mb: memory that it may use.
        held_mb: of which another process holds so much.
        busy_per_cpu: processes for each CPU that do nothing, as fast as they can.
        busy_first_epoch: they end with the first epoch.
        answer_ms: time that the server takes to answer; None: there is no server.
        unprivileged: it may load no probes, as most users.
    """

    read_mb_s: float | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    held_mb: int = 0
    busy_per_cpu: int = 0
    busy_first_epoch: bool = False
    answer_ms: float | None = None
    unprivileged: bool = False


@contextmanager
def arranged(machine: Machine, files: Path) -> Iterator[dict[str, str]]:
    """Make the machine so, for a job that works in `files`; yields variables for that job.

    Raises:
        Unavailable: this machine does not let it be so.
    """
    with ExitStack() as stack:
        joined = [
            stack.enter_context(group(controller, settings)) / "cgroup.procs"
            for controller, settings in _limits(machine, files).items()
        ]
        environment = {JOIN: ":".join(map(str, joined))}
        if machine.held_mb:
            assert machine.memory_mb, "what a process holds is held in a group"
            _started(stack, _HOLDS, str(joined[-1]), str(machine.held_mb << 20))
        if machine.answer_ms is not None:
            port = _started(stack, _SERVES, str(machine.answer_ms), str(IMAGE_BYTES))
            environment[URL] = f"http://127.0.0.1:{port}/"
        for _ in range(machine.busy_per_cpu * CPUS):
            until = files / FIRST_EPOCH_OVER if machine.busy_first_epoch else ""
            _started(stack, _BUSY, str(until))
        yield environment


def _limits(machine: Machine, files: Path) -> dict[str, dict[str, str]]:
    """Controller -> settings; memory comes last."""
    limits = {}
    if machine.read_mb_s is not None:
        bytes_per_s = int(machine.read_mb_s * 1e6)
        limits["io"] = {"io.max": f"{device_of(files)} rbps={bytes_per_s}"}
    if machine.cpus is not None:
        limits["cpu"] = {"cpu.max": f"{int(machine.cpus * 100_000)} 100000"}
    if machine.memory_mb is not None:
        limits["memory"] = {"memory.max": str(machine.memory_mb << 20)}
    return limits


def _started(stack: ExitStack, program: str, *arguments: str) -> str:
    """Start a process that ends with the stack; what it says once it is ready."""
    command = [sys.executable, "-S", "-c", program, *arguments]
    # Where each session gets the same CPU time (autogroup), many in one would count as one.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout
    stack.callback(process.stdout.close)
    said = process.stdout.readline()
    if not said:
        raise Unavailable("a process beside the training ended at once")
    return said.strip()


# What takes CPUs or memory also ends with whoever started it, should that be killed.
_HOLDS = """
import os, sys, time
open(sys.argv[1], "w").write(str(os.getpid()))
held = bytearray(int(sys.argv[2]))
ready, parent = False, os.getppid()
while os.getppid() == parent:
    for page in range(0, len(held), 4096):
        held[page] ^= 1
    ready = ready or not print("ready", flush=True)
    time.sleep(0.5)
"""

_BUSY = """
import os, sys
parent = os.getppid()
print("ready", flush=True)
while os.getppid() == parent and not (sys.argv[1] and os.path.exists(sys.argv[1])):
    sum(range(100_000))
"""

_SERVES = """
import sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
answer_s, body = float(sys.argv[1]) / 1e3, bytes(int(sys.argv[2]))
class Images(BaseHTTPRequestHandler):
    def do_GET(self):
        time.sleep(answer_s)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *arguments):
        pass
server = ThreadingHTTPServer(("127.0.0.1", 0), Images)
print(server.server_port, flush=True)
server.serve_forever()
"""
