"""Whether what the programs are attached to still has the arguments that they read.

A program finds its arguments by their place, and the verifier sees neither one number in the place
of another nor, where memory is read by a helper, one structure in the place of another. Up to
`KNOWN` the arguments of all kernels are known; of a newer one its BTF is asked, which takes 20 ms
of CPU time.
"""

from __future__ import annotations

import ctypes as C
import struct
from collections.abc import Mapping

from trainobs.probes.libbpf import KERNEL_TYPES

KNOWN = (7, 3)
"""The newest Linux whose arguments were looked at."""

NUMBER = "int"
_ANY_POINTER = "*"

_RECLAIMED = (NUMBER,)
_MESSAGE = ("socket*", "*", NUMBER)
READ: Mapping[str, tuple[str, ...]] = {
    "tp_btf/sys_enter": ("pt_regs*", NUMBER),
    "tp_btf/sys_exit": ("pt_regs*", NUMBER),
    "tp_btf/io_uring_complete": ("*", "io_kiocb*"),
    "tp_btf/mm_filemap_add_to_page_cache": ("folio*",),
    "tp_btf/page_cache_sync_ra": ("inode*",),
    "tp_btf/mm_filemap_fault": ("address_space*",),
    "tp_btf/block_io_start": ("request*",),
    "tp_btf/block_rq_merge": ("request*",),
    "tp_btf/block_getrq": ("bio*",),
    "tp_btf/block_rq_issue": ("request*",),
    "tp_btf/block_rq_complete": ("request*", NUMBER, NUMBER),
    "tp_btf/sched_switch": (NUMBER, "task_struct*", "task_struct*"),
    "tp_btf/sched_wakeup": ("task_struct*",),
    "tp_btf/sched_waking": ("task_struct*",),
    "tp_btf/sched_wakeup_new": ("task_struct*",),
    "tp_btf/sock_send_length": ("sock*", NUMBER),
    "tp_btf/sock_recv_length": ("sock*", NUMBER, NUMBER),
    "tp_btf/mm_vmscan_direct_reclaim_begin": (),
    "tp_btf/mm_vmscan_direct_reclaim_end": _RECLAIMED,
    "tp_btf/mm_vmscan_memcg_reclaim_begin": (),
    "tp_btf/mm_vmscan_memcg_reclaim_end": _RECLAIMED,
    "tp_btf/task_newtask": ("task_struct*",),
    "tp_btf/task_rename": ("task_struct*", "char*"),
    "tp_btf/sched_process_exec": ("task_struct*", NUMBER, "linux_binprm*"),
    "fentry/page_cache_sync_ra": (),
    "fentry/__blk_throtl_bio": ("bio*",),
    "fentry/blk_throtl_bio": ("bio*",),
    "fentry/filemap_fault": ("vm_fault*",),
    "fexit/inet_sendmsg": (*_MESSAGE, NUMBER),
    "fexit/inet6_sendmsg": (*_MESSAGE, NUMBER),
    "fexit/inet_sendpage": ("socket*", "*", NUMBER, NUMBER, NUMBER, NUMBER),
    "fexit/inet_recvmsg": (*_MESSAGE, NUMBER, NUMBER),
    "fexit/inet6_recvmsg": (*_MESSAGE, NUMBER, NUMBER),
}
"""Hook -> its first arguments, as far as programs read them: a structure, any pointer, a number.

At the end of a function its result follows its arguments, so these are all of them, and it."""

_BEGIN = struct.Struct("III")  # struct btf_type: name, kind and count of what follows, size or type
_ARGUMENT = struct.Struct("II")  # struct btf_param
_INT, _POINTER, _ENUM, _TYPEDEF, _FUNCTION, _ENUM64 = 1, 2, 6, 8, 12, 19
_NUMBERS = frozenset({_INT, _ENUM, _ENUM64})
_QUALIFIERS = frozenset({_TYPEDEF, 9, 10, 11, 18})  # volatile, const, restrict, type tag


def strange_points(library: C.CDLL, path: bytes = KERNEL_TYPES) -> frozenset[str]:
    """Hooks that a kernel has, with other arguments than those that programs read there.

    Args:
        library: libbpf.
        path: the kernel's BTF; nothing is strange in one that cannot be read.
    """
    types = library.btf__parse(path, None)
    if not types:
        return frozenset()
    try:
        kernel = _Types(library, types)
        found = {point: kernel.arguments(*point.split("/")) for point in READ}
    finally:
        library.btf__free(types)
    return frozenset(
        point
        for point, arguments in found.items()
        if arguments is not None and not _fits(point, arguments)
    )


def _fits(point: str, arguments: list[str]) -> bool:
    read = READ[point]
    if point.startswith("fexit/") and len(read) != len(arguments):
        return False
    return len(read) <= len(arguments) and all(map(_is, read, arguments))


def _is(read: str, found: str) -> bool:
    """A pointer to nothing in particular, on either side, is any pointer."""
    if _ANY_POINTER in (read, found):
        return read.endswith("*") and found.endswith("*")
    return read == found


class _Types:
    """Types of a kernel, which libbpf holds."""

    def __init__(self, library: C.CDLL, types: int) -> None:
        self._library = library
        self._types = types

    def arguments(self, kind: str, name: str) -> list[str] | None:
        """Of a tracepoint, or of a function; at its end also its result. None: it is not there."""
        if kind == "tp_btf":
            prototype = self._find(f"btf_trace_{name}", _TYPEDEF, follow=2)
        else:
            prototype = self._find(name, _FUNCTION, follow=1)
        if not prototype:
            return None
        _, info, result, address = self._type(prototype)
        words = C.string_at(address + _BEGIN.size, (info & 0xFFFF) * _ARGUMENT.size)
        found = [self._word(type_) for _, type_ in _ARGUMENT.iter_unpack(words)]
        if kind == "tp_btf":
            return found[1:]  # the first one is the tracepoint's own
        return [*found, self._word(result)] if kind == "fexit" else found

    def _find(self, name: str, kind: int, *, follow: int) -> int:
        """The number of a type, `follow` types behind one of that name; 0: there is none."""
        number = int(self._library.btf__find_by_name_kind(self._types, name.encode(), kind))
        if number < 0:
            return 0
        for _ in range(follow):
            number = self._type(number)[2]
        return number

    def _type(self, number: int) -> tuple[int, int, int, int]:
        address = self._library.btf__type_by_id(self._types, number)
        return (*_BEGIN.unpack(C.string_at(address, _BEGIN.size)), address)

    def _word(self, number: int) -> str:
        """A type in a word, as `READ` has it."""
        stars = ""
        while number:
            name, info, number_behind, _ = self._type(number)
            kind = info >> 24 & 0x1F
            if kind == _POINTER:
                stars += "*"
            elif kind in _NUMBERS and not stars:
                return NUMBER
            elif kind not in _QUALIFIERS:
                text: bytes = self._library.btf__name_by_offset(self._types, name)
                return text.decode() + stars
            number = number_behind
        return stars
