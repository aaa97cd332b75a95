"""Compiling a program of the user's against `trainobs_probe.h`."""

from __future__ import annotations

import platform
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.probes.compiler import FLAGS, TARGET_ARCH, compiler_command, without_compiler
from trainobs.probes.libbpf import open_library, version_of
from trainobs.probes.usdt import header_folders

OBJECTS = Path(__file__).parent / "objects"
"""Where the compiled programs are, and what a program of the user's includes."""

_TIMEOUT_S = 120.0  # of a machine with much else to do
_CPU_S = 10  # the run begins after it; a program of 40 lines takes 0.03 s
_TOLD_LINES = 3


def compile_source(
    source: Path, target: Path, choice: str = "auto", defines: Sequence[str] = ()
) -> Path:
    """Compile `source` to an object at `target`, with some macros, for this libbpf; its path.

    Raises:
        ProbeError: NO_COMPILER; NO_LIBBPF; REFUSED with the compiler's words.
    """
    failed = f"cannot compile {source.name}"
    compiler = compiler_command(choice)
    if compiler is None:
        raise ProbeError(ProbeCause.NO_COMPILER, failed, *without_compiler(choice))
    arch = TARGET_ARCH.get(platform.machine(), platform.machine())
    folders = (*header_folders(version_of(open_library())), "")
    command = [*compiler, *FLAGS, f"-D__TARGET_ARCH_{arch}"]
    command += [f"-I{OBJECTS / 'include' / folder}" for folder in folders]
    command += [f"-D{name}" for name in defines]
    command += ["-c", str(source), "-o", str(target)]
    command = ["sh", "-c", 'ulimit -t "$0"; exec "$@"', str(_CPU_S), *command]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(
            ProbeCause.NO_COMPILER, failed, str(error), "see that the compiler runs"
        ) from error
    if done.returncode < 0:
        found = f"it ended by {signal.Signals(-done.returncode).name}, as after {_CPU_S} s of CPU"
        do = "make it smaller, or compile it yourself and give the object"
        raise ProbeError(ProbeCause.REFUSED, failed, f"the compiler has not finished: {found}", do)
    if done.returncode:
        raise ProbeError(ProbeCause.REFUSED, failed, _telling(done.stderr), f"change {source}")
    return target


def _telling(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line] or lines[-1:]
    return " | ".join(errors[:_TOLD_LINES]) or "no word from the compiler"
