"""A full `observe()` in a process that runs already, by the remote execution of Python 3.14.

`sys.remote_exec` (PEP 768) has the main thread of another interpreter run a file, at the next place
where it could handle a signal. What it runs is the text of `integrations/entry.py`. That connects
back to a socket, by which `integrations/inside.py` tells what becomes of the run, and is told when
to end it. The connection breaks with either side, so that none waits for the other.
"""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from trainobs.attach.job import READ_S, StopCondition, ending_of, ranks_of
from trainobs.attach.process import TORCH, Target, find, mappings, refused
from trainobs.core.errors import AttachError
from trainobs.core.version import __version__
from trainobs.host.procfs import PROC
from trainobs.session.ending import tell
from trainobs.session.runs import default_run_dir
from trainobs.session.settings import run_dir_at

PLACE = "/tmp"
"""Where the file and the socket are, for a moment: as short as the address of a socket must be, and
where the other process finds them as well."""

_ENTRY = Path(__file__).parents[1] / "integrations" / "entry.py"

_NOTHING = "/dev/null"
"""A file that may be run later, and does nothing."""

_END_S = 60.0
"""How long the end of a run may take, which waits for the main thread to come by."""

_AGAIN_S = 1.0
"""How long until a process is asked again. A request may get lost: CPython sets a flag in the other
one without a lock, and cannot open our file where the main thread is in an `eval` without builtins,
as in the middle of a `namedtuple`."""


_MOST_BYTES = 65_536
_OUTSIDE = "leave out `--inside`: from outside, any Python will do"
_FIRST = (3, 14)
_OFF = "PYTHON_DISABLE_REMOTE_DEBUG"

Version = tuple[int, int]


def attach_inside(
    pid: int,
    *,
    seconds: float | None = None,
    look_s: float = 60.0,
    data: Sequence[Path] | None = None,
    own: Sequence[Path] = (),
    run_dir: Path | None = None,
) -> Path:
    """Have a process observe itself, and the other ranks of its job on this machine.

    Args:
        pid: the process, as this one sees it.
        seconds: how long, once a step was seen to begin; None: until it ends, or Ctrl-C.
        look_s: how long to wait for its main thread, and then for a step.
        data: directories and files with training data; None: to be found.
        own: programs of the user's, in C.
        run_dir: where the run log goes, by the user of that process.

    Returns:
        The run directory.

    Raises:
        AttachError: it cannot be observed from inside, or no steps are seen.
        SettingError: `run_dir` is a file, or a URL.
    """
    run_dir = run_dir and run_dir_at(run_dir, "--run-dir")
    processes = ranks_of(find(pid))
    for process in processes:
        _check(process)
    ranks = max(process.number("WORLD_SIZE", 1) for process in processes)
    request = {
        "version": __version__,
        "by_pid": os.getpid(),
        "run_dir": str((run_dir or default_run_dir(Path(), ranks)).absolute()),
        "data": None if data is None else [str(path.absolute()) for path in data],
        "probes": [str(path.absolute()) for path in own],
    }
    with ending_of(processes) as ending, ExitStack() as parts:
        runs = []
        for process in processes:
            runs.append(InsideRun(process, request))
            parts.callback(runs[-1].end)
        _wait(runs, ending, look_s, lambda run: bool(run.run_dir))
        _wait(runs, ending, look_s, lambda run: bool(run.rule))
        until = None if seconds is None else time.monotonic() + seconds
        while not ending.wait(READ_S) and (until is None or time.monotonic() < until):
            for run in runs:
                run.read()
            if all(run.is_over for run in runs):
                break
        if ending.reason:
            tell(ending.reason)
    place = runs[0].run_dir
    tell(f"the run is in {place}", f"see `trainobs report {shlex.quote(place)}`")
    return Path(place)


