"""What this machine can do, found by trial: `trainobs doctor`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Container
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

from trainobs.core.catalogue import lost_without
from trainobs.core.compiled import flaw_of
from trainobs.core.coverage import CALLS, Coverage
from trainobs.core.errors import ProbeError
from trainobs.core.switch import SWITCH, switched_off
from trainobs.probes.choice import open_backend
from trainobs.probes.kernel_names import KERNEL_BTF
from trainobs.probes.libbpf import open_library
from trainobs.probes.obstacles import capabilities, obstacles
from trainobs.probes.programs import PROBES, TREE, Program
from trainobs.probes.protocol import VARIABLE, ProtocolError, socket_path
from trainobs.probes.service_backend import enter, who_may
from trainobs.probes.shared import kernel_names, object_files

_NOT_TRIED = "not tried"
_UNPRIVILEGED = Path("/proc/sys/kernel/unprivileged_bpf_disabled")
_PROCFS = (Path("/proc/self/io"), Path("/proc/self/schedstat"), Path("/proc/pressure/io"))


class WhyNot(TypedDict):
    """What keeps a run from eBPF: name of a `ProbeCause`, what was found, what to do."""

    cause: str
    found: str
    do: str


class ServiceFindings(TypedDict, total=False):
    """Whether `trainobs-probed` answers; a run asks it first.

    Attributes:
        socket: where it would be; None: it is not looked for.
        answers: whether it does.
        group: who may ask; not where there is no socket.
        why, do: why it does not answer, and what to do if that is known.
        version, sessions, max_sessions: of one that answers.
    """

    socket: str | None
    answers: bool
    group: str
    why: str
    do: str
    version: int | None
    sessions: int | None
    max_sessions: int | None


class MachineFacts(TypedDict):
    """What a run finds here; `object`: whether the probes are built; `procfs`: file -> readable."""

    kernel: str
    machine: str
    python: str
    btf: bool
    libbpf: str | None
    object: bool
    capabilities: list[str]
    unprivileged_bpf_disabled: str | None
    procfs: dict[str, bool]


class ProgramFindings(TypedDict):
    """One program.

    Attributes:
        hook: its attach point. The key is older than that word; who reads the JSON knows it.
        state: "on", or why not.
        gives: what a user gets from it.
        lost: metrics that are unknown without it.
    """

    hook: str
    state: str
    gives: str
    lost: list[str]


class Findings(TypedDict):
    """What `examine` found; all but `switched_off` as if that were False.

    Attributes:
        switched_off: whether the environment has trainobs do nothing.
        level: that a run would be on.
        why: what keeps it from eBPF; None: nothing does.
        complete: whether every program works.
        service: whether one answers, and whom.
        machine: facts about it.
        obstacles: what stands in the way, in words.
        probes: probe -> program -> what became of it.
    """

    switched_off: bool
    level: str
    why: WhyNot | None
    complete: bool
    service: ServiceFindings
    machine: MachineFacts
    obstacles: list[str]
    probes: dict[str, dict[str, ProgramFindings]]


def examine() -> Findings:
    """Try everything once: load, attach, register, take out again."""
    below = "procfs" if _readable(_PROCFS[0]) else "timing"
    level = below
    why: WhyNot | None = None
    status: dict[str, str] = {}
    points: dict[str, str] = {}
    try:
        kernel = open_backend()
        try:
            kernel.adopt()
            status, points = kernel.status, kernel.attach_points()
        finally:
            kernel.stop()
        level = "ebpf" if Coverage(status).knows(CALLS) else below
    except ProbeError as error:
        why = {"cause": error.cause.name, "found": error.found, "do": error.do}
    probes = {
        name: {program.name: _describe(program, status, points) for program in programs}
        for name, programs in {"process_tree": TREE, **PROBES}.items()
    }
    states = [about["state"] for programs in probes.values() for about in programs.values()]
    return {
        "switched_off": switched_off(),
        "level": level,
        "why": why,
        "complete": set(states) == {"on"},
        "service": _service(),
        "machine": _machine(),
        "obstacles": [] if set(states) == {"on"} else obstacles(),
        "probes": probes,
    }


def _service() -> ServiceFindings:
    path = socket_path()
    found: ServiceFindings = {"socket": None if path is None else str(path), "answers": False}
    if path is None or not os.path.exists(path):
        return {**found, "why": "there is none"}
    found["group"] = who_may(path)
    try:
        connection, answer, _ = enter(path, "hello")
        connection.close()
    except (OSError, EOFError, ProtocolError) as error:
        return {**found, "why": str(error)}
    except ProbeError as error:
        return {**found, "why": error.found, "do": error.do}
    return {
        **found,
        "answers": True,
        "version": answer.get("version"),
        "sessions": answer.get("sessions"),
        "max_sessions": answer.get("max_sessions"),
    }


def _describe(program: Program, status: dict[str, str], points: dict[str, str]) -> ProgramFindings:
    state = status.get(program.name, _NOT_TRIED)
    return {
        "hook": points.get(program.name, program.attach_point),
        "state": state,
        "gives": program.gives,
        "lost": [] if state == "on" else lost_without(program.name),
    }


def _machine() -> MachineFacts:
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "btf": KERNEL_BTF.exists(),
        "libbpf": _libbpf_version(),
        "object": _has_object(),
        "capabilities": capabilities(),
        "unprivileged_bpf_disabled": _text(_UNPRIVILEGED),
        "procfs": {str(path): _readable(path) for path in _PROCFS},
    }


def _libbpf_version() -> str | None:
    try:
        version: bytes = open_library().libbpf_version_string()
    except ProbeError:
        return None
    return version.decode()


def _has_object() -> bool:
    names: Container[str] = ()
    with suppress(ProbeError):  # of the machine, not of the object
        names = kernel_names()
    return not any(flaw_of(path, "bpf") for path in object_files(names))


def _text(path: Path) -> str | None:
    return path.read_text().strip() if _readable(path) else None


def _readable(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


_LEVELS = {
    "ebpf": "eBPF: kernel I/O, page cache, block devices, scheduler and network, step by step",
    "procfs": "/proc: I/O totals, run queue and pressure, step by step; no page cache, no classes",
    "timing": "timing only: steps and phases",
}


def render(found: Findings) -> str:
    """The same as a page for a terminal."""
    machine = found["machine"]
    lines = [f"A training run on this machine is observed by {_LEVELS[found['level']]}.", ""]
    if found["switched_off"]:
        off = f"Nothing is observed: {SWITCH}={os.environ.get(SWITCH)} is in the environment."
        lines = [off, "Without that:", *lines]
    if found["why"]:
        lines += [
            f"Not eBPF, because: {found['why']['found']}",
            f"To get it: {found['why']['do']}",
            "",
        ]
    lines += [f"In the way: {obstacle}" for obstacle in found["obstacles"]]
    lines += [""] if found["obstacles"] else []
    facts = {
        "service": _service_line(found["service"]),
        "kernel": f"{machine['kernel']} ({machine['machine']})",
        "kernel BTF": "yes" if machine["btf"] else "no: /sys/kernel/btf/vmlinux is missing",
        "libbpf": machine["libbpf"] or "none, or older than 0.5",
        "probe object": "yes"
        if machine["object"]
        else "no: it was not built, or is stale (make bpf)",
        "capabilities": ", ".join(machine["capabilities"]) or "none that BPF needs",
        "python": f"{machine['python']} ({sys.executable})",
    }
    lines += [f"  {name:<14}{value}" for name, value in facts.items()] + [""]
    for probe, programs in found["probes"].items():
        lines.append(probe)
        for name, about in programs.items():
            lines += _program_lines(name, about)
    return "\n".join(lines)


def _service_line(service: ServiceFindings) -> str:
    if service["socket"] is None:
        return f"not looked for: {VARIABLE} is empty"
    if service["answers"]:
        taken = f"{service['sessions']} of {service['max_sessions']} sessions taken"
        return f"answers at {service['socket']}, for the group {service['group']}; {taken}"
    if "group" not in service:
        return f"none at {service['socket']}; root starts one by `trainobs-probed --group GROUP`"
    return f"does not answer, for the group {service['group']}: {service['why']}"


def _program_lines(name: str, about: ProgramFindings) -> list[str]:
    works = about["state"] == "on"
    point = about["hook"] or "(in another program)"
    lines = [f"  {name:<16}{point:<32}{'works' if works else 'off':<6}{about['gives']}"]
    if about["state"] not in ("on", _NOT_TRIED):
        lines.append(f"{'':<8}because: {about['state']}")
    if about["lost"] and about["state"] != _NOT_TRIED:
        lines.append(f"{'':<8}not measured: {', '.join(about['lost'])}")
    return lines
