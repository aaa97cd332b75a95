"""A process that is to be observed from outside: who it is, and whether it may be observed."""

from __future__ import annotations

import os
import pwd
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trainobs.core.control_groups import is_frozen
from trainobs.core.errors import AttachError
from trainobs.host.family import WORKER_NAME
from trainobs.host.procfs import PROC, own_tgid, parse_stat, read_bytes
from trainobs.host.tree import find_tree

TORCH = "libtorch_cpu.so"
"""The library with autograd's engine and the operators, which every build of torch has."""

_LIBRARIES = (TORCH, "libtorch_python.so")

_BPF_MAP = "anon_inode:bpf-map"
"""What a session of ours has mapped, whether it loads the probes itself or is served."""

_COMPILER = "torch/_inductor/compile_worker"
"""In the command line of processes that compile for one that trains."""

_DELETED = " (deleted)"
_GPUS = "/dev/nvidia"
_MOST_DIGITS = 6  # of a rank; anyone may write anything into an environment
ENDED = "ZX"  # proc_pid_status(5): zombie, dead
STOPPED = "Tt"  # by a signal, by a tracer


@dataclass(frozen=True)
class MappedFile:
    """A file that a process has mapped.

    Attributes:
        path: as the process itself calls it.
        file: where this process finds the same file, also if it is in another mount namespace, or
            deleted.
    """

    path: str
    file: str


@dataclass(frozen=True)
class Target:
    """A process, as `/proc` tells.

    Attributes:
        tgid: its number, as this process sees it.
        own_tid: number of its first thread, as it sees itself.
        uid: its user.
        command: its command line.
        environment: of its start; empty where this user may not see it.
        libraries: of torch, by name; without `TORCH` it has not imported torch.
        is_observed: whether trainobs observes it from inside.
        gpu: a device file of a GPU that it has open, or "".
    """

    tgid: int
    own_tid: int
    uid: int
    command: str
    environment: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, MappedFile] = field(default_factory=dict)
    is_observed: bool = False
    gpu: str = ""

    @property
    def torch(self) -> MappedFile | None:
        """The main library of torch, if it has imported torch."""
        return self.libraries.get(TORCH)

    @property
    def user(self) -> str:
        """Name of its user."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)

    def number(self, name: str, otherwise: int) -> int:
        """A whole number of its environment, such as `RANK`, which torchrun sets."""
        value = self.environment.get(name, "")
        return int(value) if value.isdecimal() and len(value) <= _MOST_DIGITS else otherwise


def look_at(tgid: int) -> Target:
    """What `/proc` tells of a process.

    Raises:
        OSError: it has ended, or this user may not look at it.
    """
    place = f"{PROC}/{tgid}"
    status = _status(place)
    words = read_bytes(f"{place}/cmdline").decode(errors="replace").split("\0")
    libraries, is_observed = _mapped(place)
    return Target(
        tgid=tgid,
        own_tid=int(status.get("NSpid", str(tgid)).split()[-1]),
        uid=int(status["Uid"].split()[1]),
        command=shlex.join(words[:-1]) or status["Name"],
        environment=dict(_environment(place)),
        libraries=libraries,
        is_observed=is_observed,
        gpu=_gpu(place),
    )


def find(pid: int) -> Target:
    """The process to observe.

    Raises:
        AttachError: there is none, it is another user's, or it cannot be observed.
    """
    if not tells_of_others():
        raise refused(pid, NO_PROC, DO_PROC)
    status = _check_is_there(pid)
    _check_user(pid, int(status["Uid"].split()[1]))
    try:
        process = look_at(pid)
    except OSError as error:
        raise out_of_reach(pid, str(error)) from error
    if pid == os.getpid():
        raise refused(pid, "it is this `trainobs attach` itself", DO_PID)
    if process.is_observed:
        raise refused(
            pid,
            "it is observed by trainobs itself, from inside, which knows more",
            "read its run log: `trainobs report RUN`, or `--watch` while it runs",
        )
    _refuse_launcher(process)
    return process


def refused(pid: int, found: str, do: str) -> AttachError:
    """A process cannot be observed from outside."""
    return AttachError(f"cannot attach to process {pid}", found, do)


def ended(pid: int) -> AttachError:
    """It has ended while somebody was about to attach to it."""
    return refused(pid, "it has just ended", "attach to one that trains")


def out_of_reach(pid: int, found: str) -> AttachError:
    """What is needed of it is not there for this user, or any more."""
    do = DO_ROOT if os.geteuid() else _DO_AS_ROOT
    return ended(pid) if has_ended(pid) else refused(pid, found, do)


DO_PID = "give the number of a training process: `trainobs top` lists them"
IDLE_S, IDLE_SHARE = 10.0, 0.02
"""How long a process does nothing, and how little CPU time that is, until it is given up."""

DO_ROOT = "run it as root, outside of containers"
"""What to do where a right is missing."""
_DO_AS_ROOT = (
    "see what keeps root from it: a capability that it lacks (CAP_SYS_PTRACE, or one that the "
    "process has), a container, a security module"
)


NO_PROC = "/proc is missing, or that of another namespace of processes, with numbers of its own"
DO_PROC = "mount it anew (`mount -t proc proc /proc`; `unshare --mount-proc` does), or go outside"


def tells_of_others() -> bool:
    """Whether `/proc` knows processes by the numbers that the kernel's programs see."""
    try:
        return own_tgid(PROC) == os.getpid()
    except OSError:
        return False


