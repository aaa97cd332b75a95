"""The part of libbpf that trainobs uses, through ctypes.

Source: libbpf 1.x, `libbpf.h` and `bpf.h`. The soname has been stable since 1.0.
"""

from __future__ import annotations

import ctypes as C
from collections.abc import Iterator
from contextlib import contextmanager

from trainobs.core.errors import ProbeCause, ProbeError

SONAME = "libbpf.so.1"

_Pointer = C.c_void_p
_SIGNATURES: dict[str, tuple[object, list[object]]] = {
    "bpf_object__open_file": (_Pointer, [C.c_char_p, _Pointer]),
    "bpf_object__load": (C.c_int, [_Pointer]),
    "bpf_object__close": (None, [_Pointer]),
    "bpf_object__btf_fd": (C.c_int, [_Pointer]),
    "bpf_object__next_program": (_Pointer, [_Pointer, _Pointer]),
    "bpf_object__next_map": (_Pointer, [_Pointer, _Pointer]),
    "bpf_program__name": (C.c_char_p, [_Pointer]),
    "bpf_program__fd": (C.c_int, [_Pointer]),
    "bpf_program__set_autoload": (C.c_int, [_Pointer, C.c_bool]),
    "bpf_program__attach": (_Pointer, [_Pointer]),
    "bpf_link__fd": (C.c_int, [_Pointer]),
    "bpf_link__destroy": (C.c_int, [_Pointer]),
    "bpf_iter_create": (C.c_int, [C.c_int]),
    "bpf_map__name": (C.c_char_p, [_Pointer]),
    "bpf_map__fd": (C.c_int, [_Pointer]),
    "bpf_map__initial_value": (_Pointer, [_Pointer, C.POINTER(C.c_size_t)]),
    "bpf_map_create": (
        C.c_int,
        [C.c_int, C.c_char_p, C.c_uint32, C.c_uint32, C.c_uint32, _Pointer],
    ),
    "bpf_map_freeze": (C.c_int, [C.c_int]),
    "bpf_map_update_elem": (C.c_int, [C.c_int, _Pointer, _Pointer, C.c_uint64]),
    "bpf_map_delete_elem": (C.c_int, [C.c_int, _Pointer]),
    "bpf_enable_stats": (C.c_int, [C.c_int]),
    "bpf_obj_get_info_by_fd": (C.c_int, [C.c_int, _Pointer, C.POINTER(C.c_uint32)]),
    "libbpf_version_string": (C.c_char_p, []),
    "libbpf_set_print": (_Pointer, [_Pointer]),
}

_LOG_BYTES = (1 << 24) + 4096  # libbpf's largest buffer for the verifier, and what it puts around
_WARNING = 0  # enum libbpf_print_level: LIBBPF_WARN
_PRINT = C.CFUNCTYPE(C.c_int, C.c_int, C.c_char_p, _Pointer)


def open_library() -> C.CDLL:
    """Load libbpf and declare what is used of it.

    Raises:
        ProbeError: NO_LIBBPF when the library, or a function of it, is missing.
    """
    try:
        library = C.CDLL(SONAME, use_errno=True)
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except (OSError, AttributeError) as error:
        raise ProbeError(
            ProbeCause.NO_LIBBPF,
            f"cannot load {SONAME}",
            str(error),
            "install it: apt install libbpf1 (Debian 12, Ubuntu 24.04), dnf install libbpf",
        ) from error
    return library


@contextmanager
def captured_log(library: C.CDLL) -> Iterator[list[str]]:
    """Collect libbpf's warnings, which it would print; the printer before is put back."""
    lines: list[str] = []
    buffers: list[C.Array[C.c_char]] = []
    libc = C.CDLL(None)
    libc.vsnprintf.argtypes = [C.c_char_p, C.c_size_t, C.c_char_p, _Pointer]

    def collect(level: int, template: bytes, arguments: int) -> int:
        # Below a warning it tells of each step that goes well, with the same words.
        if level == _WARNING:
            buffer = buffers[0] if buffers else C.create_string_buffer(_LOG_BYTES)
            buffers[:] = [buffer]
            libc.vsnprintf(buffer, len(buffer), template, arguments)
            lines.append(buffer.value.decode(errors="replace").rstrip())
        return 0

    callback = _PRINT(collect)
    before = library.libbpf_set_print(C.cast(callback, _Pointer))
    try:
        yield lines
    finally:
        library.libbpf_set_print(before)
