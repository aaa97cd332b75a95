"""What kind of file a file is, decided where it lies and by what is done with it."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.kernel.classified import SIZE, class_of, class_while, new
from tests.kernel.mounts import mounted
from tests.kernel.observed import ObservedKernel
from trainobs.core.abi import FileClass, Op, Role
from trainobs.probes.shared import SharedProbes

pytestmark = pytest.mark.needs_bpf

OTHER, DATA, CHECKPOINT = FileClass.OTHER, FileClass.DATA, FileClass.CHECKPOINT
SHM = FileClass.SHM


@contextmanager
def made_mount_point(path: Path) -> Iterator[None]:
    path.mkdir()
    with mounted("bind", path, path):
        yield


def test_the_nearest_root_decides(observed: ObservedKernel, place: Path) -> None:
    observed.kernel.add_root(place, DATA)
    observed.kernel.add_root(place / "..", FileClass.LIBRARY)
    new(place / "saved" / "deep" / "more" / "x")
    observed.kernel.add_root(place / "saved", CHECKPOINT)
    observed.kernel.add_root(place / "saved" / "deep" / "more", DATA)
    assert class_of(observed, new(place / "x")) is DATA
    assert class_of(observed, new(place / "saved" / "x")) is CHECKPOINT
    assert class_of(observed, new(place / "saved" / "deep" / "x")) is CHECKPOINT
    assert class_of(observed, place / "saved" / "deep" / "more" / "x") is DATA


def test_a_neighbour_of_a_root_is_not_below_it(observed: ObservedKernel, place: Path) -> None:
    new(place / "data" / "x")
    observed.data(place / "data")
    assert class_of(observed, new(place / "data2" / "x")) is OTHER
    assert class_of(observed, new(place / "x")) is OTHER


def test_a_root_counts_from_when_it_is_given_also_for_open_files(
    observed: ObservedKernel, place: Path
) -> None:
    with new(place / "x").open("rb") as file:
        assert class_while(observed, lambda: os.pread(file.fileno(), SIZE, 0)) is OTHER
        observed.data(place)
        assert class_while(observed, lambda: os.pread(file.fileno(), SIZE, 0)) is DATA


def test_a_root_counts_also_for_what_is_read_while_it_is_given(
    observed: ObservedKernel, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = SharedProbes._call
    with new(place / "x").open("rb") as file:

        def read_and_call(*args: Any, **kwargs: Any) -> int:
            os.pread(file.fileno(), SIZE, 0)
            return call(*args, **kwargs)

        monkeypatch.setattr(SharedProbes, "_call", read_and_call)
        observed.data(place)
        assert class_while(observed, lambda: os.pread(file.fileno(), SIZE, 0)) is DATA


def test_a_single_file_can_be_a_root(observed: ObservedKernel, place: Path) -> None:
    new(place / "y")
    observed.data(new(place / "x"))
    assert class_of(observed, place / "x") is DATA
    assert class_of(observed, place / "y") is OTHER


def test_a_symlink_stands_for_what_it_points_to(observed: ObservedKernel, place: Path) -> None:
    new(place / "real" / "x")
    (place / "link").symlink_to(place / "real")
    observed.data(place / "link")
    assert class_of(observed, place / "link" / "x") is DATA
    assert class_of(observed, place / "real" / "x") is DATA


def test_a_link_out_of_a_root_is_what_it_points_to(observed: ObservedKernel, place: Path) -> None:
    new(place / "outside" / "x")
    (place / "data").mkdir()
    (place / "data" / "x").symlink_to(place / "outside" / "x")
    observed.data(place / "data")
    assert class_of(observed, place / "data" / "x") is OTHER


@pytest.mark.parametrize(("depth", "expected"), [(31, DATA), (32, OTHER)])
def test_a_root_reaches_down_31_directories(
    observed: ObservedKernel, place: Path, depth: int, expected: FileClass
) -> None:
    observed.data(place)
    path = place.joinpath(*["d"] * (depth - 1), "x")
    assert class_of(observed, new(path)) is expected


@pytest.mark.parametrize("kind", ["tmpfs", "bind"])
def test_a_mount_below_a_root_is_below_it(observed: ObservedKernel, place: Path, kind: str) -> None:
    below, source = place / "data" / "a b", place / "elsewhere"
    new(below / "under")
    source.mkdir()
    with mounted(kind, source, below):
        observed.data(place / "data")
        assert class_of(observed, new(below / "x")) is DATA
    assert class_of(observed, below / "under") is DATA


def test_a_mount_elsewhere_is_what_it_is(observed: ObservedKernel, place: Path) -> None:
    (place / "memory").mkdir()
    with mounted("tmpfs", place, place / "memory"):
        assert class_of(observed, new(place / "memory" / "x")) is SHM


def test_an_inode_number_that_is_used_again_starts_anew(
    observed: ObservedKernel, place: Path
) -> None:
    image, small = place / "image", place / "small"
    small.mkdir()
    image.write_bytes(bytes(4 << 20))
    # A file system of its own, with few inodes: a large one need not give a number again soon.
    subprocess.run(["mkfs.ext4", "-q", "-N", "64", image], check=True)
    data = small / "data"
    # A root that is no mount point is kept open, and with it the file system around it.
    with mounted("loop", image, small), made_mount_point(data):
        observed.data(data)
        old = [new(data / f"{n}") for n in range(40)]
        assert {class_of(observed, path) for path in old} == {DATA}
        numbers = {path.stat().st_ino for path in old}
        for path in old:
            path.unlink()
        files = [new(small / "other" / f"{n}") for n in range(40)]
        again = [path for path in files if path.stat().st_ino in numbers]
        assert again, "ext4 gave no inode number a second time"
        assert {class_of(observed, path) for path in again} == {OTHER}


CODE = ["m.py", "m.pyc", "m.so", "libm.so.6", "libz.so.1.3.1", "libcurand.so.10.3.5.147"]


@pytest.mark.parametrize("name", CODE)
def test_code_is_library_unless_it_lies_in_data(
    observed: ObservedKernel, place: Path, name: str
) -> None:
    assert class_of(observed, new(place / "project" / name)) is FileClass.LIBRARY
    assert class_of(observed, new(place / "project" / f"{name}.txt")) is OTHER
    (place / "data").mkdir()
    observed.data(place / "data")
    assert class_of(observed, new(place / "data" / name)) is DATA


@pytest.mark.parametrize(
    "name", ["1.so6", "m.soa.6", "so.6", "20261127", "m.so.", "m.so.part-07", "m.so." + "1" * 13]
)
def test_what_only_looks_like_a_version_is_no_library(
    observed: ObservedKernel, place: Path, name: str
) -> None:
    assert class_of(observed, new(place / "project" / name)) is OTHER


def test_a_listing_opens_no_data(observed: ObservedKernel, place: Path) -> None:
    new(place / "x")
    observed.data(place)
    got = observed.during(lambda: os.listdir(place))
    assert got.count(Op.OPEN, OTHER, Role.MAIN) == 1
    assert got.count(Op.OPEN, DATA) == 0
    assert observed.during((place / "x").read_bytes).count(Op.OPEN, DATA) == 1


def test_an_open_by_handle_is_one(observed: ObservedKernel, place: Path) -> None:
    handle = ctypes.create_string_buffer(struct.pack("Ii", 128, 0), 136)
    libc, mount_id = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    name = bytes(new(place / "x"))
    assert not libc.name_to_handle_at(-100, name, handle, ctypes.byref(mount_id), 0)
    observed.data(place)
    directory = os.open(place, os.O_RDONLY)
    got = observed.during(lambda: os.close(libc.open_by_handle_at(directory, handle, 0)))
    os.close(directory)
    assert got.count(Op.OPEN, DATA, Role.MAIN) == got.count(Op.OPEN) == 1


def test_an_open_that_fails_is_no_data(observed: ObservedKernel, place: Path) -> None:
    observed.data(place)
    (place / "missing").symlink_to(place / "nowhere")

    def fail() -> None:
        with pytest.raises(FileNotFoundError):
            os.open(place / "missing", os.O_RDONLY)

    got = observed.during(fail)
    assert got.count(Op.OPEN, OTHER) == 1
    assert got.count(Op.OPEN, DATA) == 0


def test_pipes_sockets_and_pseudo_files_are_told_apart(observed: ObservedKernel) -> None:
    def pipe() -> None:
        out, into = os.pipe()
        os.write(into, bytes(SIZE))
        os.read(out, SIZE)
        os.close(out)
        os.close(into)

    def exchange(one: socket.socket, other: socket.socket) -> None:
        with one, other:
            os.write(one.fileno(), bytes(SIZE))
            os.read(other.fileno(), SIZE)

    def network() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            other, _ = server.accept()
        exchange(one, other)

    def zeros() -> None:
        fd = os.open("/dev/zero", os.O_RDONLY)
        os.read(fd, SIZE)
        os.close(fd)

    assert class_while(observed, pipe) is FileClass.PIPE
    assert class_while(observed, lambda: exchange(*socket.socketpair())) is FileClass.PIPE
    assert class_while(observed, network) is FileClass.SOCKET
    assert class_while(observed, zeros) is FileClass.PSEUDO
