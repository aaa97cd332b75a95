"""The other ranks of the job, as torch.distributed knows them.

Never imports torch: a job that has not imported it has no other ranks. Nothing here adds a
collective or a key of anybody else, and all of it may be missing: then other ranks are not known.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from trainobs.core.collectives import Collective, bytes_of, kind_of
from trainobs.core.log import logger
from trainobs.core.records import UNKNOWN

TIMEOUT_S = 5.0
"""What one answer of the store may take; it is asked by a thread that nobody waits for."""

REST = 300
"""The flight recorder rests for this many times what reading it took: 0.3 % of a CPU."""

GLOO = frozenset({"pt_gloo_runloop", "gloo_tcp_loop"})
"""Names of the threads that carry out collectives and messages: bpf/sched.bpf.h."""

_MIN_REST_NS = 1_000_000_000

_SLEWED_NS, _SLEWED = 1_000_000, 0.001
"""How far apart two clocks may drift between two readings, at least and as a share of the time: NTP
slows or hastens the wall clock by 0.05 % at most. What is more is a step of it."""


GROUPS = 1 << 16
"""Groups of a job until it takes them away: torch then numbers others anew."""


_LAUNCHED = ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "SLURM_JOB_ID", "LSB_JOBID", "PBS_JOBID")
"""Variables that are the same for all ranks of a job, and others of one that runs beside it."""


class Arrival(NamedTuple):
    """When this rank came to a collective of all ranks: it may have to wait for the others there.

    Attributes:
        group: number of the process group, as the job counts them, and `GROUPS` for each time that
            it began to count anew.
        seq: number of the collective in the group, the same on every rank.
        at_ns: CLOCK_MONOTONIC as the collective was asked for.
        kind: of collective.
        input_bytes: of the tensors that this rank gave to it; `UNKNOWN` where torch does not tell.
        output_bytes: of those that it got.
    """

    group: int
    seq: int
    at_ns: int
    kind: Collective = Collective.OTHER
    input_bytes: int = UNKNOWN
    output_bytes: int = UNKNOWN

    @classmethod
    def from_entry(cls, entry: dict[str, Any], group: int, at_ns: int) -> Arrival:
        """An entry of the recorder."""
        name = str(entry.get("profiling_name", ""))
        moved = (
            bytes_of(name, entry.get(f"{way}_sizes"), entry.get(f"{way}_dtypes"))
            for way in ("input", "output")
        )
        return cls(group, int(entry["collective_seq_id"]), at_ns, kind_of(name), *moved)


def rank_and_size() -> tuple[int, int]:
    """Number of this process in its job, and how many there are: 0 of 1 where nobody tells.

    A process group tells, as where `torch.multiprocessing` started the ranks; without one, what
    `torchrun` and its like set.
    """
    distributed = _initialized()
    if distributed is not None:
        return distributed.get_rank(), distributed.get_world_size()
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
    return int(rank) if rank.isdecimal() else 0, int(size) if size.isdecimal() else 1


class TorchJob:
    """What the observer may ask of the job; each part is found when it is asked for."""

    def __init__(self) -> None:
        self._next_ns = 0
        self._record = -1
        self._seen: dict[int, int] = {}
        self._base = 0
        self._waits_on_host = False
        self._offset = time.monotonic_ns(), _wall_offset_ns()

    def name(self) -> str:
        """What tells this job from others that write to the same place, as far as it is known."""
        names = set(_LAUNCHED)
        if "SLURM_HET_SIZE" in os.environ:  # its parts have numbers of their own
            names.remove("SLURM_JOB_ID")
        told = [f"{name}={os.environ[name]}" for name in sorted(names & os.environ.keys())]
        return hashlib.sha256("\0".join(told).encode(errors="replace")).hexdigest()[:16]

    def waits_on_host(self) -> bool:
        """Whether all collectives are gloo's, in which the thread that waits sleeps.

        It is woken by threads that the kernel side knows by their names. Once the job has taken its
        process group away, this is what held before.
        """
        distributed = _initialized()
        try:
            config = "" if distributed is None else str(distributed.get_backend_config())
        except (RuntimeError, ValueError):  # the job has just taken its process group away
            config = ""
        if config:
            on_gloo = {part.rpartition(":")[2] for part in config.split(",")} == {"gloo"}
            on_host = on_gloo and not _uses_gpu()  # else a thread of autograd's waits
            self._waits_on_host = on_host and (self._waits_on_host or _thread_names() >= GLOO)
        return self._waits_on_host

    def store(self, prefix: str) -> TorchStore | None:
        """A connection of our own to the job's key-value store; None while there is no job.

        Raises:
            AttributeError: torch is older than 2.8, and cannot make one.
        """
        distributed = _initialized()
        if distributed is None:
            return None
        # Its clone has its own connection: neither waits for what the job asks of it.
        shared = distributed.distributed_c10d._get_default_store()
        return TorchStore(distributed.PrefixStore(prefix, shared.clone()))

    def arrivals(self, at_once: bool = False) -> list[Arrival]:
        """Collectives of all ranks since the last call, oldest first, where torch records them.

        Args:
            at_once: also if the recorder was read so recently that it should rest.

        Notes:
            On a GPU it is the host that arrives; the kernel follows when the stream comes to it.
            The recorder has the wall clock: if that is set, what came since the last call is not
            known, and left out.
        """
        distributed = _initialized()
        now = time.monotonic_ns()
        if distributed is None or (now < self._next_ns and not at_once):
            return []
        try:
            found = self._new(_flight_record(), distributed.get_world_size())
        except Exception as error:  # of another form than ours, or gone with the process group
            logger.debug("torch's record of collectives is not understood: %r", error)
            return []
        finally:
            took = time.monotonic_ns() - now
            self._next_ns = now + max(_MIN_REST_NS, REST * took)
        return found

    def _new(self, record: dict[str, Any], world_size: int) -> list[Arrival]:
        was_set, offset_ns = self._look_at_the_clocks()
        groups = _groups_of_all(world_size)
        found = []
        for entry in record.get("entries", ()):
            is_new, self._record = _is_after(entry, self._record)
            number = groups.get(str(entry["process_group"][0]))
            if not is_new or number is None or entry["is_p2p"]:
                continue
            if int(entry["collective_seq_id"]) < self._seen.get(self._base + number, 0):
                self._base += GROUPS  # the job has taken its groups away and made others
            group = self._base + number
            one = Arrival.from_entry(entry, group, int(entry["time_created_ns"]) - offset_ns)
            if one.seq > self._seen.get(group, 0):
                self._seen[group] = one.seq
                found.append(one)
            elif found and found[-1][:2] == one[:2]:  # several that torch has made one of
                found[-1] = found[-1]._replace(
                    kind=Collective.OTHER, input_bytes=UNKNOWN, output_bytes=UNKNOWN
                )
        return [] if was_set else found

    def _look_at_the_clocks(self) -> tuple[bool, int]:
        """Whether the wall clock was set since the last call, and how far ahead it is, ns."""
        (then_ns, before_ns), now_ns = self._offset, time.monotonic_ns()
        offset_ns = _wall_offset_ns()
        self._offset = now_ns, offset_ns
        slewed_ns = max(_SLEWED_NS, _SLEWED * (now_ns - then_ns))
        return abs(offset_ns - before_ns) > slewed_ns, offset_ns


class TorchStore:
    """A key-value store that answers at once, or says so.

    Raises:
        Exception: of any method: whatever torch makes of a store that is gone.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        store.set_timeout(timedelta(seconds=TIMEOUT_S))

    def put(self, key: str, value: bytes) -> None:
        """Set a key, or overwrite it."""
        self._store.set(key, value)

    def get(self, key: str) -> bytes | None:
        """The value of a key; None if it is not there."""
        return bytes(self._store.get(key)) if self._store.check([key]) else None

    def delete(self, key: str) -> None:
        """Remove a key."""
        self._store.delete_key(key)


