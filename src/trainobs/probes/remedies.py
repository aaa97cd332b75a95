"""What to do about a program that libbpf or the kernel refuses, and what is missing where it is."""

from __future__ import annotations

import errno

_RIGHTS = (errno.EACCES, errno.EPERM)

_KERNEL = (
    "name what this kernel has: available_events and available_filter_functions in "
    "/sys/kernel/tracing list it, once that is there (`mount -t tracefs none /sys/kernel/tracing`)"
)
_CODE = "give a file that is there, and a function in it: `nm FILE` or `nm -D FILE` lists them"
_MARK = "give a file that is there, and a mark in it: `readelf --notes FILE` lists them"

_BY_KIND = {
    **dict.fromkeys(("uprobe", "uretprobe"), _CODE),
    **dict.fromkeys(("kprobe", "kretprobe", "tracepoint", "tp"), _KERNEL),
    "usdt": _MARK,
}
"""Where there is no such place, by the begin of its section."""

_BY_WORDS = {
    "kernel BTF type ID": _KERNEL,
    "check ELF section name": 'write a SEC() that libbpf knows, such as SEC("tp_btf/sys_enter")',
    "LINUX_HAS_BPF_COOKIE": "install libbpf 1.0 or newer, which programs at marks (USDT) need",
    "usdt.bpf.h": "include <bpf/usdt.bpf.h> after trainobs_probe.h",
    "BTF info": "compile it with -g, which adds types (BTF); or give the source",
}
"""By what libbpf says of an object that it does not take."""


def remedy(place: str, found: str, error: int) -> str:
    """What to do.

    Args:
        place: what a program was to be attached to, as a section has it; "" for an object.
        found: what libbpf says.
        error: its error number.
    """
    kind = place.partition("/")[0]
    if "uprobe" in found and error in _RIGHTS:
        return "run as root, or give the process CAP_SYS_ADMIN, which uprobes take"
    if error == errno.ENOENT and kind in _BY_KIND:
        return _BY_KIND[kind]
    known = (do for words, do in _BY_WORDS.items() if words in found)
    return next(known, "change the program; what `trainobs doctor` says holds for it, too")


def missing_mark(place: str, error: int) -> str:
    """What is missing where libbpf has no word for it; "" where something else is."""
    kind, _, where = place.partition("/")
    if kind != "usdt" or error != errno.ENOENT:
        return ""
    path, provider, name = where.rsplit(":", 2)
    return f"{path} has no mark {provider}:{name}"
