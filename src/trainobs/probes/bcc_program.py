"""A program of bcc beside ours, in a process of its own: `bcc_child`."""

from __future__ import annotations

import ctypes as C
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.core.interpreter import fresh_python
from trainobs.probes.bcc_probe import BccProbe
from trainobs.probes.compiling import OBJECTS
from trainobs.probes.libbpf import MapOptions, open_library

_ARRAY, _MMAPABLE = 2, 1 << 10  # BPF_MAP_TYPE_ARRAY, BPF_F_MMAPABLE
_BEGIN_S, _END_S = 120.0, 10.0
_INSTALL = "install it: apt-get install python3-bpfcc (Debian, Ubuntu), dnf install python3-bcc"


class BccProgram:
    """Loads and attaches on construction.

    Args:
        probe: the program.
        maps: name -> descriptor of the live maps that it is given.
        row_bytes: of the map that it counts in.

    Raises:
        ProbeError: REFUSED, with the last words of bcc.
        OSError: no process or no map can be made.
    """

    def __init__(self, probe: BccProbe, maps: Mapping[str, int], row_bytes: int) -> None:
        self._maps = dict(maps)
        self._rows = _new_map(row_bytes)
        self._programs: dict[str, int] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._place = tempfile.TemporaryDirectory(prefix="trainobs-")
        try:
            self._begin(probe)
        except BaseException:
            self.close()
            raise

    def map_fd(self, name: str) -> int:
        """Descriptor of the map that it counts in."""
        return self._rows

    def program_fds(self) -> dict[str, int]:
        """Program -> a descriptor of it in this process."""
        return self._programs

    def adopted(self) -> None:
        """The probes follow this process and its children from now on: the child is none."""
        if self._child and self._child.stdin:
            with suppress(OSError):  # it has been killed: its programs count nothing any more
                os.write(self._child.stdin.fileno(), b"\n")

    def close(self) -> None:
        """End the process, and so the programs. May be called twice."""
        child, self._child = self._child, None
        if child:
            for stream in (child.stdin, child.stdout):
                if stream:
                    stream.close()
            try:
                child.wait(_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        self._place.cleanup()
        self._close()

    def abandon(self) -> None:
        """In a forked child: the process is the parent's."""
        child, self._child = self._child, None
        if child:
            child.returncode = 0  # or it would be waited for
            for stream in (child.stdin, child.stdout):
                if stream:
                    stream.close()
        self._close()

    def _close(self) -> None:
        rows, self._rows = self._rows, -1
        programs, self._programs = self._programs, {}
        for descriptor in (*programs.values(), rows):
            if descriptor >= 0:
                os.close(descriptor)

    def _begin(self, probe: BccProbe) -> None:
        place = Path(self._place.name, "pins")
        place.mkdir()
        maps = {**self._maps, "own_rows": self._rows}
        include = OBJECTS / "include"
        text = (include / "trainobs_bcc.c").read_text() + f'#line 1 "{probe.name}"\n{probe.text}'
        order = {"text": text, "attach": dict(probe.attach), "maps": maps}
        order |= {"place": str(place), "include": str(include)}
        with tempfile.TemporaryFile() as log:
            self._child = subprocess.Popen(
                fresh_python("from trainobs.probes.bcc_child import main; sys.exit(main())"),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=list(maps.values()),
            )
            answer = self._ask(self._child, json.dumps(order).encode() + b"\n")
            if "programs" not in answer:
                log.seek(0)
                said = log.read().decode(errors="replace")
                raise _refused(probe, answer["found"], said)
        by_number = open_library().bpf_prog_get_fd_by_id
        for name, number in answer["programs"].items():
            if (descriptor := by_number(number)) >= 0:  # else the child has ended
                self._programs[name] = descriptor

    def _ask(self, child: subprocess.Popen[bytes], order: bytes) -> dict[str, Any]:
        """The answer of `bcc_child`."""
        assert child.stdin
        assert child.stdout
        child.stdin.write(order)
        child.stdin.flush()
        if not select.select([child.stdout], [], [], _BEGIN_S)[0]:
            return {"found": f"bcc has not finished after {_BEGIN_S:.0f} s"}
        line = child.stdout.readline()
        return dict(json.loads(line)) if line else {"found": "its process has ended"}


def _refused(probe: BccProbe, found: str, said: str) -> ProbeError:
    failed = f"cannot use {probe.label}"
    if found.startswith("ModuleNotFoundError: No module named 'bcc'"):
        return ProbeError(ProbeCause.NO_COMPILER, failed, "no package bcc for Python", _INSTALL)
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if "error:" in line or "invalid" in line] or lines[-1:]
    told = " | ".join([*errors[:3], found])
    return ProbeError(ProbeCause.REFUSED, failed, told, "change the text of the probe")


def _new_map(value_bytes: int) -> int:
    options = MapOptions(sz=C.sizeof(MapOptions), map_flags=_MMAPABLE)
    found = open_library().bpf_map_create(
        _ARRAY, b"own_rows", 4, value_bytes, 1, C.pointer(options)
    )
    if found < 0:
        raise OSError(-found, f"cannot make a map: {os.strerror(-found)}")
    return int(found)
