"""Processes that have torch imported as they begin: `Popen`, for what needs no new interpreter.

To import torch takes 2 s of CPU. A server imports it once, and forks for each job. That one is then
a child of the process that asked for it, runs its code as `__main__`, and ends as an interpreter
does.
"""

from __future__ import annotations

import builtins
import ctypes
import gc
import json
import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

MODULES = (
    *("torch", "torch.utils.data", "pyarrow.parquet", "tensorboard.compat.proto.event_pb2"),
    "torch._dynamo",  # the first optimizer of a process imports it
)
"""What jobs find imported; nothing of trainobs."""

SERVER = "import sys; from tests.warm import serve; serve(int(sys.argv[1]))()"

PLACE_OF_WORDS = "-" * 4000
"""The last word of the server, where the words of a job are put."""

_MESSAGE_BYTES = 1 << 17
_DESCRIPTORS = 1 << 20  # more than a process may have
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None)


class Popen(subprocess.Popen[str]):
    """Runs `[sys.executable, SCRIPT | "-c" CODE | "-m" MODULE, ARGUMENT...]` in a fork."""

    def _execute_child(  # what starts the process, in all versions of subprocess so far
        self,
        args: list[Any],
        executable: None,
        preexec_fn: None,
        close_fds: bool,
        pass_fds: tuple[int, ...],
        cwd: str | None,
        env: Mapping[str, str] | None,
        startupinfo: None,
        creationflags: int,
        shell: bool,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        *rest: object,
    ) -> None:
        interpreter, *words = map(os.fspath, args)
        assert interpreter == sys.executable
        ends = (p2cread, c2pwrite, errwrite)
        own = [end if end >= 0 else standard for standard, end in enumerate(ends)]
        variables = dict(os.environ if env is None else env)
        self.pid = _server().start(own, words=words, cwd=str(cwd or Path.cwd()), env=variables)
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)


def run(
    command: list[Any], *, check: bool = False, timeout: float | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`; what the job prints is captured."""
    pipe = subprocess.PIPE
    with Popen(command, stdout=pipe, stderr=pipe, text=True, **options) as job:
        try:
            done = subprocess.CompletedProcess(command, 0, *job.communicate(timeout=timeout))
        except subprocess.TimeoutExpired:
            job.kill()
            raise
        done.returncode = job.returncode
    if check:
        done.check_returncode()
    return done


class _Server:
    """The process that forks; it ends with this one."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            end = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", SERVER, str(end), PLACE_OF_WORDS],
                pass_fds=[end],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def start(self, descriptors: list[int], **job: object) -> int:
        """Start a job; its process id. It has lost its parent, and so becomes a child of ours."""
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            socket.send_fds(self._socket, [json.dumps(job).encode()], descriptors)
            return int(self._socket.recv(32))
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def stop(self) -> None:
        self._socket.close()
        self._process.terminate()  # a forked child of ours may have the socket, too
        self._process.wait()


_servers: dict[int, _Server] = {}


def _server() -> _Server:
    """That of this process: what the server forks for a child of ours would be ours."""
    if os.getpid() not in _servers:
        _servers[os.getpid()] = _Server()
    return _servers[os.getpid()]


def stop() -> None:
    """End the server of this process, if it has one."""
    if server := _servers.pop(os.getpid(), None):
        server.stop()


def serve(descriptor: int) -> Callable[[], None]:
    """Fork for each job that is asked for; returns in the fork, with what it is to run."""
    for module in MODULES:
        __import__(module)
    gc.collect()
    gc.freeze()
    asked = socket.socket(fileno=descriptor)
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, _MESSAGE_BYTES, 3)
        if not message:
            os._exit(0)
        (found, find), (begun, begin) = os.pipe(), os.pipe()
        if (between := os.fork()) == 0:
            if job := os.fork():
                os.write(find, b"%d" % job)
                os._exit(0)
            os.read(begun, 1)  # until its parent is the process that asked
            for standard, own in enumerate(descriptors):
                os.dup2(own, standard)
            asked.detach()
            os.closerange(3, _DESCRIPTORS)
            return _job(**json.loads(message))
        os.waitpid(between, 0)
        os.write(begin, b"x")
        asked.send(os.read(found, 32))
        for own in (*descriptors, found, find, begun, begin):
            os.close(own)


def _job(words: list[str], cwd: str, env: dict[str, str]) -> Callable[[], None]:
    """What a job does; the process is set up for it as an interpreter is."""
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    _show_as([sys.executable, *words])
    names = vars(sys.modules["__main__"])
    names.clear()
    names.update(__name__="__main__", __builtins__=builtins, __spec__=None, __doc__=None)
    kind, *arguments = words
    sys.path[0] = ""
    if kind == "-m":
        sys.argv, sys.path[0] = arguments, cwd
        return lambda: runpy._run_module_as_main(arguments[0])
    if kind == "-c":
        code, sys.argv = compile(arguments[0], "<string>", "exec"), ["-c", *arguments[1:]]
    else:
        code, sys.argv = compile(Path(kind).read_bytes(), kind, "exec"), words
        sys.path[0] = str(Path(kind).resolve().parent)
        names["__file__"] = kind
    return lambda: exec(code, names)


def _show_as(words: list[str]) -> None:
    """Change what `/proc/PID/cmdline` shows: the words of the server are in its memory."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])  # arg_start, arg_end
    shown = b"\0".join(map(os.fsencode, words))[: end - begin - 1]
    ctypes.memmove(begin, shown.ljust(end - begin, b"\0"), end - begin)