def _check_is_there(pid: int) -> Mapping[str, str]:
    try:
        status = _status(f"{PROC}/{pid}")
    except OSError as error:
        raise refused(pid, "there is no such process", DO_PID) from error
    if status["State"][0] in ENDED:
        raise refused(pid, "it has ended; only its parent has not noticed yet", DO_PID)
    if "VmSize" not in status and status["PPid"] in ("0", "2"):  # kthreadd, and what it started
        raise refused(pid, "it is a thread of the kernel", DO_PID)
    if int(status["Tgid"]) != pid:
        do = f"give the process: trainobs attach {status['Tgid']}"
        raise refused(pid, f"it is a thread of process {status['Tgid']}", do)
    return status


def _check_user(pid: int, uid: int) -> None:
    """Whoever may load probes could follow any process; only root shall."""
    if os.geteuid() not in (0, uid):
        raise refused(pid, f"it is of another user (uid {uid})", DO_ROOT)


def _refuse_launcher(process: Target) -> None:
    """Refuse what has no torch itself, or only starts ranks, where what it has started has."""
    starts_ranks = process.torch is not None and _starts_ranks(process)
    below = training_below(process.tgid) if process.torch is None or starts_ranks else []
    if not below:
        return
    verb = "has" if len(below) == 1 else "have"
    found = f"it has not imported torch; of what it has started, {named(below)} {verb}"
    if starts_ranks:
        found = f"it is the launcher of a job, and no rank of it; {named(below)} {verb} torch, too"
    raise refused(process.tgid, found, attach_to(below))


def _starts_ranks(process: Target) -> bool:
    """Whether it gives out ranks, the first one too, and has none: torchrun and its like.

    A training that starts the other ranks of its job itself is the first one.
    """
    if "RANK" in process.environment:
        return False
    ranks = []
    for tgid in find_tree(PROC).descendants(process.tgid) or ():
        with suppress(OSError):
            if parse_stat(read_bytes(f"{PROC}/{tgid}/stat")).parent == process.tgid:
                environment = dict(_environment(f"{PROC}/{tgid}"))
                ranks += [environment] if "RANK" in environment else []
    return any(rank.get("LOCAL_RANK", rank["RANK"]) == "0" for rank in ranks)


_NAMED = 8


def named(processes: Sequence[Target]) -> str:
    """Numbers of some processes, in words."""
    told = [str(process.tgid) for process in processes[:_NAMED]]
    more = len(processes) - len(told)
    told += [f"{more} more"] if more else []
    return " and ".join(filter(None, (", ".join(told[:-1]), told[-1])))


def attach_to(processes: Sequence[Target]) -> str:
    """What to do where these are the ones that train."""
    first = f"trainobs attach {processes[0].tgid}"
    if len(processes) == 1:
        return first
    if "RANK" in processes[0].environment:
        return f"{first}, which attaches to all ranks of its job on this machine"
    return f"{first}, or to another one of them"


def training_below(tgid: int) -> list[Target]:
    """Descendants of a process that have torch, loader workers and compilers left out."""
    return [one for child in find_tree(PROC).descendants(tgid) or () for one in _trains(child)]


def training_processes() -> list[Target]:
    """All processes of this machine with torch that this user may observe, workers left out."""
    tgids = [int(name) for name in os.listdir(PROC) if name.isdigit()]
    own = [one for tgid in tgids for one in _trains(tgid)]
    return [one for one in own if os.geteuid() in (0, one.uid) and one.tgid != os.getpid()]


def _trains(tgid: int) -> Iterator[Target]:
    try:
        if read_bytes(f"{PROC}/{tgid}/comm").strip() != WORKER_NAME:
            process = look_at(tgid)
            if process.torch and _COMPILER not in process.command:
                yield process
    except OSError:
        return  # ended meanwhile, or another user's