def _wait(
    runs: Sequence[InsideRun],
    ending: StopCondition,
    seconds: float,
    is_so: Callable[[InsideRun], bool],
) -> None:
    deadline = time.monotonic() + seconds
    while not all(map(is_so, runs)):
        ends = ending.wait(READ_S) or time.monotonic() > deadline
        for run in runs:
            run.read()
        late = next((run for run in runs if not is_so(run)), None)
        if late is not None and (ends or late.is_over):
            found = late.outcome or ending.reason or f"in {seconds:g} s {late.state}"
            do = "attach while it trains; where a step takes longer, with a longer `--look`"
            raise refused(late.process.tgid, found, do)


class InsideRun:
    """One process that was asked to observe itself, and what it has told since.

    Args:
        process: the process.
        request: see `integrations/inside.py`.

    Attributes:
        state: what it waits for, in words.
        rule: what a step is there; "" as long as none was seen to begin.
        run_dir: where its run log is; "" before it has begun.
        is_over: whether it observes itself no more.
        outcome: how that came.

    Raises:
        AttachError: it cannot be asked.
    """

    def __init__(self, process: Target, request: Mapping[str, Any]) -> None:
        self.process = process
        self.rule = self.run_dir = self.outcome = ""
        self.is_over = False
        self.state = "its main thread reached no safe point, where Python handles signals"
        self._request = request
        self._connection: socket.socket | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._place = tempfile.mkdtemp(prefix="trainobs-", dir=PLACE)
        try:
            self._offer()
            self._ask()
        except OSError as error:
            self._withdraw()
            raise refused(process.tgid, str(error), _right_to(process)) from error
        except BaseException:
            self._withdraw()
            raise

    def read(self) -> None:
        """Take what it has told since.

        Raises:
            AttachError: it has refused.
        """
        if self._connection is None:
            self._accept()
        if self._connection is None and time.monotonic() >= self._again_s:
            self._ask()
        while self._connection is not None and not self.is_over:
            try:
                packet = self._connection.recv(_MOST_BYTES)
            except BlockingIOError:
                return
            except OSError:
                packet = b""
            self._take(_read(packet) if packet else {"what": "gone"})

    def end(self) -> None:
        """Have it end its run, and wait for that. May be called twice."""
        asked = not self.is_over and self._connection is not None
        deadline = time.monotonic() + _END_S
        if self._connection is not None and asked:
            with suppress(OSError):
                self._connection.send(b"end")
        while asked and not self.is_over and time.monotonic() < deadline:
            assert self._connection is not None
            select.select([self._connection], [], [], READ_S)
            with suppress(AttachError):
                self.read()
        if asked and not self.is_over:
            tell(
                f"process {self.process.tgid} has not reached a safe point within {_END_S:g} s; "
                "its run ends when it does"
            )
        if self._connection is not None:
            self._connection.close()
        self._withdraw()

    def _offer(self) -> None:
        """Write what its main thread shall run, and listen.

        Only this user may write into the directory, which no link leads to: `mkdtemp` has made it.
        """
        address, script = f"{self._place}/socket", f"{self._place}/enter.py"
        self._listener.bind(address)
        self._listener.listen()
        self._listener.setblocking(False)
        text = _ENTRY.read_text()
        call = f"enter({address!r}, {dict(self._request)!r}, sys._getframe())"
        with open(script, "x") as file:
            file.write(f"{text}\n\n{call}\n")
        if self.process.uid != os.geteuid():  # the other one has to read and to connect
            os.chmod(self._place, 0o711)
            os.chmod(script, 0o644)
            os.chmod(address, 0o666)

    def _ask(self) -> None:
        self._again_s = time.monotonic() + _AGAIN_S
        _remote_exec(self.process, f"{self._place}/enter.py")

    def _accept(self) -> None:
        """Take the connection of the process itself; of anybody else, none."""
        while self._connection is None:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # nobody is there
                return
            raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            if struct.unpack("3i", raw)[0] != self.process.tgid:
                connection.close()
                continue
            connection.setblocking(False)
            self._connection = connection

    def _withdraw(self) -> None:
        """Remove what it was to run, which it runs no more, also where it was asked in vain."""
        if self._listener.fileno() >= 0:
            self._listener.close()
            with suppress(OSError, AttachError):
                _remote_exec(self.process, _NOTHING)
            shutil.rmtree(self._place, ignore_errors=True)

    def _take(self, told: Mapping[str, Any]) -> None:
        tgid = self.process.tgid

        def of(name: str) -> str:
            return str(told.get(name, ""))

        match told.get("what"):
            case "later" if self._connection is not None:
                self.state = f"it {of('found')}"
                self._connection.close()
                self._connection = None
            case "begun":
                self._withdraw()
                self.state = "no step was seen to begin"
                self.run_dir = of("run_dir")
                why = f": {of('why')}" if of("why") else ""
                tell(f"process {tgid} observes itself, at level {of('level')}{why}")
            case "steps":
                self.rule = of("rule")
                tell(f"process {tgid}: {self.rule}")
            case "log" | "fault":
                tell(*(f"process {tgid}: {line}" for line in of("text").splitlines()))
            case "ended":
                self._over(of("outcome"))
            case "gone":
                self._over("it broke the connection")
            case "refused":
                self._over(of("found"))
                raise AttachError(of("failed"), of("found"), of("do"))
            case "missing":
                self._over(of("found"))
                do = f"install trainobs {__version__} for {of('python')}; or {_OUTSIDE}"
                raise refused(tgid, f"its Python cannot begin: {of('found')}", do)

    def _over(self, outcome: str) -> None:
        self.is_over = True
        self.outcome = f"its run has ended: {outcome}"
        if outcome != "ok":
            tell(f"process {self.process.tgid}: {self.outcome}")


