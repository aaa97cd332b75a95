"""What the kernel holds, asked with bare bpf(2) calls: tests do not trust the loader they test."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from trainobs.core.errors import ProbeError
from trainobs.probes.libbpf import open_library

PROGRAM_NEXT, PROGRAM_OPEN = 11, 13  # BPF_PROG_GET_NEXT_ID, BPF_PROG_GET_FD_BY_ID
INFO = 15  # BPF_OBJ_GET_INFO_BY_FD
BPF_SYSCALL = {"x86_64": 321, "aarch64": 280}[platform.machine()]
PROGRAM_NAME_OFFSET = 64  # bpf_prog_info::name

_SINCE = {
    ((5, 15), ("x86_64", "aarch64")): ("tobs_await",),
    ((5, 19), ("x86_64", "aarch64")): ("tobs_uring",),
    ((6, 3), ("aarch64",)): ("tobs_send", "tobs_receive"),
    ((6, 4), ("aarch64",)): ("tobs_fault", "tobs_ra_wait"),
}
"""Release and machines -> programs that run since then; docs/kernels.md says why."""

_libc = ctypes.CDLL(None, use_errno=True)


def programs_off_here() -> frozenset[str]:
    """Programs that the running kernel cannot run, by its version; newer ones run all of them."""
    major, minor = platform.release().split(".")[:2]
    release = int(major), int(minor.partition("-")[0])
    return frozenset(
        name
        for (since, machines), names in _SINCE.items()
        for name in names
        if release < since and platform.machine() in machines
    )


def loaded_programs() -> list[str]:
    """Names of the loaded programs that are trainobs', oldest first."""
    return list(_our_programs().values())


def left_behind(before: set[int], patience_s: float = 60.0) -> list[str]:
    """Programs that this test has loaded since `before` (ids) and nobody unloaded.

    The kernel unloads some time after the last descriptor is closed, hence the patience. What a
    process holds that neither this one has started nor lost is some other run, not a leak.
    """
    deadline = time.monotonic() + patience_s
    left = program_ids() - before
    while left:
        left &= program_ids()
        left -= _held_by_others() if left else set()
        if time.monotonic() > deadline:
            return [name for key, name in _our_programs().items() if key in left]
        time.sleep(0.05 if left else 0)
    return []


def program_ids() -> set[int]:
    """Ids of the loaded programs that are trainobs'."""
    return set(_our_programs())


def why_no_bpf() -> str | None:
    """What keeps this process from loading probes; None if nothing does."""
    if not Path("/sys/kernel/btf/vmlinux").exists():
        return "the kernel has no BTF"
    try:
        open_library()
    except ProbeError as error:
        return error.found
    try:
        next(_ids(PROGRAM_NEXT), None)
    except OSError as error:
        return f"bpf(2): {error.strerror}"
    return None


def bpf(command: int, attr: ctypes.Array[ctypes.c_char]) -> int:
    """bpf(2): a descriptor or 0; -1 where the thing does not exist."""
    result: int = _libc.syscall(BPF_SYSCALL, command, attr, len(attr))
    if result < 0 and ctypes.get_errno() != errno.ENOENT:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def _our_programs() -> dict[int, str]:
    ours = {}
    for program in _ids(PROGRAM_NEXT):
        info = _info(PROGRAM_OPEN, program)
        name = info[PROGRAM_NAME_OFFSET:][:16].split(b"\0")[0].decode()
        if name.startswith("tobs_"):
            ours[program] = name
    return ours


def _ids(command: int) -> Iterator[int]:
    attr = ctypes.create_string_buffer(12)  # start_id, next_id, open_flags
    while bpf(command, attr) >= 0:
        (found,) = struct.unpack_from("I", attr, 4)
        yield found
        struct.pack_into("I", attr, 0, found)


def _info(command: int, key: int) -> bytes:
    """The info structure of a program or link; empty if it has gone meanwhile."""
    fd = bpf(command, ctypes.create_string_buffer(struct.pack("III", key, 0, 0)))
    if fd < 0:
        return b""
    try:
        info = ctypes.create_string_buffer(256)
        bpf(INFO, ctypes.create_string_buffer(struct.pack("IIQ", fd, 256, ctypes.addressof(info))))
        return info.raw
    finally:
        os.close(fd)


def _held_by_others() -> set[int]:
    held = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if _may_be_ours(int(process.name)):
                continue
            for fd in (process / "fdinfo").iterdir():
                lines = fd.read_text().splitlines()
                held |= {int(line.split()[1]) for line in lines if line.startswith("prog_id:")}
        except OSError:  # gone meanwhile
            continue
    return held


def _may_be_ours(pid: int) -> bool:
    """Whether this process has started another one, or may have: that one has lost its parent."""
    own_session = os.getsid(pid) == os.getsid(0)
    while pid != os.getpid():
        status = Path(f"/proc/{pid}/stat").read_text()
        parent = int(status.rpartition(")")[2].split()[1])
        if parent <= 1:
            return own_session and pid != os.getsid(0)
        pid = parent
    return True