def worker_count(tgid: int) -> int:
    """Loader workers that a process has now."""
    count = 0
    for child in find_tree(PROC).descendants(tgid) or ():
        try:
            stat = parse_stat(read_bytes(f"{PROC}/{child}/stat"))
        except OSError:
            continue  # ended meanwhile
        count += stat.name == WORKER_NAME.decode() and stat.parent == tgid
    return count


def why_it_stands(tgid: int) -> tuple[str, str]:
    """What keeps a process from going on, and what to do; "" for both if nothing does."""
    if state_of(tgid) in STOPPED:
        return "it is stopped by a signal", f"let it go on: `kill -CONT {tgid}`"
    if is_frozen(tgid):
        return "its control group is frozen", "let it go on, as by `docker unpause`"
    return "", ""


def state_of(tgid: int) -> str:
    """Its state, one letter of proc_pid_status(5); "X" where it has ended."""
    try:
        return _status(f"{PROC}/{tgid}")["State"][0]
    except OSError:
        return "X"


def cpu_s(tgid: int) -> float:
    """CPU time of a process, of all its threads, in seconds; 0 where it has ended."""
    with suppress(OSError):
        raw = read_bytes(f"{PROC}/{tgid}/stat")
        user, system = raw[raw.rindex(b")") + 2 :].split()[11:13]  # proc_pid_stat(5): utime, stime
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return 0.0


def has_ended(tgid: int) -> bool:
    """Whether it has ended, or is about to: its memory is gone first."""
    try:
        status = _status(f"{PROC}/{tgid}")
    except OSError:
        return True
    return status["State"][0] in ENDED or "VmSize" not in status


def runs_python(tgid: int) -> bool:
    """Whether it is an interpreter of Python, or has one; so it may be where nobody may see it."""
    with suppress(OSError):
        place = f"{PROC}/{tgid}"
        if "python" in os.path.basename(os.readlink(f"{place}/exe")).lower():
            return True
        return b"/libpython" in read_bytes(f"{place}/maps")
    return True


def image_of(tgid: int) -> bytes:
    """What differs between the programs that a process runs: where the stack of each begins.

    Zero where this user may not see it; empty where the process has ended.
    """
    with suppress(OSError):
        raw = read_bytes(f"{PROC}/{tgid}/stat")
        return raw[raw.rindex(b")") :].split()[26]  # proc_pid_stat(5): startstack
    return b""


def _status(place: str) -> dict[str, str]:
    lines = read_bytes(f"{place}/status").decode(errors="replace").splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name: value.strip() for name, _, value in pairs}


def _environment(place: str) -> Iterator[tuple[str, str]]:
    try:
        text = Path(place, "environ").read_bytes().decode(errors="replace")
    except OSError:
        return
    for setting in text.split("\0"):
        name, found, value = setting.partition("=")
        if found:
            yield name, value


def mappings(place: str) -> Iterator[tuple[str, str]]:
    """What a process has mapped: begin and end of each mapping, and the file as it calls it.

    Args:
        place: of the process, `/proc/PID`.

    Raises:
        OSError: it has ended, or this user may not look at it.
    """
    for line in Path(place, "maps").read_text(errors="replace").splitlines():
        address, *_, path = line.split(maxsplit=5)
        yield address, path.removesuffix(_DELETED)


def _mapped(place: str) -> tuple[dict[str, MappedFile], bool]:
    """The libraries of torch, of which Debian's have a version; whether maps of eBPF are mapped."""
    libraries: dict[str, MappedFile] = {}
    is_observed = False
    for address, path in mappings(place):
        is_observed |= path == _BPF_MAP
        stem, found, _ = os.path.basename(path).partition(".so")
        name = stem + found
        if name in _LIBRARIES and name not in libraries:
            libraries[name] = mapped_at(place, address, path)
    return libraries, is_observed


def mapped_at(place: str, address: str, path: str) -> MappedFile:
    """A mapped file: by its mapping, for which only root may ask, or else by its path."""
    begin, end = (int(number, 16) for number in address.split("-"))
    file = f"{place}/map_files/{begin:x}-{end:x}"  # in `maps` low ones have zeros in front
    return MappedFile(path, file if os.path.exists(file) else f"{place}/root{path}")


def _gpu(place: str) -> str:
    with suppress(OSError), os.scandir(f"{place}/fd") as descriptors:
        for descriptor in descriptors:
            target = os.readlink(descriptor.path)
            if target.startswith(_GPUS) and target[len(_GPUS) :].isdigit():
                return target
    return ""
