"""The part of libbpf that trainobs uses, through ctypes: 0.5 and newer, by the names of 1.0.

Source: `libbpf.h`, `bpf.h` and `btf.h` of libbpf 0.5 to 1.7.
"""

from __future__ import annotations

import ctypes as C
import errno
import platform
import re
import signal
from collections.abc import Mapping

from trainobs.core.errors import ProbeCause, ProbeError

SONAMES = ("libbpf.so.1", "libbpf.so.0")
"""Tried in this order: 1.x, and 0.x, which is all that Ubuntu 22.04 has."""

_INSTALL = (
    "install libbpf: apt install libbpf1 (Debian 12, Ubuntu 24.04) or libbpf0 (Ubuntu 22.04), "
    "dnf install libbpf"
)
RENEW = (
    "install libbpf 1.0 or newer: apt install libbpf1 (Debian 12, Ubuntu 24.04), dnf install "
    "libbpf; where the system has none: https://github.com/libbpf/libbpf, make -C src install"
)
KERNEL_TYPES = b"/sys/kernel/btf/vmlinux"
INTERRUPTED_S = 4.0
"""For so long a load is begun anew for a thread that was stopped meanwhile (EAGAIN)."""
INTERRUPTED = "something stops this thread again and again, as a profiler that samples by ptrace"
LET_GO = "attach it once the run has begun, or have it sample more rarely"


class MapOptions(C.Structure):
    """`struct bpf_map_create_opts` of libbpf 1.0, up to the flags."""

    _fields_ = (
        ("sz", C.c_size_t),
        ("btf_fd", C.c_uint32),
        ("btf_key_type_id", C.c_uint32),
        ("btf_value_type_id", C.c_uint32),
        ("btf_vmlinux_value_type_id", C.c_uint32),
        ("inner_map_fd", C.c_uint32),
        ("map_flags", C.c_uint32),
    )


class OpenOptions(C.Structure):
    """`struct bpf_object_open_opts`, up to the path of the kernel's types."""

    _fields_ = (
        ("sz", C.c_size_t),
        ("object_name", C.c_char_p),
        ("relaxed_maps", C.c_bool),
        ("pin_root_path", C.c_char_p),
        ("attach_prog_fd", C.c_uint32),
        ("kconfig", C.c_char_p),
        ("btf_custom_path", C.c_char_p),
    )


class UprobeOptions(C.Structure):
    """`struct bpf_uprobe_opts`, up to the name of a function, which came with libbpf 0.8."""

    _fields_ = (
        ("sz", C.c_size_t),
        ("ref_ctr_offset", C.c_size_t),
        ("bpf_cookie", C.c_uint64),
        ("retprobe", C.c_bool),
        ("func_name", C.c_char_p),
    )


_Pointer = C.c_void_p
_Signatures = Mapping[str, tuple[object, list[object]]]

