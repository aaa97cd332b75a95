"""Jobs in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests import warm

LOOP = Path(__file__).with_name("loop_job.py")

TWO_RANKS = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
"""What a command begins with that is to run in two ranks on this machine."""


class Job:
    """A process whose lines are read one by one."""

    def __init__(self, *command: object, **variables: object) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        environment |= {name: str(value) for name, value in variables.items()}
        self.process = warm.Popen(
            [sys.executable, *map(str, command)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def line(self) -> str:
        """The next line."""
        return self.process.stdout.readline().rstrip("\n")

    def step(self, number: int) -> None:
        """Wait until a step has begun."""
        wanted = f"step {number}"
        while (line := self.line()) != wanted:
            assert line, self.process.communicate()

    def workers(self) -> list[int]:
        """Its children that load data."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        names = {int(pid): Path(f"/proc/{pid}/comm").read_text() for pid in children.split()}
        return [pid for pid, name in names.items() if name.startswith("pt_data_worker")]

    def programs(self) -> set[int]:
        """Ids of the BPF programs that it holds."""
        return programs_of(self.process.pid)

    def signal(self, number: int) -> int:
        """End it with a signal; its exit status."""
        self.process.send_signal(number)
        return self.process.wait()

    def end(self) -> tuple[int, list[str], str]:
        """Exit status, last lines and errors, once it has come to its end."""
        out, err = self.process.communicate()
        return self.process.returncode, out.splitlines(), without_last_lines(err)


def end_of_two_ranks(*command: object, **variables: object) -> tuple[int, list[str], str]:
    """As `Job.end`, of two that are told what torchrun tells ranks, and have torch as they begin.

    torchrun starts an interpreter for each, which imports torch for 2 s of CPU.
    """
    from torch.distributed import TCPStore

    store = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    told = {"MASTER_ADDR": "localhost", "MASTER_PORT": store.port}
    told |= {"TORCHELASTIC_USE_AGENT_STORE": True, "TORCHELASTIC_RUN_ID": "tests"}
    told |= {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": 1, **variables}
    jobs = [Job(*command, RANK=rank, LOCAL_RANK=rank, **told) for rank in (0, 1)]
    statuses, lines, errors = zip(*(job.end() for job in jobs), strict=True)
    return max(statuses, key=abs), sum(lines, []), "".join(errors)


def without_last_lines(errors: str) -> str:
    """Errors, without what each run says as it ends (`session/ending.py`), and who says them."""
    lines, sender = errors.splitlines(keepends=True), "trainobs: "
    return "".join(
        line.removeprefix(sender)
        for line, after in zip(lines, [*lines[1:], ""], strict=False)
        if not line.startswith(sender) or after.startswith("  found: ")
    )


@contextmanager
def loop(directory: Path, *arguments: object) -> Iterator[Job]:
    """`loop_job.py`, and at the end neither it nor a worker of it."""
    job = Job(LOOP, directory, *arguments)
    try:
        yield job
    finally:
        for pid in processes(directory):  # orphaned workers too, which take 5 s to notice
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.process.communicate()


def descriptors_of(pid: int) -> set[str]:
    """Kinds of BPF descriptors that a process has open."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # the listing's own descriptor
            found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return {target for target in found if "bpf" in target}


def programs_of(pid: int) -> set[int]:
    """Ids of the BPF programs that a process holds, itself or through a link."""
    held = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with suppress(FileNotFoundError):  # the listing's own descriptor
            lines = Path(f"/proc/{pid}/fdinfo/{fd}").read_text().splitlines()
            held |= {int(line.split()[1]) for line in lines if line.startswith("prog_id:")}
    return held


def processes(directory: Path) -> list[int]:
    """Processes that run the job of a directory."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in command and LOOP.name.encode() in command:
            found.append(int(process.name))
    return found


def wait_for(condition: Callable[[], object], patience_s: float = 60.0) -> None:
    """Wait until a function returns something true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline, condition
        time.sleep(0.02)