def _read(packet: bytes) -> Mapping[str, Any]:
    """What a process has told; who answers from another user's process may send anything."""
    try:
        told = json.loads(packet)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def _check(process: Target) -> None:
    """Refuse what the remote execution of Python would refuse with fewer words.

    Raises:
        AttachError: saying why.
    """
    own, other = sys.version_info[:2], python_of(process)
    if TORCH not in process.libraries:
        raise refused(process.tgid, "it has not imported torch", "attach once it trains")
    if other is not None and other < _FIRST:
        found = f"it runs Python {_text(other)}, and remote execution came with 3.14"
        raise refused(process.tgid, found, _OUTSIDE)
    if other != own or not hasattr(sys, "remote_exec"):
        found = f"it runs Python {_text(other)}, and this one is {_text(own)}"
        do = f"run `trainobs attach` by the Python of its environment; or {_OUTSIDE}"
        raise refused(process.tgid, found, do)
    if process.environment.get(_OFF):
        raise refused(process.tgid, f"{_OFF} is in its environment", _OUTSIDE)
    if not _shares_mounts(process):
        do = "run `trainobs attach` in that container"
        raise refused(process.tgid, "it is in a container, with files of its own", do)


def python_of(process: Target) -> Version | None:
    """Which Python a process runs, by the name of its program or library; None if none tells."""
    place = f"{PROC}/{process.tgid}"
    with suppress(OSError):
        files = [os.readlink(f"{place}/exe"), *(path for _, path in mappings(place))]
        for file in files:
            name = re.match(r"(?:lib)?python(3)\.(\d{1,3})\b", os.path.basename(file))
            if name:
                return int(name[1]), int(name[2])
    return None


def _text(version: Version | None) -> str:
    return ".".join(map(str, version)) if version else "of an unknown version"


def _shares_mounts(process: Target) -> bool:
    with suppress(OSError):
        return os.readlink(PROC / str(process.tgid) / "ns/mnt") == os.readlink(PROC / "self/ns/mnt")
    return True


def _right_to(process: Target) -> str:
    return f"run it as root; or, as user {process.user}, allow it: kernel.yama.ptrace_scope=0"


def _remote_exec(process: Target, script: str) -> None:
    """Have the main thread of a process run a file.

    Raises:
        AttachError: its Python refuses.
        OSError: the kernel does.
    """
    try:
        execute: Callable[[int, str], None] = vars(sys)["remote_exec"]  # in 3.14
        execute(process.tgid, script)
    except RuntimeError as error:
        found = f"{error} (`{_OFF}`, `-X disable-remote-debug`, or built without)"
        raise refused(process.tgid, found, _OUTSIDE) from error
