"""bpf/build.py: what is in the object, and what it says when it cannot be built."""

from __future__ import annotations

import platform
import struct
import sys
from itertools import product

import pytest

from bpf import build


def section_sizes(elf: bytes) -> dict[str, int]:
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    count, names_index = struct.unpack_from("<HH", elf, 0x3C)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + 64 * i) for i in range(count)]
    names = headers[names_index][4]
    return {
        elf[names + name : elf.index(b"\0", names + name)].decode(): size
        for name, _, _, _, _, size in headers
    }


@pytest.fixture(
    scope="module", params=product(["clang", "zig"], ["x86_64", "aarch64"]), ids="-".join
)
def built(request, compiled):
    """All objects for a machine, in the order of `build.object_paths`."""
    return [path.read_bytes() for path in compiled(*request.param)]


def test_the_object_keeps_btf_and_loses_dwarf(built):
    for sizes in map(section_sizes, built):
        assert sizes[".BTF"]
        assert sizes[".BTF.ext"]
        dwarf = {name: size for name, size in sizes.items() if ".debug_" in name}
        assert dwarf, "compiled without -g?"
        assert not any(dwarf.values())


def test_the_objects_for_newer_kernels_call_the_kfunc(built):
    found = [b"\0bpf_rdonly_cast\0" in elf for elf in built]
    assert found == [True, False, True, True, False, True, False, False, False]


def test_programs_are_twice_where_a_task_may_lose_its_cpu_in_one(built):
    found = [b"\0tobs_fork_again\0" in elf for elf in built]
    assert found == [False, False, True, False, False, True, False, False, False]


def test_the_object_does_not_tell_where_it_was_built(built):
    sources = [*["syscalls.bpf.h"] * 6, "tasks.h", "seen.bpf.c", "again.bpf.c"]
    for elf, source in zip(built, sources, strict=True):
        assert f"bpf/{source}".encode() in elf
        assert str(build.ROOT).encode() not in elf


@pytest.mark.skipif(not build.has_clang(), reason="needs clang")
def test_an_error_in_a_program_shows_the_compiler_s_message(tmp_path, monkeypatch):
    (tmp_path / "wrong.bpf.c").write_text("int x = ;\n")
    monkeypatch.setattr(build, "SOURCE", str(tmp_path / "wrong.bpf.c"))
    with pytest.raises(build.BuildError, match="expected expression"):
        build.build(tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ("clang", "no clang on the PATH"),
        ("zig", f"no ziglang package for {sys.executable}"),
        ("auto", f"no clang on the PATH, and no ziglang package for {sys.executable}"),
    ],
)
def test_without_a_compiler_the_error_says_how_to_get_one(monkeypatch, tmp_path, choice, found):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    with pytest.raises(build.BuildError) as error:
        build.build(tmp_path, choice)
    assert str(error.value) == (
        "cannot compile the BPF programs: no compiler\n"
        f"  found: {found}\n"
        "  do:    install clang (apt-get install clang), or: "
        f"{sys.executable} -m pip install 'ziglang>=0.14'"
    )


def test_all_that_a_program_of_a_user_s_includes_comes_with_the_objects(tmp_path):
    copies = {str(path.relative_to(tmp_path)): path for path in build.copy_headers(tmp_path)}
    assert {"include/trainobs_probe.h", "include/vmlinux.h", "include/linux/errno.h"} <= {*copies}
    assert {"include/bpf/usdt.bpf.h", "include/libbpf-1.7/bpf/usdt.bpf.h"} <= {*copies}
    assert all(path.stat().st_size for path in copies.values())


def test_an_unknown_machine_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(build.BuildError, match="riscv64\n.*supported are x86_64, aarch64\n"):
        build.build(tmp_path)
