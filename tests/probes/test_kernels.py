"""Kernels that this machine does not run: what the probes find in their type information.

`kernels/` holds, for each kernel, the BTF types that the programs read and the names that the
loader asks for (scripts/btf_fixture.py). libbpf relocates the programs against these, and loads
none.
"""

from __future__ import annotations

import ctypes as C
import gzip
import os
import platform
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.kernel_state import why_no_bpf
from trainobs.probes import libbpf
from trainobs.probes.compiler import has_clang
from trainobs.probes.kernel_names import KernelNames
from trainobs.probes.programs import AGAIN, PROBES, choose, programs_of
from trainobs.probes.shared import KFUNC, object_files

ROOT = Path(__file__).resolve().parent.parent.parent
KERNELS = sorted(
    path.name.removesuffix(".btf.gz") for path in (ROOT / "tests/probes/kernels").iterdir()
)

UNCHANGED = {"dentry.d_alias", "page.compound_info"}
"""What is not there before v7.1, ..."""
RENAMED = {"dentry.d_u.d_alias", "page.compound_head"}
"""... and what is not there from then on."""

NO_FOLIO = {"folio.mapping", "folio.flags", "folio._flags_1", "folio._folio_order"}
NO_5_13, NO_6_5 = {"task_struct.state"}, {"folio._folio_order", "page.compound_order"}
FROM_6_18 = {"folio.flags", "mm_struct.flags"}
NO_7_2 = {"task_struct.exec_state", "task_exec_state.dumpable"}
NO_6_18 = {"folio___6_18.flags.f", "mm_struct___6_18.flags.__mm_flags[0]", *NO_7_2}

NOT_KEPT = {
    *("inode.i_mapping", "address_space.nrpages", "task_struct.thread_info.status"),
    *("pt_regs.ax", "sock.sk_kern_sock"),
}
"""What RHEL's kernels have as all do, and is read since their types were kept, which takes a kernel
that is built from source."""
NOT_KEPT_BEFORE_9_4 = {*NOT_KEPT, "request.start_time_ns"}
NOT_KEPT_FROM_9_4 = {*NOT_KEPT, "request.end_io"}

UNRESOLVED: dict[str, set[str]] = {
    "5.10": {"task_struct.__state", *NO_FOLIO, *NO_6_18, *UNCHANGED},
    "el9.0": NO_5_13 | NO_FOLIO | NO_6_18 | UNCHANGED | NOT_KEPT_BEFORE_9_4,
    "el9.6": NO_5_13 | NO_6_5 | NO_6_18 | UNCHANGED | NOT_KEPT_FROM_9_4,
    "el10.0": NO_5_13 | NO_6_5 | NO_6_18 | UNCHANGED | NOT_KEPT_FROM_9_4,
    "6.1": NO_5_13 | NO_6_18 | UNCHANGED,
    "6.12": NO_5_13 | NO_6_5 | NO_6_18 | UNCHANGED,
    "6.16": NO_5_13 | NO_6_5 | NO_6_18 | UNCHANGED,
    "6.17": NO_5_13 | NO_6_5 | NO_6_18 | UNCHANGED,
    "6.18": NO_5_13 | NO_6_5 | FROM_6_18 | NO_7_2 | UNCHANGED,
    "6.19": NO_5_13 | NO_6_5 | FROM_6_18 | NO_7_2 | UNCHANGED,
    "7.0": NO_5_13 | NO_6_5 | FROM_6_18 | NO_7_2 | UNCHANGED,
    "7.1": NO_5_13 | NO_6_5 | FROM_6_18 | NO_7_2 | RENAMED,
    "7.2": NO_5_13 | NO_6_5 | FROM_6_18 | RENAMED,
    "7.3": NO_5_13 | NO_6_5 | FROM_6_18 | RENAMED,
}
"""Kernel -> fields that the programs name and it lacks. Each stands behind a condition that is
false there; another one is a place that this kernel would refuse."""

STAND_INS = {
    "el9.0": {"tobs_ra_wait", "tobs_fault", "tobs_blk_start", "tobs_send", "tobs_receive"},
    "el9.6": {"tobs_ra_wait", "tobs_fault"},
    "el10.0": {"tobs_ra_wait"},
    "6.1": {"tobs_ra_wait", "tobs_fault", "tobs_blk_start", "tobs_send", "tobs_receive"},
    "6.12": {"tobs_ra_wait"},
    "6.16": {"tobs_ra_wait"},
    "6.17": {"tobs_ra_wait"},
}
"""Kernel -> what is had in another way than on 6.18 and newer."""

OFF = {"el9.0": {"tobs_uring", "tobs_await"}}
"""Kernel -> what is not had there."""

VERSIONS = {"el9.0": (5, 14), "el9.6": (5, 14), "el10.0": (6, 12)}
"""Of kernels whose name is not their version: RHEL's contain much of newer ones."""

OLDEST = "5.10"
"""Too old: it shows what is said of such a kernel."""


