"""Every libbpf from 0.5 on gives the same functions; what is too old says what to install.

The libraries are stubs; scripts/try_libbpf.py runs the loader with a real one.
"""

from __future__ import annotations

import ctypes
import errno
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.probes import libbpf, libbpf_log

Build = Callable[..., str]

NOT_CALLED = libbpf._SIGNATURES.keys() - {
    "libbpf_set_strict_mode",
    "btf__parse",
    "bpf_object__open_file",
    "bpf_btf_get_next_id",
}
COMMON = """
#include <errno.h>
int mode, parse_errno, next_result;
char custom_path[64];
int libbpf_set_strict_mode(int wanted) { mode = wanted; return 0; }
void *btf__parse(const char *path, void *ext) { errno = parse_errno; return 0; }
int bpf_btf_get_next_id(unsigned start, unsigned *next) { return next_result; }
struct options { unsigned long sz; long skipped[5]; const char *path; };
void *bpf_object__open_file(const char *file, const struct options *options)
{
    for (int i = 0; i < 63; i++) {
        custom_path[i] = options->path ? options->path[i] : 0;
        if (!custom_path[i])
            break;
    }
    return options->sz == sizeof(*options) ? &mode : 0;
}
"""
BEFORE_0_6 = """
long bpf_program__next(long item, long object) { return item ? 0 : object + 1; }
long bpf_map__next(long item, long object) { return item ? 0 : object + 2; }
int bpf_create_map_name(int type, const char *name, int key, int value, int entries,
                        unsigned flags)
{
    return type + 10 * key + 100 * value + 1000 * entries + 10000 * flags
         + 100000 * (name[0] == 'n');
}
"""
SINCE_0_6 = """
long bpf_object__next_program(long object, long item) { return item ? 0 : object + 1; }
long bpf_object__next_map(long object, long item) { return item ? 0 : object + 2; }
struct map_options { unsigned long sz; unsigned skipped[5], flags; };
int bpf_map_create(int type, const char *name, unsigned key, unsigned value, unsigned entries,
                   const struct map_options *options)
{
    return type + 10 * key + 100 * value + 1000 * entries + 10000 * options->flags
         + 100000 * (name[0] == 'n');
}
const char *libbpf_version_string(void) { return VERSION; }
"""
VERSIONS = {
    "v0.5": BEFORE_0_6,
    "v0.8": SINCE_0_6,
    "v1.1": SINCE_0_6,
    "v1.7": SINCE_0_6,
}
old_and_new = pytest.mark.parametrize("version", VERSIONS)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Makes a stub of a version the only libbpf there is; returns its path."""
    compiler = shutil.which("cc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler")

    def stub(version: str, without: str = "") -> str:
        path = tmp_path / f"libbpf-{version}.so"
        rest = "".join(f"void {name}(void) {{}}\n" for name in sorted(NOT_CALLED - {without}))
        source = COMMON + VERSIONS[version] + rest
        command = [compiler, "-shared", "-fPIC", "-w", "-x", "c", f'-DVERSION="{version}"', "-"]
        subprocess.run([*command, "-o", path], input=source.encode(), check=True)
        monkeypatch.setattr(libbpf, "SONAMES", (str(path),))
        return str(path)

    return stub


def refusal() -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        libbpf.open_library()
    assert caught.value.cause is ProbeCause.NO_LIBBPF
    return caught.value


@old_and_new
def test_every_version_walks_and_makes_maps_alike(build: Build, version: str) -> None:
    build(version)
    library = libbpf.open_library()
    assert library.libbpf_version_string().decode() == version
    assert library.bpf_object__next_program(1 << 40, None) == (1 << 40) + 1
    assert not library.bpf_object__next_program(1 << 40, (1 << 40) + 1)
    assert library.bpf_object__next_map(1 << 40, None) == (1 << 40) + 2
    assert not library.bpf_object__next_map(1 << 40, (1 << 40) + 2)
    options = libbpf.MapOptions(sz=ctypes.sizeof(libbpf.MapOptions), map_flags=6)
    assert library.bpf_map_create(2, b"name", 3, 4, 5, ctypes.pointer(options)) == 165432


@old_and_new
def test_errors_are_told_as_of_1_0(build: Build, version: str) -> None:
    build(version)
    library = libbpf.open_library()
    assert ctypes.c_int.in_dll(library, "mode").value == 3


def test_1_x_goes_before_0_x(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = build("v0.5"), build("v1.7")
    monkeypatch.setattr(libbpf, "SONAMES", (new, old))
    assert libbpf.version_of(libbpf.open_library()) == (1, 7)
    monkeypatch.setattr(libbpf, "SONAMES", ("libnosuch.so.1", old))
    assert libbpf.version_of(libbpf.open_library()) == (0, 5)


def test_where_there_is_none_both_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libbpf, "SONAMES", ("libnosuch.so.1", "libnosuch.so.0"))
    error = refusal()
    assert error.failed == "cannot load libnosuch.so.1 or libnosuch.so.0"
    assert "libnosuch.so.1: cannot open" in error.found
    assert "libbpf1" in error.do
    assert "libbpf0 (Ubuntu 22.04)" in error.do


@pytest.mark.parametrize("missing", ["bpf_map__initial_value", "btf__free"])
def test_a_library_older_than_0_5_is_named(build: Build, missing: str) -> None:
    path = build("v0.5", without=missing)
    error = refusal()
    assert error.failed == f"cannot use {path}"
    assert missing in error.found
    assert "libbpf 1.0 or newer" in error.do


def test_types_that_are_too_new_are_named(build: Build) -> None:
    path = build("v0.5")
    library = libbpf.open_library()
    ctypes.c_int.in_dll(library, "parse_errno").value = errno.EINVAL
    error = libbpf.too_old(library)
    assert error is not None
    assert error.cause is ProbeCause.NO_LIBBPF
    assert f"{path} is v0.5, too old" in error.found
    assert "libbpf 1.0 or newer" in error.do
    assert len(str(error).splitlines()) == 3


def test_another_trouble_with_the_types_is_not_the_version(build: Build) -> None:
    build("v0.5")
    library = libbpf.open_library()
    ctypes.c_int.in_dll(library, "parse_errno").value = errno.EMFILE
    assert libbpf.too_old(library) is None


@pytest.mark.parametrize(
    ("version", "result", "path"),
    [
        ("v0.5", -errno.EPERM, b"/sys/kernel/btf/vmlinux"),
        ("v1.1", -errno.EPERM, b"/sys/kernel/btf/vmlinux"),
        ("v1.7", -errno.EPERM, b""),
        ("v0.5", 0, b""),
        ("v1.1", -errno.ENOENT, b""),  # there are no types at all
    ],
)
def test_modules_are_left_out_where_they_may_not_be_seen(
    build: Build, version: str, result: int, path: bytes
) -> None:
    build(version)
    library = libbpf.open_library()
    ctypes.c_int.in_dll(library, "next_result").value = result
    assert libbpf.open_object(library, b"trainobs.o")
    assert (ctypes.c_char * 64).in_dll(library, "custom_path").value == path


def test_refusals_are_told_in_the_words_of_1_0() -> None:
    new = [
        "libbpf: prog 'tobs_fork': BPF program load failed: Permission denied",
        "libbpf: prog 'tobs_fork': -- BEGIN PROG LOAD LOG --\nR1 invalid mem access 'scalar'",
    ]
    end = "libbpf: failed to load object 'trainobs.o'"
    old = [
        "libbpf: Error in bpf_create_map_xattr(roots):Invalid(-22). Retrying without BTF.",
        "libbpf: load bpf program failed: Permission denied",
        "libbpf: -- BEGIN DUMP LOG ---",
        "libbpf: \nR1 invalid mem access 'scalar'",
        "libbpf: -- END LOG --",
        "libbpf: failed to load program 'tobs_fork'",
        end,
    ]
    told = libbpf_log._as_of_1_0(old)
    assert [line for line in told if "prog '" in line] == new
    assert told[-1] == end
    assert not any("Retrying" in line for line in told)
    assert libbpf_log._as_of_1_0([*new, end]) == [*new, end]


def test_names_of_errors_are_told_as_words() -> None:
    """libbpf 1.6 and newer have names."""
    lines = [
        "libbpf: prog 'tobs_fork': BPF program load failed: -EACCES",
        "libbpf: Error loading ELF section .BTF: -EINVAL.",
        "libbpf: prog 'f': failed to create uprobe 'lib-ENOENT.so:0x1' perf event: -ENOSUCH",
    ]
    assert libbpf_log._as_of_1_0(lines) == [
        "libbpf: prog 'tobs_fork': BPF program load failed: Permission denied",
        "libbpf: Error loading ELF section .BTF: Invalid argument.",
        lines[2],
    ]


def test_a_missing_function_is_not_told_as_one_at_address_0() -> None:
    """libbpf 1.3 to 1.7 do so of a file with one table of symbols."""
    newer = "libbpf: elf: 'f' is 0 in symtab for 'm.so': should not be 0 in a shared library"
    assert libbpf_log._as_of_1_0([newer]) == ["libbpf: elf: failed to find symbol 'f' in 'm.so'"]
