"""The process that has bcc's programs loaded.

A process of its own, so that the compiler inside bcc (LLVM, some 140 MB) is not in the training,
and whatever becomes of it the training goes on. It gets an `Order` as a line on its standard input
and answers with a line of JSON: {"programs": {name: number}} once they run, {"found": ...} if they
do not. Then it lets itself go of by the probes of its parent at each further line, and ends with
its parent.
"""

from __future__ import annotations

import ctypes as C
import importlib
import importlib.util
import json
import mmap
import os
import platform
import re
import select
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trainobs.core.pidfd import pidfd_open
from trainobs.probes.detach import detach
from trainobs.probes.libbpf import KERNEL_TYPES, open_library

_SYSTEM = Path("/usr/lib/python3/dist-packages/bcc")
"""Where distributions put it, out of sight of virtual environments."""

_NEW_MOUNTS, _PRIVATE = 0x20000, 1 << 18 | 1 << 14  # CLONE_NEWNS; MS_PRIVATE | MS_REC

_EMPTY = (
    *(f"linux/{name}.h" for name in ("bpf", "blkdev", "compiler", "fs", "if_ether", "ip", "log2")),
    *(f"linux/{name}.h" for name in ("perf_event", "ptrace", "sched", "tcp", "types", "version")),
    *(f"uapi/linux/{name}.h" for name in ("bpf", "bpf_common", "if_packet", "perf_event")),
    "uapi/linux/ptrace.h",
    "asm/page.h",
)
"""What bcc 0.26 includes; the types of the running kernel stand for all of it."""

_KCONFIG = """
#ifndef TRAINOBS_KCONFIG
#define TRAINOBS_KCONFIG
#define BPF_NO_PRESERVE_ACCESS_INDEX 1
#define __KERNEL__ 1
#define CONFIG_64BIT 1
#define CONFIG_BPF_SYSCALL 1
#define CONFIG_CC_STACKPROTECTOR 1
#define CONFIG_{arch} 1
#define PAGE_SIZE {page}
#define _UAPI__LINUX_BPF_H__ 1
#define __LINUX_BPF_H__ 1
#define LINUX_VERSION_CODE {version}
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#include "../vmlinux.h"
#endif
"""


def main() -> int:
    """Run as a command."""
    with open(0, "rb", buffering=0, closefd=False) as told:
        order = json.loads(told.readline())
    try:
        programs = _run(order)
    except Exception as error:
        print(json.dumps({"found": f"{type(error).__name__}: {error}"}), flush=True)
        return 1
    print(json.dumps({"programs": _numbers(programs)}), flush=True)
    _stay()
    del programs
    return 0


def _numbers(programs: Any) -> dict[str, int]:
    """The kernel's number of each program."""
    found = {}
    for name, function in programs.funcs.items():
        told = Path(f"/proc/self/fdinfo/{function.fd}").read_text()
        found[name.decode()] = int(re.findall(r"^prog_id:\s+(\d+)$", told, re.MULTILINE)[0])
    return found


def _run(order: Mapping[str, Any]) -> object:
    """Load and attach; what keeps the programs loaded."""
    place = Path(order["place"])
    _mount(place)
    _pin(place, order["maps"])
    if not Path(f"/lib/modules/{platform.release()}/build").exists():
        os.environ["BCC_KERNEL_SOURCE"] = str(_headers(place.parent / "kernel"))
    bcc = _import_bcc()
    marks: dict[str, Any] = {}
    places = {program: where.partition("/") for program, where in order["attach"].items()}
    for program, (kind, _, target) in places.items():
        if kind == "usdt":
            path, _, name = target.rsplit(":", 2)
            mark = marks.setdefault(path, bcc.USDT(path=path))
            mark.enable_probe(probe=name, fn_name=program)
    flags = [f"-I{order['include']}", f'-DTRAINOBS_PINS="{place}"']
    loaded = bcc.BPF(text=order["text"], cflags=flags, usdt_contexts=list(marks.values()))
    for program, (kind, _, target) in places.items():
        path, _, symbol = target.rpartition(":")
        if kind == "uprobe":
            loaded.attach_uprobe(name=path, sym=symbol, fn_name=program)
        elif kind == "uretprobe":
            loaded.attach_uretprobe(name=path, sym=symbol, fn_name=program)
    return loaded