@pytest.fixture(scope="module", params=KERNELS)
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The BTF of a kernel."""
    packed = ROOT / "tests/probes/kernels" / f"{request.param}.btf.gz"
    path = tmp_path_factory.mktemp("btf") / request.param
    path.write_bytes(gzip.decompress(packed.read_bytes()))
    return path


@pytest.fixture(scope="module")
def objects(compiled: Callable[..., list[Path]]) -> Callable[[str], list[Path]]:
    """Those for a type of machine."""
    return partial(compiled, "clang" if has_clang() else "zig")


def version_of(kernel: Path) -> tuple[str, str]:
    version, _, machine = kernel.name.partition("-")
    return version, machine


def release_of(version: str) -> tuple[int, ...]:
    return VERSIONS.get(version) or tuple(map(int, version.split(".")))


def test_every_kernel_has_what_it_takes_in_one_way_or_another(kernel: Path) -> None:
    version, _ = version_of(kernel)
    variants, off = choose(programs_of(PROBES), KernelNames(kernel))
    if version == OLDEST:
        assert "Linux 5.12" in off["tobs_fork"]
        return
    assert off.keys() == OFF.get(version, set())
    best = {name: program.variants[0] for name, program in programs_of(PROBES).items()}
    assert {name for name in variants if variants[name] != best[name]} == STAND_INS.get(
        version, set()
    )


def test_the_kfunc_is_called_where_it_is(kernel: Path) -> None:
    version, _ = version_of(kernel)
    assert (KFUNC in KernelNames(kernel)) == (version not in ("5.10", "el9.0", "6.1"))


@pytest.mark.needs_bpf
def test_each_field_that_a_kernel_lacks_is_one_that_is_not_read_there(
    kernel: Path, objects: Callable[[str], list[Path]]
) -> None:
    if reason := why_no_bpf():
        pytest.skip(reason)
    version, machine = version_of(kernel)
    names = KernelNames(kernel)
    variants, _ = choose(programs_of(PROBES), names)
    wanted = {program for variant in variants.values() for program, _ in variant.attach_points}
    wanted |= {program + AGAIN for program in wanted}
    for counts_files in (False, True):
        best, *_ = object_files(names, release_of(version), counts_files=counts_files)
        name = best.name.replace(platform.machine(), machine)
        chosen = next(path for path in objects(machine) if path.name == name)
        assert set(unresolved(chosen, kernel, wanted)) == UNRESOLVED[version]


def test_a_field_that_nobody_has_is_found(
    tmp_path: Path, objects: Callable[[str], list[Path]]
) -> None:
    """The control: a kernel of no types resolves nothing."""
    packed = ROOT / "tests/probes/kernels" / "5.10-x86_64.btf.gz"
    (tmp_path / "btf").write_bytes(gzip.decompress(packed.read_bytes()))
    everything = {program.name for program in programs_of(PROBES).values()}
    lacking = set(unresolved(objects("x86_64")[1], tmp_path / "btf", everything))
    assert "io_kiocb.cqe.res" in lacking


def unresolved(path: Path, btf: Path, wanted: set[str]) -> Iterator[str]:
    """Fields, as "struct.member", that libbpf does not find in a BTF for some programs."""
    spec = ""
    for line in relocation_log(path, btf, wanted):
        if found := re.search(r"relo #\d+: <byte_\w+> \[\d+\] struct (\S+) ", line):
            spec = found[1]
        elif "substituting insn" in line:
            yield spec


def relocation_log(path: Path, btf: Path, wanted: set[str]) -> list[str]:
    """What libbpf says as it relocates programs; none is loaded, since none has a type."""
    library, libc = libbpf.open_library(), C.CDLL(None)
    libc.vsnprintf.argtypes = [C.c_char_p, C.c_size_t, C.c_char_p, C.c_void_p]
    library.bpf_program__set_type.argtypes = [C.c_void_p, C.c_int]
    buffer = C.create_string_buffer(1 << 16)
    lines: list[str] = []

    def collect(level: int, template: bytes, arguments: int) -> int:
        libc.vsnprintf(buffer, len(buffer), template, arguments)
        lines.append(buffer.value.decode(errors="replace"))
        return 0

    callback = C.CFUNCTYPE(C.c_int, C.c_int, C.c_char_p, C.c_void_p)(collect)
    options = libbpf.OpenOptions(sz=C.sizeof(libbpf.OpenOptions), btf_custom_path=os.fsencode(btf))
    before = library.libbpf_set_print(C.cast(callback, C.c_void_p))
    try:
        opened = library.bpf_object__open_file(os.fsencode(path), C.byref(options))
        program = library.bpf_object__next_program(opened, None)
        while program:
            name = library.bpf_program__name(program).decode()
            library.bpf_program__set_autoload(program, name in wanted)
            library.bpf_program__set_type(program, 0)  # BPF_PROG_TYPE_UNSPEC
            program = library.bpf_object__next_program(opened, program)
        assert library.bpf_object__load(opened) < 0
        library.bpf_object__close(opened)
    finally:
        library.libbpf_set_print(before)
    assert any("missing BPF prog type" in line for line in lines), lines[-3:]
    return lines


@pytest.mark.parametrize("keep", [10, 24, 200, 0.5, 0.99])
def test_types_that_are_cut_short_are_no_old_kernel(tmp_path: Path, keep: float) -> None:
    whole = gzip.decompress((ROOT / "tests/probes/kernels" / "6.18-x86_64.btf.gz").read_bytes())
    length = int(keep * len(whole)) if isinstance(keep, float) else keep
    (tmp_path / "btf").write_bytes(whole[:length])
    with pytest.raises(ValueError, match=r"too short|cut short"):
        KernelNames(tmp_path / "btf")
