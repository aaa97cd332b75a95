"""Files that no root names: what workers read of them is data, with the exceptions that matter."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.kernel.classified import SIZE, class_of, class_while, new
from tests.kernel.observed import ObservedKernel
from tests.kernel.processes import in_child, in_worker
from trainobs.core.abi import FileClass, Op, Phase, Role

pytestmark = pytest.mark.needs_bpf

OTHER, DATA = FileClass.OTHER, FileClass.DATA


def test_what_only_workers_read_is_data_where_that_is_inferred(
    observed: ObservedKernel, place: Path
) -> None:
    paths = [new(place / f"{n}") for n in range(4)]
    observed.kernel.infer_data(True)
    assert class_of(observed, paths[0]) is OTHER
    assert class_while(observed, lambda: in_child(paths[1].read_bytes)) is OTHER
    assert class_while(observed, lambda: in_worker(paths[2].read_bytes)) is DATA
    assert class_of(observed, paths[2]) is DATA  # the file is, whoever reads it
    observed.kernel.infer_data(False)
    assert class_while(observed, lambda: in_worker(paths[3].read_bytes)) is OTHER


def test_what_the_training_thread_reads_for_its_loader_is_data(
    observed: ObservedKernel, place: Path
) -> None:
    def read_in(phase: Phase) -> int:
        path = new(place / phase.name)
        counted = observed.during(path.read_bytes, phase)
        return counted.bytes(Op.READ, DATA, Role.MAIN)

    observed.kernel.infer_data(True)
    assert [read_in(phase) for phase in (Phase.LOADER, Phase.FORWARD)] == [SIZE, 0]
    observed.kernel.infer_data(False)
    assert class_while(observed, new(place / "x").read_bytes, Phase.LOADER) is OTHER


def test_what_a_worker_made_data_is_data_to_who_read_it_before(
    observed: ObservedKernel, place: Path
) -> None:
    observed.kernel.infer_data(True)
    fd = os.open(new(place / "x"), os.O_RDONLY)
    classes = [class_while(observed, lambda: os.pread(fd, SIZE, 0))]
    in_worker(lambda: os.pread(fd, SIZE, 0))
    classes += [class_while(observed, lambda: os.pread(fd, SIZE, 0))]
    os.close(fd)
    assert classes == [OTHER, DATA]


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDWR])
def test_what_a_worker_reads_is_data_however_it_opened_it(
    observed: ObservedKernel, place: Path, flags: int
) -> None:
    path = new(place / "x")
    observed.kernel.infer_data(True)
    read = class_while(observed, lambda: in_worker(lambda: os.read(os.open(path, flags), SIZE)))
    assert read is DATA


def test_a_copy_staged_in_shared_memory_is_data_and_code_is_not(
    observed: ObservedKernel, place: Path
) -> None:
    observed.kernel.infer_data(True)
    code, memory = new(place / "m.py"), new(Path("/dev/shm/trainobs-test"))
    try:
        assert class_while(observed, lambda: in_worker(code.read_bytes)) is FileClass.LIBRARY
        assert class_while(observed, lambda: in_worker(memory.read_bytes)) is DATA
    finally:
        memory.unlink()


@pytest.mark.parametrize(
    "path", ["/proc/self/status", "/sys/kernel/mm/transparent_hugepage/enabled"]
)
def test_files_of_the_kernel_itself_are_never_data(observed: ObservedKernel, path: str) -> None:
    observed.kernel.infer_data(True)
    got = observed.during(lambda: in_worker(Path(path).read_bytes))
    assert got.bytes(Op.READ, FileClass.PSEUDO, Role.WORKER) > 0
    assert not {DATA, OTHER} & (
        got.classes(Op.READ) | got.classes(Op.OPEN) | got.classes(Op.CACHE_READ)
    )