_SIGNATURES: _Signatures = {
    "libbpf_set_strict_mode": (C.c_int, [C.c_int]),
    "libbpf_set_print": (_Pointer, [_Pointer]),
    "libbpf_strerror": (C.c_int, [C.c_int, C.c_char_p, C.c_size_t]),
    "bpf_object__open_file": (_Pointer, [C.c_char_p, C.POINTER(OpenOptions)]),
    "bpf_object__load": (C.c_int, [_Pointer]),
    "bpf_object__close": (None, [_Pointer]),
    "bpf_object__btf_fd": (C.c_int, [_Pointer]),
    "bpf_program__name": (C.c_char_p, [_Pointer]),
    "bpf_program__fd": (C.c_int, [_Pointer]),
    "bpf_program__set_autoload": (C.c_int, [_Pointer, C.c_bool]),
    "bpf_program__section_name": (C.c_char_p, [_Pointer]),
    "bpf_program__attach": (_Pointer, [_Pointer]),
    "bpf_program__attach_raw_tracepoint": (_Pointer, [_Pointer, C.c_char_p]),
    "bpf_program__set_attach_target": (C.c_int, [_Pointer, C.c_int, C.c_char_p]),
    "bpf_program__attach_uprobe_opts": (
        _Pointer,
        [_Pointer, C.c_int, C.c_char_p, C.c_size_t, C.POINTER(UprobeOptions)],
    ),
    "bpf_link__fd": (C.c_int, [_Pointer]),
    "bpf_link__destroy": (C.c_int, [_Pointer]),
    "bpf_iter_create": (C.c_int, [C.c_int]),
    "bpf_map__name": (C.c_char_p, [_Pointer]),
    "bpf_map__fd": (C.c_int, [_Pointer]),
    "bpf_map__max_entries": (C.c_uint32, [_Pointer]),
    "bpf_map__value_size": (C.c_uint32, [_Pointer]),
    "bpf_map__set_max_entries": (C.c_int, [_Pointer, C.c_uint32]),
    "bpf_map__reuse_fd": (C.c_int, [_Pointer, C.c_int]),
    "bpf_map__initial_value": (_Pointer, [_Pointer, C.POINTER(C.c_size_t)]),
    "bpf_map_freeze": (C.c_int, [C.c_int]),
    "bpf_map_update_elem": (C.c_int, [C.c_int, _Pointer, _Pointer, C.c_uint64]),
    "bpf_map_lookup_elem": (C.c_int, [C.c_int, _Pointer, _Pointer]),
    "bpf_map_lookup_batch": (
        C.c_int,
        [C.c_int, _Pointer, _Pointer, _Pointer, _Pointer, C.POINTER(C.c_uint32), _Pointer],
    ),
    "bpf_map_delete_batch": (C.c_int, [C.c_int, _Pointer, C.POINTER(C.c_uint32), _Pointer]),
    "bpf_map_get_fd_by_id": (C.c_int, [C.c_uint32]),
    "bpf_prog_get_fd_by_id": (C.c_int, [C.c_uint32]),
    "bpf_obj_pin": (C.c_int, [C.c_int, C.c_char_p]),
    "bpf_map_delete_elem": (C.c_int, [C.c_int, _Pointer]),
    "bpf_enable_stats": (C.c_int, [C.c_int]),
    "bpf_obj_get_info_by_fd": (C.c_int, [C.c_int, _Pointer, C.POINTER(C.c_uint32)]),
    "bpf_btf_get_next_id": (C.c_int, [C.c_uint32, C.POINTER(C.c_uint32)]),
    "bpf_linker__new": (_Pointer, [C.c_char_p, _Pointer]),
    "bpf_linker__add_file": (C.c_int, [_Pointer, C.c_char_p, _Pointer]),
    "bpf_linker__finalize": (C.c_int, [_Pointer]),
    "bpf_linker__free": (None, [_Pointer]),
    "btf__parse": (_Pointer, [C.c_char_p, _Pointer]),
    "btf__type_by_id": (_Pointer, [_Pointer, C.c_uint32]),
    "btf__find_by_name_kind": (C.c_int, [_Pointer, C.c_char_p, C.c_uint32]),
    "btf__name_by_offset": (C.c_char_p, [_Pointer, C.c_uint32]),
    "btf__free": (None, [_Pointer]),
}
_SINCE_0_6: _Signatures = {
    "libbpf_version_string": (C.c_char_p, []),
    "bpf_object__next_program": (_Pointer, [_Pointer, _Pointer]),
    "bpf_object__next_map": (_Pointer, [_Pointer, _Pointer]),
    "bpf_map_create": (
        C.c_int,
        [C.c_int, C.c_char_p, C.c_uint32, C.c_uint32, C.c_uint32, C.POINTER(MapOptions)],
    ),
}
_SINCE_0_8: _Signatures = {
    "bpf_program__attach_usdt": (
        _Pointer,
        [_Pointer, C.c_int, C.c_char_p, C.c_char_p, C.c_char_p, _Pointer],
    ),
    "btf_dump__new": (_Pointer, [_Pointer, _Pointer, _Pointer, _Pointer]),
    "btf_dump__dump_type": (C.c_int, [_Pointer, C.c_uint32]),
    "btf_dump__free": (None, [_Pointer]),
}
_BEFORE_0_6: _Signatures = {
    "bpf_program__next": (_Pointer, [_Pointer, _Pointer]),
    "bpf_map__next": (_Pointer, [_Pointer, _Pointer]),
    "bpf_create_map_name": (
        C.c_int,
        [C.c_int, C.c_char_p, C.c_int, C.c_int, C.c_int, C.c_uint32],
    ),
}
_ERRORS_OF_1_0 = 3  # LIBBPF_STRICT_CLEAN_PTRS | LIBBPF_STRICT_DIRECT_ERRS


