"""Attacks of one user on the service, and what another user has of it meanwhile.

Usage: python -m benchmarks.storms.service [--seconds 20] [--crowd 400]

As root. Each attack goes on for some seconds, in several processes of one user. Meanwhile another
user registers, counts the reads of a file, which must be exact, and ends, again and again. Told are
how often that went well, the longest time it took, and what the service was made to spend. Prints
JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.kernel.ground_truth import write_file
from tests.kernel.processes import fork, join
from tests.service.service import SOMEBODY, Raw, Service, Turns, as_user, serves
from trainobs.core.errors import ProbeError
from trainobs.probes import protocol
from trainobs.probes.service_backend import ServiceBackend, enter

ATTACKERS = 4
PAUSE_S = 1.25
"""Between two sessions of the other user: shorter, they would be more than a user is allowed."""
MEMORY = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
"""Where groups lie whose memory is counted: of version 1, and of version 2."""


def main() -> None:
    """Try each attack."""
    parser = argparse.ArgumentParser(description="Attacks on the service.")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each attack")
    parser.add_argument("--crowd", type=int, default=400, help="clients at one moment")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    for attack in ATTACKS:
        with service() as running:
            found[attack.__name__] = under(running, attack, options.seconds)
    troubles = [
        f"{name}: {of['others_failed']} sessions of another user failed"
        for name, of in found.items()
        if of["others_failed"] or not of["alive"]
    ]
    with service() as running:
        found["crowd"] = crowd(running, options.crowd)
    if found["crowd"]["served"] < options.crowd:
        troubles.append(f"crowd: {found['crowd']['served']} of {options.crowd} were served")
    json.dump({"tried": len(found), "found": found, "troubles": troubles}, sys.stdout, indent=2)
    print()


@contextmanager
def service() -> Iterator[Service]:
    """A service of its own, with a file that all may read."""
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    place.chmod(0o755)
    write_file(place / "file", 4096)
    running = Service(place / "probed.sock")
    try:
        yield running
    finally:
        running.stop()
        shutil.rmtree(place)


@contextmanager
def memory_of(running: Service) -> Iterator[Callable[[], int | None]]:
    """What is charged to the service from now on, in bytes at most so far; None: nobody counts."""
    base = next((path for path in MEMORY if any(path.glob("memory.*"))), None)
    if base is None:
        yield lambda: None
        return
    group = base / f"trainobs-storm-{os.getpid()}"
    group.mkdir()
    (group / "cgroup.procs").write_text(str(running.process.pid))
    names = ("memory.max_usage_in_bytes", "memory.peak")
    try:
        yield lambda: next(
            int((group / name).read_text()) for name in names if (group / name).exists()
        )
    finally:
        (base / "cgroup.procs").write_text(str(running.process.pid))
        group.rmdir()


def under(running: Service, attack: Callable[[Path], None], seconds: float) -> dict[str, Any]:
    """One attack, and what another user has of the service meanwhile."""
    with memory_of(running) as peak:
        before = peak()
        attackers = [as_user(lambda: attack(running.path)) for _ in range(ATTACKERS)]
        times: list[float] = []
        failed = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begin = time.monotonic()
            try:
                serves(running, SOMEBODY)
                times.append(time.monotonic() - begin)
            except AssertionError:
                failed += 1
            time.sleep(PAUSE_S)
        for attacker in attackers:
            with suppress(ProcessLookupError):
                os.kill(attacker, signal.SIGKILL)
            os.waitpid(attacker, 0)
        after = peak()
    return {
        "others_served": len(times),
        "others_failed": failed,
        "longest_s": round(max(times, default=0.0), 2),
        "log_lines": len(running.log),
        "memory_mb": None if after is None else round((after - (before or 0)) / 1e6, 1),
        "alive": running.process.poll() is None,
    }


def keeping_ended_sessions(path: Path) -> None:
    """Register, end, keep the maps, as fast as is allowed."""
    kept: list[int] = []
    while True:
        with suppress(OSError):
            raw = Raw(path)
            answer = raw.ask("register", tid=os.getpid(), count=2)
            if answer and answer[0]["ok"]:
                kept += answer[1]
                raw.ask("end")
            raw.close()
        time.sleep(0.02)


def taking_all_sessions(path: Path) -> None:
    """Have as many processes registered as there can be."""

    def one() -> None:
        backend = None
        while True:
            with suppress(OSError, ProbeError):
                backend = backend or ServiceBackend(path)
            time.sleep(0.1)

    for _ in range(16):
        fork(one)
    one()


def holding_connections(path: Path) -> None:
    """Connect without end, and say nothing."""
    held: list[Raw] = []
    while True:
        with suppress(OSError, ProbeError):
            held.append(Raw(path))
        del held[:-64]


def talking_nonsense(path: Path) -> None:
    """Say what is refused, as fast as can be."""
    noise = random.Random(os.getpid())
    while True:
        with suppress(OSError, ProbeError):
            raw = Raw(path)
            raw.say(noise.randbytes(noise.randrange(1, 1500)), [0] * noise.randrange(4))
            raw.answer()
            raw.close()


def asking_without_end(path: Path) -> None:
    """Have all tasks of the machine looked through, as often as can be."""
    with suppress(OSError, ProbeError):
        raw = Raw(path)
        raw.ask("register", tid=os.getpid(), count=2)
        while raw.ask("adopt", tid=os.getpid()):
            pass


ATTACKS = (
    keeping_ended_sessions,
    taking_all_sessions,
    holding_connections,
    talking_nonsense,
    asking_without_end,
)


def crowd(running: Service, number: int) -> dict[str, Any]:
    """So many processes of one user connect and ask at one moment."""
    with Turns() as go:
        results, told = os.pipe()

        def one() -> None:
            go.wait()
            begin = time.monotonic()
            with suppress(OSError, EOFError, ProbeError, protocol.ProtocolError):
                connection, _, _ = enter(running.path, "hello")
                connection.close()
                os.write(told, b"%12.6f" % (time.monotonic() - begin))

        clients = [as_user(one) for _ in range(number)]
        time.sleep(1.0)
        go.pass_on(number)
        for client in clients:
            join(client)
    os.close(told)
    with os.fdopen(results) as lines:
        text = lines.read()
    times = [float(text[at : at + 12]) for at in range(0, len(text), 12)]
    return {"clients": number, "served": len(times), "longest_s": round(max(times), 2)}


if __name__ == "__main__":
    main()
