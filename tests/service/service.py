"""The service as a process, and what its users do to it."""

from __future__ import annotations

import grp
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.kernel.ground_truth import read_whole, write_file
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.privileges import NOBODY, become_nobody
from tests.kernel.processes import ROOT, fork, join
from tests.session.jobs import programs_of, wait_for
from trainobs.core.abi import FileClass, Op
from trainobs.probes import protocol
from trainobs.probes.service_backend import ServiceBackend, connect, enter

SOMEBODY = NOBODY - 1
"""Another user, of the same group."""

GROUP = grp.getgrgid(NOBODY).gr_name

MAIN = "import sys; from trainobs.service.main import main; sys.exit(main())"


class Service:
    """A `trainobs-probed` of the group of nobody, started in a process of its own.

    Args:
        options: further arguments of the command.
        code: what the interpreter runs, by default the command.
        before: a command that runs another one, such as `unshare`.
    """

    def __init__(
        self, path: Path, *options: object, code: str = MAIN, before: Sequence[str] = ()
    ) -> None:
        self.path = path
        self.log: list[str] = []
        arguments = ["--socket", path, "--group", GROUP, *options]
        self.process = subprocess.Popen(
            [*before, sys.executable, "-c", code, *map(str, arguments)],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_for(lambda: self.process.poll() is not None or self.said("listening at"))
        if self.process.poll() is not None:
            self.stop()
            raise AssertionError(self.log)

    def said(self, words: str) -> bool:
        """Whether it has logged something with these words."""
        return any(words in line for line in list(self.log))

    def programs(self) -> set[int]:
        """Ids of the programs that it holds."""
        return programs_of(self.process.pid)

    def sessions(self) -> int:
        """How many it has, as it says."""
        connection, answer, _ = enter(self.path, "hello")
        connection.close()
        return int(answer["sessions"])

    def is_free_again(self) -> None:
        """Wait until nobody has a session."""
        wait_for(lambda: self.sessions() == 0)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it; its exit status."""
        self.process.send_signal(number)
        if self.process.stderr.closed:
            return self.process.returncode
        status = self.process.wait()
        self._reader.join()
        self.process.stderr.close()
        return status

    def _read(self) -> None:
        for line in self.process.stderr:
            self.log.append(line.rstrip())


class Observed(ObservedKernel):
    """This process, observed through the service."""

    def __init__(self, path: Path) -> None:
        super().__init__(kernel=ServiceBackend(path))


class Turns:
    """Lets one process wait for another."""

    def __init__(self) -> None:
        self._told, self._tell = os.pipe()

    def pass_on(self, turns: int = 1) -> None:
        os.write(self._tell, b"x" * turns)

    def wait(self) -> None:
        os.read(self._told, 1)

    def close(self) -> None:
        os.close(self._told)
        os.close(self._tell)

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()


class Raw:
    """A client that says what it likes."""

    def __init__(self, path: Path) -> None:
        self.socket = connect(path)
        self.socket.settimeout(60)

    def say(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        socket.send_fds(self.socket, [data], list(descriptors))

    def answer(self, descriptors: int = 0) -> tuple[dict[str, Any], list[int]] | None:
        """What the service answers; None if it hangs up."""
        try:
            return protocol.receive(self.socket, protocol.ANSWER_BYTES, descriptors)
        except (EOFError, ConnectionError):
            return None

    def ask(
        self, what: str, *, count: int = 0, **arguments: object
    ) -> tuple[dict[str, Any], list[int]] | None:
        question = {
            "version": protocol.VERSION,
            "layout": protocol.LAYOUT,
            "ask": what,
            **arguments,
        }
        with suppress(BrokenPipeError):
            protocol.send(self.socket, question, ())
        return self.answer(count)

    def close(self) -> None:
        self.socket.close()


def as_user(work: Callable[[], object], uid: int = NOBODY, gid: int = NOBODY) -> int:
    """Start a child that does `work` as a user without any capability."""

    def drop_and_work() -> None:
        become_nobody(uid=uid, gid=gid)
        work()

    return fork(drop_and_work)


def refusal_of(answer: tuple[dict[str, Any], list[int]] | None) -> str:
    """What the service refused something with."""
    assert answer is not None, "it hung up without a word"
    message, descriptors = answer
    assert message["ok"] is False
    assert message["do"]
    assert descriptors == []
    return str(message["found"])


def data_of(observed: Observed, place: Path, work: Callable[[], object]) -> Counts:
    """What is counted while `work` is done, with a directory of data."""
    observed.kernel.add_root(place, FileClass.DATA)
    return observed.during(work)


def serves(service: Service, uid: int = NOBODY) -> None:
    """See that an honest user is served, exactly, while others do what they do."""

    def honest() -> None:
        observed = Observed(service.path)
        path = service.path.parent
        got = data_of(observed, path, lambda: read_whole(path / "file"))
        assert got.bytes(Op.READ, FileClass.DATA) == 4096
        observed.stop()

    if not (service.path.parent / "file").exists():
        write_file(service.path.parent / "file", 4096)
    join(as_user(honest, uid))