def open_library() -> C.CDLL:
    """Load libbpf and declare what is used of it; every version then has the same functions.

    Raises:
        ProbeError: NO_LIBBPF when the library, or a function of it, is missing.
    """
    library = _first_found()
    try:
        _declare(library, _SIGNATURES)
        if hasattr(library, "bpf_map_create"):
            _declare(library, _SINCE_0_6)
        else:
            _declare(library, _BEFORE_0_6)
            _translate(library)
        if has_usdt(library):
            _declare(library, _SINCE_0_8)
    except AttributeError as error:
        raise ProbeError(
            ProbeCause.NO_LIBBPF, f"cannot use {library._name}", f"{error}: not libbpf 0.5", RENEW
        ) from error
    library.libbpf_set_strict_mode(_ERRORS_OF_1_0)
    return library


def _first_found() -> C.CDLL:
    found: list[str] = []
    for name in SONAMES:
        try:
            return C.CDLL(name, use_errno=True)
        except OSError as error:
            found.append(str(error))
    raise ProbeError(
        ProbeCause.NO_LIBBPF, f"cannot load {' or '.join(SONAMES)}", "; ".join(found), _INSTALL
    )


def _declare(library: C.CDLL, signatures: _Signatures) -> None:
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments


def _translate(library: C.CDLL) -> None:
    """Give libbpf 0.5 the functions that came with 0.6."""

    def create(
        kind: int, name: bytes, key: int, value: int, entries: int, options: C._Pointer[MapOptions]
    ) -> int:
        flags = options.contents.map_flags
        return int(library.bpf_create_map_name(kind, name, key, value, entries, flags))

    functions = {
        "libbpf_version_string": lambda: b"v0.5",
        "bpf_object__next_program": lambda whole, item: library.bpf_program__next(item, whole),
        "bpf_object__next_map": lambda whole, item: library.bpf_map__next(item, whole),
        "bpf_map_create": create,
    }
    for name, function in functions.items():
        setattr(library, name, function)


def version_of(library: C.CDLL) -> tuple[int, ...]:
    """Major and minor."""
    text = library.libbpf_version_string().decode()
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def has_usdt(library: C.CDLL) -> bool:
    """Whether it can attach to marks and functions by their names: 0.8 and newer."""
    return hasattr(library, "bpf_program__attach_usdt")


def open_object(library: C.CDLL, path: bytes) -> int | None:
    """Open an object file; None and an errno if it cannot be read.

    A type that the kernel lacks is sought in its modules, which takes CAP_SYS_ADMIN; before libbpf
    1.3 the load fails without. Given a path it does not look there, but reads the types twice.
    """
    options = OpenOptions(sz=C.sizeof(OpenOptions))
    first = C.c_uint32()
    hidden = library.bpf_btf_get_next_id(0, C.byref(first)) == -errno.EPERM
    if hidden and version_of(library) < (1, 3):
        options.btf_custom_path = KERNEL_TYPES
    found: int | None = library.bpf_object__open_file(path, C.byref(options))
    return found


def load_object(library: C.CDLL, opened: int | None) -> int:
    """Load an open object; 0, or a negative error number.

    The verifier gives up with EAGAIN where a signal waits for its thread (`do_check` in
    kernel/bpf/verifier.c), and libbpf asks four times more. So the thread takes none meanwhile: a
    profiler's timer may send them faster than a program can be looked through.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:  # a handler may raise in the next call, once it has blocked them
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        return int(library.bpf_object__load(opened))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def too_old(library: C.CDLL) -> ProbeError | None:
    """What to say if libbpf cannot read the types of the running kernel; None if it can.

    It refuses BTF with one kind of type that it does not know. Kinds that 0.5 does not know are in
    the BTF of most kernels since 6.0, none in that of 5.15.
    """
    C.set_errno(0)
    types = library.btf__parse(KERNEL_TYPES, None)
    error = C.get_errno()
    library.btf__free(types)
    if types or error != errno.EINVAL:
        return None
    return ProbeError(
        ProbeCause.NO_LIBBPF,
        "cannot load the probes",
        f"{library._name} is {library.libbpf_version_string().decode()}, too old for the type "
        f"information of this kernel ({platform.release()})",
        RENEW,
    )