def _is_after(entry: dict[str, Any], record: int) -> tuple[bool, int]:
    """Whether an entry of the recorder came after one of this number, and the later of the two."""
    number = int(entry["record_id"])
    return number > record, max(number, record)


def _uses_gpu() -> bool:
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def _thread_names() -> set[str]:
    """Names of the threads of this process."""
    found = set()
    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has just ended
            found.add(name.read_text().strip())
    return found


def _initialized() -> Any | None:
    """`torch.distributed` of a job with a process group."""
    distributed = sys.modules.get("torch.distributed")
    ready = distributed and distributed.is_available() and distributed.is_initialized()
    return distributed if ready else None


def _flight_record() -> dict[str, Any]:
    """What torch's flight recorder holds; nothing where torch is older, or it is switched off.

    Source: torch/csrc/distributed/c10d/FlightRecorder.hpp.
    """
    bindings = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(bindings, "_dump_fr_trace", None)
    if dump is None:
        return {}
    record = pickle.loads(dump(True, False, False))  # made by this process: no stacks, all states
    return record if isinstance(record, dict) else {}


def _wall_offset_ns() -> int:
    """Wall clock less CLOCK_MONOTONIC, ns: of a few readings the one that took the least time.

    Where the CPU is taken away between two clocks, all arrivals of a reading would come early.
    """
    found = []
    for _ in range(3):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        found.append((after - before, wall - (before + after) // 2))
    return min(found)[1]


def _groups_of_all(world_size: int) -> dict[str, int]:
    """Name of each process group that all ranks are in -> its number.

    Torch names them by a number that all ranks count; a group that some ranks make without the
    others has a name of another form.
    """
    world = sys.modules["torch.distributed"].distributed_c10d._world
    names = (
        str(world.pg_names[group])
        for group, ranks in world.pg_group_ranks.items()
        if len(ranks) == world_size
    )
    return {name: int(name) for name in names if name.isdecimal()}
