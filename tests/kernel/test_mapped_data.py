"""Training data that is read through a mapping: known by faults, where no call names the file."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kernel.ground_truth import MIB, PAGE, cached_pages, evict, write_file
from tests.kernel.observed import Counts, ObservedKernel
from tests.kernel.processes import Outsider, in_child, in_thread, in_worker
from trainobs.core.abi import FileClass, Op, Phase, Role

pytestmark = [pytest.mark.needs_bpf, pytest.mark.needs_program("tobs_fault")]

OTHER, DATA, LIBRARY, SHM = FileClass.OTHER, FileClass.DATA, FileClass.LIBRARY, FileClass.SHM
SIZE = 2 * MIB

Touch = Callable[[], object]


@contextmanager
def mapped(path: Path, access: int = mmap.ACCESS_READ) -> Iterator[Touch]:
    """A mapping that is older than the step; what it yields reads a byte of each page."""
    with path.open("rb" if access == mmap.ACCESS_READ else "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=access)
    with mapping:
        yield lambda: sum(mapping[0::PAGE])


def cold(outsider: Outsider, path: Path) -> Path:
    """A file that nobody who is followed has written, out of the page cache."""
    outsider.do(write_file, path, SIZE)
    return path


def touching(
    observed: ObservedKernel,
    path: Path,
    by: Callable[[Touch], object],
    phase: Phase | None = None,
    access: int = mmap.ACCESS_READ,
) -> Counts:
    """What is counted as the pages of a file are touched, none of which is in memory."""

    def attempt() -> Counts:
        evict(path)
        with mapped(path, access) as touch:
            got = observed.during(lambda: by(touch), phase)
        assert cached_pages(path) * PAGE == SIZE
        return got

    return observed.undisturbed(attempt, path)


def touch_here(touch: Touch) -> None:
    touch()


def of_class(got: Counts, cls: FileClass, role: Role) -> list[int]:
    """Bytes brought into memory by faults, and read from the device."""
    return [got.bytes(op, cls, role) for op in (Op.FAULT_FILL, Op.BLOCK_READ)]


def test_a_mapping_that_a_worker_reads_is_data(
    observed: ObservedKernel, place: Path, outsider: Outsider
) -> None:
    path = cold(outsider, place / "shard")
    observed.kernel.infer_data(True)
    got = touching(observed, path, in_worker)
    assert of_class(got, DATA, Role.WORKER) == [SIZE, SIZE]
    assert got.count(Op.FAULT, DATA, Role.WORKER) > 0
    assert got.count(Op.FAULT, OTHER) == got.bytes(Op.UNNAMED_FILL) == 0


def test_a_mapping_that_the_training_thread_reads_for_its_loader_is_data(
    observed: ObservedKernel, place: Path, outsider: Outsider
) -> None:
    observed.kernel.infer_data(True)
    for phase, cls in ((Phase.FORWARD, OTHER), (Phase.LOADER, DATA)):
        path = cold(outsider, place / phase.name)
        got = touching(observed, path, touch_here, phase)
        assert of_class(got, cls, Role.MAIN) == [SIZE, SIZE]
        assert got.bytes(Op.UNNAMED_FILL) == 0


def test_what_others_touch_is_of_no_class_and_likewise_where_data_is_named(
    observed: ObservedKernel, place: Path, outsider: Outsider
) -> None:
    path = cold(outsider, place / "shard")
    observed.kernel.infer_data(True)
    for by, role in ((in_thread, Role.THREAD), (in_child, Role.CHILD)):
        got = touching(observed, path, by)
        assert of_class(got, OTHER, role) == [SIZE, SIZE]
        assert got.bytes(Op.UNNAMED_FILL) == 0
    observed.kernel.infer_data(False)
    got = touching(observed, path, in_worker)
    assert of_class(got, OTHER, Role.WORKER) == [SIZE, SIZE]


@pytest.mark.parametrize("name", ["libx.so", "libx.so.2300", "code.py"])
def test_code_that_is_mapped_is_none(
    observed: ObservedKernel, place: Path, outsider: Outsider, name: str
) -> None:
    path = cold(outsider, place / name)
    observed.kernel.infer_data(True)
    got = touching(observed, path, in_worker)
    assert of_class(got, LIBRARY, Role.WORKER) == [SIZE, SIZE]


def test_a_program_that_a_worker_runs_is_none(observed: ObservedKernel, place: Path) -> None:
    program = Path(shutil.copy("/bin/sleep", place / "program"))
    observed.kernel.infer_data(True)
    evict(program)
    got = observed.during(lambda: in_worker(lambda: os.system(f"LC_ALL=C {program} 0")))
    assert got.bytes(Op.FAULT_FILL, OTHER, Role.WORKER) > 0
    # What is in memory may fault too: the loader's cache is mapped as data is.
    assert DATA not in got.classes(Op.FAULT_FILL)


@pytest.mark.parametrize("way", ["may be run", "open for writing"])
def test_what_may_be_no_data_is_told_apart(
    observed: ObservedKernel, place: Path, outsider: Outsider, way: str
) -> None:
    path = cold(outsider, place / "file")
    observed.kernel.infer_data(True)
    if way == "may be run":
        outsider.do(path.chmod, 0o755)
    access = mmap.ACCESS_READ if way == "may be run" else mmap.ACCESS_WRITE
    got = touching(observed, path, in_worker, access=access)
    assert of_class(got, OTHER, Role.WORKER) == [SIZE, SIZE]
    assert got.bytes(Op.UNNAMED_FILL, OTHER, Role.WORKER) == SIZE


def test_a_copy_in_shared_memory_is_data_from_its_open_on(
    observed: ObservedKernel, outsider: Outsider
) -> None:
    observed.kernel.infer_data(True)

    def read() -> None:
        with mapped(path) as touch:
            touch()

    def share() -> None:  # as torch does with what its workers hand over
        with mapped(path, mmap.ACCESS_WRITE) as touch:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            touch()

    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        path = Path(file.name)
        outsider.do(path.write_bytes, bytes(SIZE))
        for work, cls in ((share, SHM), (read, DATA)):
            got = observed.during(lambda work=work: in_worker(work))
            assert got.classes(Op.OPEN) & {OTHER, DATA, SHM} == {cls}
            assert got.bytes(Op.MMAP, cls, Role.WORKER) == SIZE


def test_a_segment_that_is_looked_for_is_no_data(
    observed: ObservedKernel, outsider: Outsider
) -> None:
    """torch_shm_manager does so, of the sharing strategy "file_system", by shm_open."""
    observed.kernel.infer_data(True)

    def share() -> None:
        os.close(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
        with mapped(path, mmap.ACCESS_WRITE) as touch:
            touch()

    with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
        path = Path(file.name)
        outsider.do(path.write_bytes, bytes(SIZE))
        got = observed.during(lambda: in_worker(share))
    assert got.classes(Op.OPEN) & {OTHER, DATA, SHM} == {SHM}
    assert got.bytes(Op.MMAP, SHM, Role.WORKER) == SIZE


def test_a_hint_makes_a_file_data_as_the_read_after_it_does(
    observed: ObservedKernel, place: Path, outsider: Outsider
) -> None:
    path = cold(outsider, place / "shard")
    observed.kernel.infer_data(True)
    fd = os.open(path, os.O_RDONLY)

    def hint() -> None:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_WILLNEED)

    def attempt() -> Counts:
        evict(path)
        return observed.during(hint, Phase.LOADER)

    got = observed.undisturbed(attempt, path)
    os.close(fd)
    assert got.bytes(Op.HINT, DATA, Role.MAIN) > 0
    assert got.classes(Op.HINT) == {DATA}
