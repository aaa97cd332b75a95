"""What keeps the probes from running is named, and costs no more than it must."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kernel.btf import section_extent
from tests.kernel.ground_truth import PAGE, PRIMES, evict, read_whole, write_files
from tests.kernel.observed import ObservedKernel, refusal
from tests.kernel.privileges import CAP_BPF, CAP_PERFMON, become_nobody
from tests.kernel.processes import in_child
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.errors import ProbeCause, ProbeError
from trainobs.probes import libbpf, programs, shared
from trainobs.probes.doctor import examine
from trainobs.probes.kernel_names import KernelNames
from trainobs.probes.loader import LibbpfLoader
from trainobs.probes.local_backend import LocalBackend

pytestmark = pytest.mark.needs_bpf

DATA = FileClass.DATA


@pytest.fixture
def copied_objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Copies of the probes, in use, which a test may spoil and everybody may read."""
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        originals = shared.object_files({shared.KFUNC}, (6, 18))
        copies = [Path(shutil.copy(path, directory)) for path in originals]
        monkeypatch.setattr(shared, "OBJECTS", Path(directory))
        yield copies


def spoil_program(path: Path, section: bytes) -> None:
    """Let a program begin with what the verifier refuses: r0 = r9, which nobody has set."""
    elf = bytearray(path.read_bytes())
    offset, _ = section_extent(bytes(elf), section)
    elf[offset : offset + 8] = struct.pack("<BBhi", 0xBF, 0x90, 0, 0)
    path.write_bytes(elf)


def programs_off() -> set[str]:
    kernel = LocalBackend()
    kernel.stop()
    return {name for name, state in kernel.status.items() if state != "on"}


def test_a_missing_object_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared, "OBJECTS", tmp_path)
    error = refusal()
    assert error.cause is ProbeCause.NO_OBJECT
    assert str(tmp_path) in error.found


@pytest.mark.parametrize("spoil", [lambda elf: b"", lambda elf: b"\x7fELF", lambda elf: elf[:999]])
def test_a_damaged_object_is_named(
    copied_objects: list[Path], spoil: Callable[[bytes], bytes]
) -> None:
    first = copied_objects[0]
    first.write_bytes(spoil(first.read_bytes()))
    error = refusal()
    assert error.cause is ProbeCause.NO_OBJECT
    assert str(first) in str(error)


@pytest.mark.parametrize("name", ["libnosuch.so.1", "libm.so.6"])
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(libbpf, "SONAMES", (name,))
    error = refusal()
    assert error.cause is ProbeCause.NO_LIBBPF
    assert name in error.failed


def test_a_kernel_without_type_information_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared, "KERNEL_BTF", tmp_path / "btf" / "vmlinux")
    error = refusal()
    assert error.cause is ProbeCause.NO_BTF
    assert "CONFIG_DEBUG_INFO_BTF" in error.do


def test_where_sys_is_not_mounted_it_is_not_the_kernel_that_lacks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shared, "KERNEL_BTF", tmp_path / "kernel" / "btf" / "vmlinux")
    error = refusal()
    assert error.cause is ProbeCause.NO_BTF
    assert error.do == "mount /sys where the training runs"


@pytest.mark.parametrize("capabilities", [(), (CAP_BPF,), (CAP_PERFMON,)])
def test_too_few_capabilities_are_named(
    copied_objects: list[Path], capabilities: tuple[int, ...]
) -> None:
    def attempt() -> None:
        become_nobody(capabilities)
        error = refusal()
        assert error.cause is ProbeCause.NO_PERMISSION, error
        assert "CAP_BPF and CAP_PERFMON" in error.do

    in_child(attempt)


@pytest.mark.parametrize("old", [False, True])
def test_two_capabilities_are_enough_for_every_probe(
    copied_objects: list[Path], place: Path, lacking: Callable[..., None], old: bool
) -> None:
    if old:
        lacking(shared.KFUNC, "block_io_start")
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


def test_a_program_the_verifier_refuses_is_left_out(
    copied_objects: list[Path], place: Path
) -> None:
    for path in copied_objects:
        spoil_program(path, b"tp_btf/mm_filemap_add_to_page_cache")
    files = write_files(place)
    observed = ObservedKernel(required=False)
    try:
        off = {name: state for name, state in observed.kernel.status.items() if state != "on"}
        assert off == {"tobs_cache_add": "R9 !read_ok"}
        observed.data(place)
        got = observed.during(lambda: [read_whole(path) for path in files])
        assert got.bytes(Op.READ, DATA) == sum(PRIMES)
        assert got.bytes(Op.CACHE_MISS, DATA) == 0
    finally:
        observed.stop()


@pytest.mark.parametrize("why", ["the kernel has no kfunc", "the verifier refuses its calls"])
def test_a_kernel_without_typed_loads_gets_the_object_that_does_without(
    copied_objects: list[Path], place: Path, lacking: Callable[..., None], why: str
) -> None:
    if why == "the kernel has no kfunc":
        lacking(shared.KFUNC)
        copied_objects[0].unlink()
    else:
        spoil_program(copied_objects[0], b"tp_btf/sys_enter")
    files = write_files(place)
    observed = ObservedKernel()
    try:
        assert set(observed.kernel.status.values()) == {"on"}
        assert observed.load_count == (1 if why == "the kernel has no kfunc" else 2)
        observed.data(place)
        got = observed.during(lambda: [read_whole(path) for path in files])
        assert got.bytes(Op.READ, DATA) == sum(PRIMES)
        assert got.count(Op.OPEN, DATA) == len(PRIMES)
    finally:
        observed.stop()


