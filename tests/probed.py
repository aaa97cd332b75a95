"""`trainobs-probed` beside the tests: one set of programs for all of their runs.

To load a set takes 0.2 s of CPU; a session of one that is there, 0.05 s.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE_S = 60.0

START = """
exec 3<&0
"$@" < /dev/null > "$LOG" 2>&1 3<&- &
echo $!
{ read _ <&3; kill $!; } > /dev/null 2>&1 &
"""
"""Starts a command that outlives this shell, and ends when nobody holds the other end of stdin."""

COMMAND = "import sys; from trainobs.service.main import main; sys.exit(main())"


@contextmanager
def probed() -> Iterator[Path]:
    """A service that is no child of this process, as on a node that has one; its socket."""
    with tempfile.TemporaryDirectory() as directory:
        path, log = Path(directory, "socket"), Path(directory, "log")
        # One user begins many sessions: 128 at once, and then one a second.
        options = ["--socket", str(path), "--max-sessions-per-user", "64"]
        told, tell = os.pipe()
        pid = _start([sys.executable, "-c", COMMAND, *options], told, log)
        os.close(told)
        try:
            _wait(lambda: "listening at" in log.read_text(), log)
            yield path
        finally:
            os.kill(pid, signal.SIGTERM)
            os.close(tell)
            _wait(lambda: not Path(f"/proc/{pid}/exe").exists(), log)


def _start(command: list[str], told: int, log: Path) -> int:
    shell = ["sh", "-c", START, "sh", *command]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LOG": str(log)}
    started = subprocess.check_output(shell, stdin=told, env=environment, start_new_session=True)
    return int(started)


def _wait(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)
