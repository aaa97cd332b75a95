"""What keeps the probes from running is named, and costs no more than it must."""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import kernel_state
from tests.kernel.btf import section_extent
from tests.kernel.ground_truth import PRIMES, evict, read_whole, write_files
from tests.kernel.observed import ObservedKernel
from tests.kernel.privileges import CAP_BPF, CAP_PERFMON, become_nobody
from tests.kernel.processes import in_child
from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.core.kernel import FileClass, Op, Role
from trainobs.probes import libbpf, programs, shared
from trainobs.probes.doctor import examine
from trainobs.probes.kernel_side import KernelSide

pytestmark = pytest.mark.needs_bpf

DATA = FileClass.DATA


@pytest.fixture
def copied_object(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the probes, in use, which a test may spoil and everybody may read."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        path = Path(shutil.copy(shared.OBJECT, directory))
        monkeypatch.setattr(shared, "OBJECT", path)
        yield path


def rename_tracepoint(path: Path, name: bytes) -> None:
    """Let a program ask for a tracepoint that no kernel has."""
    elf = path.read_bytes()
    assert elf.count(b"\0tp_btf/" + name + b"\0") == 1
    path.write_bytes(elf.replace(b"tp_btf/" + name + b"\0", b"tp_btf/" + name[::-1] + b"\0"))


def spoil_program(path: Path, tracepoint: bytes) -> None:
    """Let a program begin with what the verifier refuses: r0 = r9, which nobody has set."""
    elf = bytearray(path.read_bytes())
    offset, _ = section_extent(bytes(elf), b"tp_btf/" + tracepoint)
    elf[offset : offset + 8] = struct.pack("<BBhi", 0xBF, 0x90, 0, 0)
    path.write_bytes(elf)


def refusal(probes: tuple[str, ...] = tuple(programs.PROBES)) -> ProbeError:
    with pytest.raises(ProbeError) as caught:
        KernelSide(probes, required=True)
    return caught.value


def programs_off() -> set[str]:
    kernel = KernelSide()
    kernel.stop()
    return {name for name, state in kernel.status.items() if state != "on"}


def test_a_missing_object_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared, "OBJECT", tmp_path / "missing.o")
    error = refusal()
    assert error.cause is ProbeCause.NO_OBJECT
    assert "missing.o" in error.found


@pytest.mark.parametrize("spoil", [lambda elf: b"", lambda elf: b"\x7fELF", lambda elf: elf[:999]])
def test_a_damaged_object_is_named(copied_object: Path, spoil: Callable[[bytes], bytes]) -> None:
    copied_object.write_bytes(spoil(copied_object.read_bytes()))
    error = refusal()
    assert error.cause is ProbeCause.NO_OBJECT
    assert str(copied_object) in error.failed


@pytest.mark.parametrize("name", ["libnosuch.so.1", "libm.so.6"])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(libbpf, "SONAME", name)
    error = refusal()
    assert error.cause is ProbeCause.NO_LIBBPF
    assert name in error.failed


def test_a_kernel_without_type_information_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared, "KERNEL_BTF", tmp_path / "vmlinux")
    assert refusal().cause is ProbeCause.NO_BTF


@pytest.mark.parametrize("capabilities", [(), (CAP_BPF,), (CAP_PERFMON,)])
def test_too_few_capabilities_are_named(copied_object: Path, capabilities: tuple[int, ...]) -> None:
    def attempt() -> None:
        become_nobody(capabilities)
        error = refusal()
        assert error.cause is ProbeCause.NO_PERMISSION, error
        assert "CAP_BPF and CAP_PERFMON" in error.do

    in_child(attempt)


def test_two_capabilities_are_enough_for_every_probe(copied_object: Path, place: Path) -> None:
    files = write_files(place)
    descriptors = [os.open(path, os.O_RDONLY) for path in files]

    def attempt() -> None:
        root = os.open(place, os.O_RDONLY)
        os.fchmod(root, 0o755)
        os.chdir(place)
        become_nobody((CAP_BPF, CAP_PERFMON))
        observed = ObservedKernel()
        assert set(observed.kernel.status.values()) == {"on"}
        observed.data(Path("/proc/self/cwd"))
        got = observed.during(lambda: [os.pread(fd, 1 << 20, 0) for fd in descriptors])
        assert got.bytes(Op.READ, DATA, Role.MAIN) == sum(PRIMES)
        assert got.bytes(Op.BLOCK_READ, DATA, Role.MAIN) > 0
        assert got.ns(Op.OFFCPU, role=Role.MAIN) > 0

    in_child(attempt)
    for descriptor in descriptors:
        os.close(descriptor)


