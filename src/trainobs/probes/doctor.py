"""What this machine can do, found by trial: `trainobs doctor`."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from trainobs.core.errors import ProbeError
from trainobs.probes.choice import open_side
from trainobs.probes.libbpf import open_library
from trainobs.probes.programs import PROBES, TREE, Program
from trainobs.probes.protocol import VARIABLE, ProtocolError, socket_path
from trainobs.probes.served import ask, connect, who_may
from trainobs.probes.shared import KERNEL_BTF, OBJECT, missing_tracepoints

_CAPABILITIES = {12: "CAP_NET_ADMIN", 21: "CAP_SYS_ADMIN", 38: "CAP_PERFMON", 39: "CAP_BPF"}
_STATUS = Path("/proc/self/status")
_UNPRIVILEGED = Path("/proc/sys/kernel/unprivileged_bpf_disabled")
_PROCFS = (Path("/proc/self/io"), Path("/proc/self/schedstat"), Path("/proc/pressure/io"))


def examine() -> dict[str, Any]:
    """Try everything once: load, attach, register, take out again.

    Returns:
        `level` that a run would be on, `why` (what keeps it from eBPF, or None), `service` (whether
        one answers, and whom), `machine` (facts), `probes` (probe -> program -> state, "on" or why
        not).
    """
    level, why, status = _try_probes()
    return {
        "level": level,
        "why": why,
        "service": _service(),
        "machine": _machine(),
        "probes": {
            name: {program.name: _describe(program, status) for program in programs}
            for name, programs in {"process_tree": TREE, **PROBES}.items()
        },
    }


def _try_probes() -> tuple[str, dict[str, str] | None, dict[str, str]]:
    try:
        kernel = open_side()
        try:
            kernel.adopt()
        finally:
            kernel.stop()
    except ProbeError as error:
        level = "procfs" if _readable(_PROCFS[0]) else "timing"
        why = {"cause": error.cause.name, "found": error.found, "do": error.do}
        return level, why, {}
    return "ebpf", None, kernel.status


def _service() -> dict[str, Any]:
    """Whether `trainobs-probed` answers; a run asks it first."""
    path = socket_path()
    found: dict[str, Any] = {"socket": None if path is None else str(path), "answers": False}
    if path is None or not os.path.exists(path):
        return found | {"why": "there is none"}
    found["group"] = who_may(path)
    try:
        connection = connect(path)
        try:
            answer, _ = ask(connection, path, "hello")
        finally:
            connection.close()
    except (OSError, EOFError, ProtocolError) as error:
        return found | {"why": str(error)}
    except ProbeError as error:
        return found | {"why": error.found, "do": error.do}
    counts = {name: answer.get(name) for name in ("version", "sessions", "max_sessions")}
    return found | {"answers": True, **counts}


def _describe(program: Program, status: dict[str, str]) -> dict[str, str]:
    state = status.get(program.name, "not tried")
    if state not in ("on", "not tried") and missing_tracepoints([program.tracepoint]):
        state = "this kernel has no such tracepoint"
    return {"tracepoint": program.tracepoint, "state": state, "gives": program.gives}


def _machine() -> dict[str, Any]:
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "btf": KERNEL_BTF.exists(),
        "libbpf": _libbpf_version(),
        "object": OBJECT.is_file(),
        "capabilities": _capabilities(),
        "unprivileged_bpf_disabled": _text(_UNPRIVILEGED),
        "procfs": {str(path): _readable(path) for path in _PROCFS},
    }


def _libbpf_version() -> str | None:
    try:
        version: bytes = open_library().libbpf_version_string()
    except ProbeError:
        return None
    return version.decode()


def _capabilities() -> list[str]:
    """Effective capabilities, of those that matter to BPF."""
    lines = _STATUS.read_text().splitlines()
    mask = int(next(line for line in lines if line.startswith("CapEff:")).split()[1], 16)
    return [name for bit, name in _CAPABILITIES.items() if mask >> bit & 1]


def _text(path: Path) -> str | None:
    return path.read_text().strip() if _readable(path) else None


def _readable(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


_RUNGS = {
    "ebpf": "eBPF: kernel I/O, page cache, block devices, scheduler and network, step by step",
    "procfs": "/proc: I/O totals, run queue and pressure, step by step; no page cache, no classes",
    "timing": "timing only: steps and phases",
}


def render(found: dict[str, Any]) -> str:
    """The same as a page for a terminal."""
    machine = found["machine"]
    lines = [f"A training run on this machine is observed by {_RUNGS[found['level']]}.", ""]
    if found["why"]:
        lines += [
            f"Not eBPF, because: {found['why']['found']}",
            f"To get it: {found['why']['do']}",
            "",
        ]
    facts = {
        "service": _service_line(found["service"]),
        "kernel": f"{machine['kernel']} ({machine['machine']})",
        "kernel BTF": "yes" if machine["btf"] else "no: /sys/kernel/btf/vmlinux is missing",
        "libbpf": machine["libbpf"] or "no libbpf.so.1",
        "probe object": "yes" if machine["object"] else f"no: {OBJECT.name} was not built",
        "capabilities": ", ".join(machine["capabilities"]) or "none that BPF needs",
        "python": f"{machine['python']} ({sys.executable})",
    }
    lines += [f"  {name:<14}{value}" for name, value in facts.items()] + [""]
    for probe, programs in found["probes"].items():
        lines.append(probe)
        lines += [_program_line(name, about) for name, about in programs.items()]
    return "\n".join(lines)


def _service_line(service: dict[str, Any]) -> str:
    if service["socket"] is None:
        return f"not looked for: {VARIABLE} is empty"
    if service["answers"]:
        taken = f"{service['sessions']} of {service['max_sessions']} sessions taken"
        return f"answers at {service['socket']}, for the group {service['group']}; {taken}"
    if "group" not in service:
        return f"none at {service['socket']}; docs/privileges.md says how to start one"
    return f"does not answer, for the group {service['group']}: {service['why']}"


def _program_line(name: str, about: dict[str, str]) -> str:
    state = about["state"]
    line = f"  {name:<16}{about['tracepoint']:<32}{'works' if state == 'on' else 'off':<6}"
    return line + (about["gives"] if state == "on" else f"{state} (it gives: {about['gives']})")