def pass_scripts_by() -> None:
    """Look for bcc nowhere that has a `bcc.py`: the user's script, which would run here again."""
    sys.path[:] = [place for place in sys.path if not Path(place, "bcc.py").is_file()]


def _import_bcc() -> Any:
    pass_scripts_by()
    if importlib.util.find_spec("bcc") is None and _SYSTEM.exists():
        file, inside = _SYSTEM / "__init__.py", [str(_SYSTEM)]
        spec = importlib.util.spec_from_file_location(
            "bcc", file, submodule_search_locations=inside
        )
        assert spec
        assert spec.loader
        sys.modules["bcc"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return importlib.import_module("bcc")


def _mount(place: Path) -> None:
    """A file system for pinned maps that this process alone sees."""
    libc = C.CDLL(None, use_errno=True)
    calls: list[tuple[Any, ...]] = [
        (libc.unshare, _NEW_MOUNTS),
        (libc.mount, None, b"/", None, C.c_ulong(_PRIVATE), None),
        (libc.mount, b"bpf", os.fsencode(place), b"bpf", C.c_ulong(0), None),
    ]
    for call, *arguments in calls:
        if call(*arguments):
            raise OSError(C.get_errno(), f"cannot mount bpffs: {os.strerror(C.get_errno())}")


def _pin(place: Path, maps: Mapping[str, int]) -> None:
    """The maps, by the names that trainobs_bcc.c has for them; the clock is in a map of maps."""
    library = open_library()
    key, inner = C.c_uint32(0), C.c_uint32()
    clocks = maps["session_clocks"]
    found = library.bpf_map_lookup_elem(clocks, C.addressof(key), C.addressof(inner))
    clock = found if found else library.bpf_map_get_fd_by_id(inner.value)
    for name, fd in {"clock": clock, "rows": maps["own_rows"], "tasks": maps["tasks"]}.items():
        error = fd if fd < 0 else library.bpf_obj_pin(fd, os.fsencode(place / name))
        if error:
            raise OSError(-error, f"cannot pin the map of {name}: {os.strerror(-error)}")


def _headers(place: Path) -> Path:
    """What stands for the headers of the kernel where none are installed: its own types."""
    include = place / "include"
    arch = {"x86_64": "x86", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    (place / "arch" / arch / "include").mkdir(parents=True)
    for name in _EMPTY:
        (include / name).parent.mkdir(parents=True, exist_ok=True)
        (include / name).touch()
    version = [*map(int, re.findall(r"\d+", platform.release())[:3]), 0, 0]
    code = (version[0] << 16) + (version[1] << 8) + min(version[2], 255)
    config = "X86_64" if arch == "x86" else "ARM64"
    text = _KCONFIG.format(arch=config, page=mmap.PAGESIZE, version=code)
    (include / "linux" / "kconfig.h").write_text(text)
    _write_types(include / "vmlinux.h")
    return place


def _write_types(path: Path) -> None:
    """The types of the running kernel as C; the C library writes what libbpf tells."""
    library, libc = open_library(), C.CDLL(None)
    libc.fopen.restype, libc.fopen.argtypes = C.c_void_p, [C.c_char_p, C.c_char_p]
    libc.fclose.argtypes = [C.c_void_p]
    stream = libc.fopen(os.fsencode(path), b"w")
    types = library.btf__parse(KERNEL_TYPES, None)
    dump = library.btf_dump__new(types, C.cast(libc.vfprintf, C.c_void_p), stream, None)
    number = 1
    while library.btf__type_by_id(types, number):
        library.btf_dump__dump_type(dump, number)
        number += 1
    library.btf_dump__free(dump)
    library.btf__free(types)
    libc.fclose(stream)


def _stay() -> None:
    """Until the parent closes the pipe or ends; let go of by its probes when it says so."""
    parent = pidfd_open(os.getppid())
    poll = select.poll()
    poll.register(parent, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if parent in ready or not os.read(0, 1):
            return
        detach()