def test_what_the_kernel_has_is_loaded_at_once() -> None:
    observed = ObservedKernel()
    assert observed.load_count == 1
    observed.stop()


def test_a_program_asked_for_by_name_and_refused_is_an_error(copied_objects: list[Path]) -> None:
    for path in copied_objects:
        spoil_program(path, b"tp_btf/mm_filemap_add_to_page_cache")
    error = refusal(("page_cache",))
    assert error.cause is ProbeCause.REFUSED
    assert "tobs_cache_add" in error.failed
    LocalBackend(("syscalls",), required=True).stop()


def test_what_a_kernel_lacks_is_named_left_out_and_never_tried(
    lacking: Callable[..., None],
) -> None:
    lacking("io_uring_complete", "page_cache_sync_ra")
    assert refusal(("io_uring",)).cause is ProbeCause.NO_TRACEPOINT
    assert refusal(("page_cache",)).cause is ProbeCause.NO_TRACEPOINT
    observed = ObservedKernel(required=False)
    assert observed.load_count == 1
    observed.stop()
    assert programs_off() == {"tobs_uring", "tobs_ra_wait"}
    found = examine()
    assert (found["level"], found["complete"]) == ("ebpf", False)
    about = found["probes"]["io_uring"]["tobs_uring"]
    assert about["state"] == "this kernel has no tracepoint io_uring_complete"
    assert "io/data_read_bytes" in about["lost"]
    assert found["probes"]["page_cache"]["tobs_ra_wait"]["lost"] == ["cache/demand_hit_ratio"]


def test_what_the_verifier_refuses_takes_its_partner_along(copied_objects: list[Path]) -> None:
    for path in copied_objects:
        spoil_program(path, b"tp_btf/block_rq_complete")
    kernel = LocalBackend()
    kernel.stop()
    off = {name: state for name, state in kernel.status.items() if state != "on"}
    why = off["tobs_blk_done"]
    assert why == "R9 !read_ok"
    assert off == {
        "tobs_blk_done": why,
        "tobs_blk_start": f"of no use without tobs_blk_done: {why}",
    }


@pytest.mark.parametrize("lost", sorted(frozenset().union(*programs.TOGETHER)))
def test_what_is_of_no_use_alone_runs_whole_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """At the last moment: the programs are loaded, and one cannot be attached."""

    def attach(loader: LibbpfLoader, name: str) -> None:
        if name == lost:
            raise ProbeError(ProbeCause.REFUSED, f"cannot attach {name}", "a test", "")
        attach_as_it_is(loader, name)

    attach_as_it_is = LibbpfLoader.attach
    monkeypatch.setattr(LibbpfLoader, "attach", attach)
    (partners,) = (group for group in programs.TOGETHER if lost in group)
    kernel = LocalBackend()
    try:
        off = {name: state for name, state in kernel.status.items() if state != "on"}
        assert off.keys() == partners
        assert off.pop(lost) == f"cannot attach {lost}: a test"
        assert set(off.values()) == {f"of no use without {lost}: cannot attach {lost}: a test"}
    finally:
        kernel.stop()


def test_a_function_stands_in_for_a_tracepoint_or_it_is_said_why_not(
    monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    """Some machines refuse fentry, even to root: that is no lack of a capability."""

    def has_tracepoint(names: KernelNames, name: str) -> bool:
        return name != "mm_filemap_fault" and has_as_it_is(names, name)

    has_as_it_is = KernelNames.has_tracepoint
    monkeypatch.setattr(KernelNames, "has_tracepoint", has_tracepoint)
    path = write_files(place, [5 * PAGE])[0]
    observed = ObservedKernel(required=False)
    try:
        off = {name: state for name, state in observed.kernel.status.items() if state != "on"}
        if off:
            assert off.keys() == {"tobs_fault"}
            assert "not permitted" in off["tobs_fault"] or "cannot attach" in off["tobs_fault"]
            return
        observed.data(place)
        evict(path)
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            mapped.madvise(mmap.MADV_RANDOM)
            got = observed.during(lambda: sum(mapped[::PAGE]))
        assert got.count(Op.FAULT, DATA) == 5
    finally:
        observed.stop()


def test_without_the_process_tree_nothing_runs(lacking: Callable[..., None]) -> None:
    lacking("task_newtask")
    with pytest.raises(ProbeError) as caught:
        LocalBackend()
    assert caught.value.cause is ProbeCause.NO_TRACEPOINT
    assert "tobs_fork" in caught.value.failed


def test_a_kernel_too_old_for_ebpf_is_told_what_it_lacks(lacking: Callable[..., None]) -> None:
    lacking("BPF_FUNC_check_mtu")
    with pytest.raises(ProbeError, match=r"Linux 5\.12"):
        LocalBackend()


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