def test_a_program_the_verifier_refuses_is_left_out(copied_object: Path, place: Path) -> None:
    spoil_program(copied_object, b"mm_filemap_add_to_page_cache")
    files = write_files(place)
    observed = ObservedKernel(required=False)
    try:
        off = {name for name, state in observed.kernel.status.items() if state != "on"}
        assert off == {"tobs_cache_add"}
        observed.data(place)
        got = observed.during(lambda: [read_whole(path) for path in files])
        assert got.bytes(Op.READ, DATA) == sum(PRIMES)
        assert got.bytes(Op.CACHE_MISS, DATA) == 0
    finally:
        observed.stop()


def test_a_kernel_without_typed_loads_gets_the_programs_that_do_without(
    copied_object: Path, place: Path
) -> None:
    elf = copied_object.read_bytes()
    assert b"bpf_rdonly_cast\0" in elf
    copied_object.write_bytes(elf.replace(b"bpf_rdonly_cast\0", b"bpf_no_such_fun\0"))
    files = write_files(place)
    observed = ObservedKernel()
    try:
        assert "tobs_sys_enter_" in kernel_state.loaded_programs()
        observed.data(place)
        got = observed.during(lambda: [read_whole(path) for path in files])
        assert got.bytes(Op.READ, DATA) == sum(PRIMES)
        assert got.count(Op.OPEN, DATA) == len(PRIMES)
    finally:
        observed.stop()


def test_a_kernel_with_typed_loads_gets_the_programs_that_use_them() -> None:
    if b"\0bpf_rdonly_cast\0" not in shared.KERNEL_BTF.read_bytes():
        pytest.skip("a kernel before v6.2")
    kernel = KernelSide()
    try:
        assert {"tobs_sys_enter", "tobs_sys_exit"} <= set(kernel_state.loaded_programs())
    finally:
        kernel.stop()


def test_a_program_asked_for_by_name_and_refused_is_an_error(copied_object: Path) -> None:
    spoil_program(copied_object, b"mm_filemap_add_to_page_cache")
    error = refusal(("page_cache",))
    assert error.cause is ProbeCause.REFUSED
    assert "tobs_cache_add" in error.failed
    KernelSide(("syscalls",), required=True).stop()


def test_a_missing_tracepoint_is_named_and_left_out(
    copied_object: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename_tracepoint(copied_object, b"io_uring_complete")
    rename_tracepoint(copied_object, b"page_cache_sync_ra")
    lacking = programs.Program("tobs_uring", "etelpmoc_gniru_oi", "")
    monkeypatch.setitem(programs.PROBES, "io_uring", (lacking,))
    assert refusal(("io_uring",)).cause is ProbeCause.NO_TRACEPOINT
    assert refusal(("page_cache",)).cause is ProbeCause.REFUSED
    assert programs_off() == {"tobs_uring", "tobs_ra_wait"}
    found = examine()
    assert found["level"] == "ebpf"
    assert found["probes"]["io_uring"]["tobs_uring"]["state"] == (
        "this kernel has no such tracepoint"
    )


def test_without_the_process_tree_nothing_runs(copied_object: Path) -> None:
    rename_tracepoint(copied_object, b"task_newtask")
    with pytest.raises(ProbeError) as caught:
        KernelSide()
    assert caught.value.cause is ProbeCause.REFUSED
    assert "tobs_fork" in caught.value.failed


@pytest.mark.parametrize("probe", programs.PROBES)
def test_a_probe_that_is_off_counts_nothing_and_the_others_go_on(place: Path, probe: str) -> None:
    counted = {
        "syscalls": Op.READ,
        "page_cache": Op.CACHE_MISS,
        "block": Op.BLOCK_READ,
        "sched": Op.OFFCPU,
    }
    files = write_files(place)
    observed = ObservedKernel(programs.PROBES.keys() - {probe})
    try:
        observed.data(place)
        evict(*files)
        got = observed.during(lambda: [read_whole(path) for path in files])
    finally:
        observed.stop()
    seen = {name for name, op in counted.items() if got.count(op)}
    # Without the calls nobody knows whether a page was brought in by a read.
    assert seen == counted.keys() - {probe} - ({"page_cache"} if probe == "syscalls" else set())
