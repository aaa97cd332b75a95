"""A machine with GPUs behind a stand-in for NVML: `nvml.c`, compiled, and a table of numbers.

The numbers are chosen, not recorded: there was no GPU when this was written. They lie in the
ranges that the data sheet of an H100 SXM gives (700 W, 1980 MHz, 80 GB, PCIe 5 x16), each different
from all others, so that none can be taken for another. `on_device.py` records real ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from tests.session.jobs import without_last_lines

SOURCE = Path(__file__).with_name("nvml.c")
JOB = Path(__file__).with_name("job.py")

BOARD = {
    "gpm": 1,
    "gpm:2": 87.5,  # SM activity, %
    "gpm:3": 43.75,  # occupancy, %
    "gpm:5": 31.25,  # tensor, %
    "gpm:10": 62.5,  # DRAM, %
    "gpm:20": 1000,  # PCIe TX, MiB/s
    "gpm:21": 3000,  # PCIe RX, MiB/s
    "gpm:60": 5000,  # NVLink RX, MiB/s
    "gpm:61": 7000,  # NVLink TX, MiB/s
    "sm_clock": 1755,  # MHz
    "memory_clock": 2619,  # MHz
    "temperature": 61,  # degrees Celsius
    "memory_used": 34_359_738_368,  # bytes
    "energy": 612_000,  # mJ a second
    "sensor": 598_000,  # mW
    "power_limited": 250_000_000,  # ns a second
    "heat_limited": 125_000_000,  # ns a second
    "pcie_sent": 2_000_000_000,  # bytes a second
    "pcie_received": 4_000_000_000,  # bytes a second
    "reasons": 4,  # SwPowerCap
}

NOT_SUPPORTED, NO_PERMISSION, GPU_IS_LOST = 3, 4, 15


def uuid(device: int) -> str:
    """UUID of a board; instance i of board b is 8 + 4 b + i, with MIG for GPU."""
    return f"{'GPU' if device < 8 else 'MIG'}-00000000-0000-0000-0000-{device:012d}"


class Call(NamedTuple):
    """A call that reached the library."""

    at_ns: int
    tid: int
    name: str
    device: int
    result: int


class Machine:
    """What the library says, and which calls it got."""

    def __init__(self, library: Path, folder: Path, boards: int = 1) -> None:
        self.folder = folder
        self._library = library
        self._table = {-1: {"boards": boards}, **{i: dict(BOARD) for i in range(boards)}}
        self._write()

    def set(self, device: int, **values: float | None) -> None:
        """Change the machine, from the next call on; None removes a number."""
        self._table.setdefault(device, {}).update(
            {key.replace("__", ":"): value for key, value in values.items()}
        )
        self._write()

    def calls(self, name: str = "") -> list[Call]:
        """Calls so far, of one name or of all."""
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        fields = (line.split() for line in lines)
        made = [Call(int(a), int(b), c, int(d), int(e)) for a, b, c, d, e in fields]
        return [call for call in made if name in ("", call.name)]

    def start(self, job: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
        """Start a function of `job.py` in a process of its own, that finds the library."""
        variables = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "LD_LIBRARY_PATH": str(self._library.parent),
            "NVML_MACHINE": str(self.folder / "machine"),
            "NVML_CALLS": str(self.folder / "calls"),
            "SOCKET": f"trainobs-test-{self.folder.name}-{os.getpid()}",
            **environment,
        }
        return subprocess.Popen(
            [sys.executable, str(JOB), job, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=variables,
        )

    def run(self, job: str, *arguments: object, **environment: str) -> Any:
        """What a function of `job.py` returns; it must print nothing to stderr."""
        result, said = self.hear(job, *arguments, **environment)
        assert without_last_lines(said) == ""
        return result

    def hear(self, job: str, *arguments: object, **environment: str) -> tuple[Any, str]:
        """What a function of `job.py` returns, and what went to stderr."""
        process = self.start(job, *arguments, **environment)
        out, said = process.communicate()
        assert process.returncode == 0, said
        return json.loads(out.splitlines()[-1]), said

    def _write(self) -> None:
        lines = [
            f"{device} {key} {value}\n"
            for device, values in self._table.items()
            for key, value in values.items()
            if value is not None
        ]
        new = self.folder / "machine.new"
        new.write_text("".join(lines))
        new.rename(self.folder / "machine")


def compile_library(folder: Path) -> Path:
    """The stand-in, under the name by which pynvml asks for NVML."""
    path = folder / "libnvidia-ml.so.1"
    command = ["cc", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", "-o", str(path)]
    subprocess.run([*command, str(SOURCE), "-lm"], check=True)
    return path
