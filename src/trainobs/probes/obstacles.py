"""What keeps a process from using eBPF although the kernel has it, in words."""

from __future__ import annotations

import os
from pathlib import Path

from trainobs.core.errors import ProbeCause, ProbeError

CAPABILITIES = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN", 38: "CAP_PERFMON", 39: "CAP_BPF"}
"""Capabilities that matter to BPF, by their number (linux/capability.h)."""

STATUS = Path("/proc/self/status")
UID_MAP = Path("/proc/self/uid_map")
LOCKDOWN = Path("/sys/kernel/security/lockdown")
JIT = Path("/proc/sys/net/core/bpf_jit_enable")

_NO_CAPABILITIES = "the process lacks CAP_BPF or CAP_PERFMON"
_USER_NAMESPACE = "the process is in a user namespace, whose capabilities do not count for bpf(2)"
_LOCKDOWN = "the kernel is locked down (confidentiality): BPF programs may not read its memory"
_SERVICE = "have root start `trainobs-probed --group GROUP`"
_CLIMB = (
    f"run as root, {_SERVICE}, or give the process CAP_BPF and CAP_PERFMON "
    "(`setpriv --inh-caps=+bpf,+perfmon --ambient-caps=+bpf,+perfmon`)"
)
_CLIMB_NO_MORE = (
    "start the container with CAP_BPF and CAP_PERFMON (`--cap-add BPF --cap-add PERFMON`, and as "
    f"root), or {_SERVICE} on the host"
)
_ALL_UIDS = ["0", "0", str(2**32 - 1)]
_SECCOMP_FILTER = "2"  # SECCOMP_MODE_FILTER


def capabilities(kind: str = "CapEff") -> list[str]:
    """Effective (or other) capabilities of this process, of those that matter to BPF."""
    mask = int(_status(kind, "0"), 16)
    return [name for bit, name in CAPABILITIES.items() if mask >> bit & 1]


def may_load() -> bool:
    """Whether this process has the capabilities, if they are those of the machine."""
    held = set(capabilities())
    return "CAP_SYS_ADMIN" in held or held >= {"CAP_BPF", "CAP_PERFMON"}


def in_user_namespace() -> bool:
    """Whether capabilities of this process do not count for bpf(2): rootless containers."""
    return _text(UID_MAP).split() not in (_ALL_UIDS, [])


def has_seccomp_filter() -> bool:
    """Whether system calls of this process are filtered, as container engines do."""
    return _status("Seccomp", "") == _SECCOMP_FILTER


def lockdown() -> str | None:
    """Which lockdown is in force: "none", "integrity" or "confidentiality"; None: unknown."""
    words = [word for word in _text(LOCKDOWN).split() if word.startswith("[")]
    return words[0].strip("[]") if words else None


def jit() -> bool | None:
    """Whether BPF programs are compiled; None where only root may know."""
    text = _text(JIT).strip()
    return text != "0" if text else None


def obstacles() -> list[str]:
    """All that stands in the way of this process, or of some programs, as far as it can be seen."""
    found = []
    if in_user_namespace():
        found.append(_USER_NAMESPACE)
    elif not may_load():
        found.append(_NO_CAPABILITIES)
    if has_seccomp_filter():
        found.append("a seccomp filter checks system calls, and may refuse bpf(2)")
    if lockdown() == "confidentiality":
        found.append(_LOCKDOWN)
    if jit() is False:
        found.append(f"BPF programs are not compiled ({JIT} is 0): some are refused, none is fast")
    return found


def why_not_permitted(error: int) -> ProbeError:
    """The error of a process that may not load programs, with the likely reason."""
    if in_user_namespace():
        why = _USER_NAMESPACE
        do = "run outside of it (rootless containers have one), or use trainobs-probed of the host"
    elif not may_load():
        why = _NO_CAPABILITIES
        roots = capabilities("CapBnd")  # a container engine leaves a few to it
        may_climb = os.geteuid() and {"CAP_BPF", "CAP_PERFMON"} <= set(roots)
        do = _CLIMB if may_climb else _CLIMB_NO_MORE
    elif has_seccomp_filter():
        why = "the process has the capabilities; a seccomp filter refuses bpf(2)"
        do = "allow bpf(2) in the container's seccomp profile, or use trainobs-probed of the host"
    elif lockdown() == "confidentiality":
        why = _LOCKDOWN
        do = "boot without lockdown=confidentiality; until then the run is observed through /proc"
    else:
        why = "the process has the capabilities; something else refuses bpf(2)"
        do = "look at what the kernel logs (dmesg), or use trainobs-probed of the host"
    return ProbeError(
        ProbeCause.NO_PERMISSION, "cannot load the probes", f"{os.strerror(error)}: {why}", do
    )


def _status(field: str, otherwise: str) -> str:
    lines = _text(STATUS).splitlines()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith(f"{field}:"))
    return next(found, otherwise)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
