"""Files that change their name, and inode numbers that change their file."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

import pytest

from tests.kernel.classified import SIZE, class_while, new
from tests.kernel.ground_truth import overlay
from tests.kernel.observed import ObservedKernel
from trainobs.core.abi import FileClass, Op, Phase

pytestmark = pytest.mark.needs_bpf

OTHER, DATA, CHECKPOINT = FileClass.OTHER, FileClass.DATA, FileClass.CHECKPOINT


@pytest.mark.parametrize("move", [os.replace, os.link])
def test_a_file_that_comes_into_a_root_under_a_new_name_is_data(
    observed: ObservedKernel, place: Path, move: object
) -> None:
    root = place / "data"
    root.mkdir()
    observed.kernel.add_root(root, DATA)
    outside = new(place / "x.part")
    assert class_while(observed, outside.read_bytes) is OTHER
    move(outside, root / "x")  # type: ignore[operator]
    assert class_while(observed, (root / "x").read_bytes) is DATA


def test_a_log_that_was_open_before_is_no_checkpoint(observed: ObservedKernel, place: Path) -> None:
    with (place / "train.log").open("wb", buffering=0) as log:
        got = observed.during(lambda: log.write(bytes(23)), Phase.CHECKPOINT)
        assert got.bytes(Op.WRITE, CHECKPOINT) == 0
        assert got.bytes(Op.WRITE, OTHER) == 23

    def append() -> None:
        with (place / "train.log").open("ab", buffering=0) as log:
            log.write(bytes(29))

    assert observed.during(append, Phase.CHECKPOINT).bytes(Op.WRITE, CHECKPOINT) == 0


def test_a_new_file_does_not_inherit_from_a_deleted_one_on_overlayfs(
    observed: ObservedKernel, place: Path
) -> None:
    with overlay(place) as merged:
        saved = merged / "x.ckpt"
        observed.during(lambda: saved.write_bytes(bytes(SIZE)), Phase.CHECKPOINT)
        assert class_while(observed, saved.read_bytes) is CHECKPOINT
        for index in range(8):  # one of them may get the number of the deleted file
            saved.unlink()
            saved = merged / str(index)
            observed.during(lambda saved=saved: saved.write_bytes(bytes(SIZE)))
            assert class_while(observed, saved.read_bytes) is OTHER


def test_anonymous_memory_is_no_mapping_of_the_file_whose_descriptor_is_given(
    observed: ObservedKernel, place: Path
) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    fd = os.open(new(place / "x"), os.O_RDONLY)

    def map_memory() -> None:
        flags = mmap.MAP_ANONYMOUS | mmap.MAP_PRIVATE
        address = libc.mmap(None, ctypes.c_size_t(1 << 20), mmap.PROT_READ, flags, fd, 0)
        assert address
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(1 << 20))

    observed.kernel.add_root(place, DATA)
    assert observed.during(map_memory).bytes(Op.MMAP, DATA) == 0
    os.close(fd)
