"""Programs of a user's for tests: C that counts what tests do, and the code that it is put on."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

from tests.kernel.observed import ObservedKernel
from trainobs.probes.own_probe import Probe
from trainobs.probes.own_programs import OwnPrograms

GETSID = 124 if os.uname().machine == "x86_64" else 156  # torch never calls it

# By hand, since few machines have <sys/sdt.h>: what DTRACE_PROBE1(tobs, mark, n) is there.
MARKED = r"""
__attribute__((noinline)) long tobs_called(long n) { __asm__ volatile("" : "+r"(n)); return n; }
void tobs_marked(long n)
{
    __asm__ volatile("990: nop\n"
                     ".pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n"
                     ".4byte 992f-991f, 994f-993f, 3\n"
                     "991: .asciz \"stapsdt\"\n992: .balign 4\n"
                     "993: .8byte 990b\n.8byte _.stapsdt.base\n.8byte 0\n"
                     ".asciz \"tobs\"\n.asciz \"mark\"\n.asciz \"-8@%0\"\n"
                     "994: .balign 4\n.popsection\n"
                     ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"
                     ".weak _.stapsdt.base\n.hidden _.stapsdt.base\n"
                     "_.stapsdt.base: .space 1\n.size _.stapsdt.base, 1\n.popsection\n"
                     : : "r"(n));
}
"""

SOURCE = f"""
#include "trainobs_probe.h"
#include <bpf/usdt.bpf.h>
#define CALLS 0
TRAINOBS_COUNTER(CALLS, "getsid calls", "calls");
TRAINOBS_COUNTER(1, "called", "calls");
TRAINOBS_VALUE(1, "called with", "bytes");
TRAINOBS_COUNTER(31, "marked", "marks");
TRAINOBS_VALUE(31, "marked with", "ns");

SEC("tp_btf/sys_enter")
int BPF_PROG(tobs_own_enter, struct pt_regs *regs, long number)
{{
    if (number == {GETSID})
        trainobs_add(CALLS, 1, 0);
    return 0;
}}

SEC("uprobe")
int BPF_KPROBE(tobs_own_call, long n)
{{
    trainobs_add(1, 1, n);
    return 0;
}}

SEC("usdt")
int BPF_USDT(tobs_own_mark, long n)
{{
    trainobs_add(31, 1, n);
    return 0;
}}
"""
"""Three programs: of a tracepoint, of a function and of a mark."""

COUNTERS = ("getsid_calls", "called", "called_with", "marked", "marked_with")
"""What they count."""


class Marked:
    """A library with a function and a mark, and the places to attach to."""

    def __init__(self, place: Path) -> None:
        self.path = place / "libmarked.so"
        if not self.path.exists():
            # Of Python's packages, so that it works in the guests of `tests/guests`, too.
            command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1"]
            command += ["-x", "c", "-", "-o", str(self.path)]
            subprocess.run(command, input=MARKED.encode(), check=True)
        library = ctypes.CDLL(str(self.path))
        self._called, self._marked = library.tobs_called, library.tobs_marked
        self._getsid = ctypes.CDLL(None).getsid

    @property
    def attach(self) -> dict[str, str]:
        return {
            "tobs_own_call": f"uprobe/{self.path}:tobs_called",
            "tobs_own_mark": f"usdt/{self.path}:tobs:mark",
        }

    def do(self, calls: int, called: int, marked: int) -> None:
        """Do each so often; the function is called with 3, and the mark passed with 5."""
        for _ in range(calls):
            self._getsid(0)
        for _ in range(called):
            self._called(3)
        for _ in range(marked):
            self._marked(5)


def calls_of(item: int, more: int) -> tuple[int, int, int]:
    """What a data set does for an item, as `Marked.do` has it."""
    return item % 4, item % 3 + 1 + more, item % 2


def source(place: Path, text: str = SOURCE, name: str = "own.c") -> Path:
    """A file with a program."""
    path = place / name
    path.write_text(text)
    return path


def do(place: Path, calls: int, called: int, marked: int) -> None:
    """What an outsider is told to do."""
    Marked(place).do(calls, called, marked)


class Own:
    """This process, with programs beside ours."""

    def __init__(self, *probes: Probe) -> None:
        self._observed = ObservedKernel((), required=False, own=probes)
        self.programs: OwnPrograms = self._observed.kernel.own
        self.during = self._observed.during_own
        self.stop = self._observed.stop
        self.maps = self._observed.kernel._probes.maps
