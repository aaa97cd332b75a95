"""What memory the control groups of a process leave to it, and whether they let it go on."""

from __future__ import annotations

import ctypes
import os
from ctypes import get_errno
from pathlib import Path

import pytest

from tests.kernel.processes import in_child
from tests.memory_group import limited
from trainobs.core.control_groups import CGROUP, cgroups, is_frozen, memory_left
from trainobs.host.facts import host_facts
from trainobs.host.group import REFAULTS, GroupLimits
from trainobs.host.procfs import PROC

CLONE_NEWNS, CLONE_NEWCGROUP, MNT_DETACH = 0x00020000, 0x02000000, 2
libc = ctypes.CDLL(None, use_errno=True)

STAT = "anon 700\nactive_file {}\ninactive_file 20"


def groups(root: Path, lines: str, files: dict[str, object]) -> int | None:
    """What is left to a process in groups with these files."""
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(lines)
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return memory_left(root / "proc", root / "cgroup")


@pytest.mark.parametrize(("high", "left"), [("max", 220), (900, 120), (100, 0)])
def test_the_group_with_least_room_on_the_way_to_the_root_decides(tmp_path, high, left):
    files = {
        "a/memory.max": 1000,
        "a/memory.high": high,
        "a/memory.current": 900,
        "a/memory.stat": STAT.format(100),
        "a/b/memory.max": 5000,
        "a/b/memory.current": 4000,
        "a/b/memory.stat": STAT.format(0),
    }
    assert groups(tmp_path, "0::/a/b\n", files) == left


def test_names_and_inodes_that_the_kernel_can_give_back_are_left(tmp_path):
    files = {
        "memory.max": 1000,
        "memory.current": 990,
        "memory.stat": "inactive_file 5\nslab_reclaimable 600\nslab_unreclaimable 40\nslab 640",
    }
    assert groups(tmp_path, "0::/\n", files) == 615


def test_pages_of_files_of_version_1_are_those_of_groups_below_too(tmp_path):
    files = {
        "memory/memory.limit_in_bytes": 9223372036854771712,
        "memory/memory.usage_in_bytes": 5000,
        "memory/job/memory.limit_in_bytes": 1000,
        "memory/job/memory.usage_in_bytes": 900,
        "memory/job/memory.stat": "active_file 1\ntotal_active_file 30\ntotal_inactive_file 4",
    }
    assert groups(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/\n", files) == 134


@pytest.mark.parametrize("files", [{}, {"memory.max": "max", "memory.current": 5}])
def test_where_no_limit_is_known_nothing_is_said(tmp_path, files):
    assert groups(tmp_path, "0::/\n", files) is None


@pytest.mark.parametrize(
    ("line", "file", "frozen", "not_yet"),
    [
        ("0::/a", "a/cgroup.events", "frozen 1", "frozen 0"),
        ("0::/a", "unified/a/cgroup.events", "frozen 1", "frozen 0"),
        ("6:freezer:/a/b", "freezer/a/freezer.state", "FROZEN", "FREEZING"),
    ],
)
def test_a_frozen_group_is_one_of_either_version(tmp_path, line, file, frozen, not_yet):
    (tmp_path / "proc" / "7").mkdir(parents=True)
    (tmp_path / "proc" / "7" / "cgroup").write_text(f"{line}\n")
    path = tmp_path / "cgroup" / file
    path.parent.mkdir(parents=True)
    for state, is_so in ((not_yet, False), (frozen, True)):
        path.write_text(f"populated 1\n{state}\n")
        assert is_frozen(7, tmp_path / "proc", tmp_path / "cgroup") is is_so


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes control groups and namespaces")


@needs_root
def test_a_mount_from_above_the_own_namespace_shows_no_group_of_the_process():
    """A container with the machine's mount calls its group `/`: that is not the machine's root."""

    def with_the_machines() -> None:
        enter(group)
        seen = cgroups(PROC, CGROUP, "memory")
        assert not any((one / "memory.stat").exists() for one in seen)
        assert memory_left() is None
        limits = GroupLimits(None)
        assert limits.kills_of_machine
        assert REFAULTS not in limits.names

    def with_its_own() -> None:
        enter(group)
        mount_own(group.parent)
        assert cgroups(PROC, CGROUP, "memory")[0] == group.parent
        assert host_facts()["memory_limit_bytes"] == 64 << 20

    with limited(64 << 20) as group:
        in_child(with_the_machines)
        in_child(with_its_own)


def enter(group: Path) -> None:
    (group / "cgroup.procs").write_text(str(os.getpid()))
    assert libc.unshare(CLONE_NEWCGROUP | CLONE_NEWNS) == 0, os.strerror(get_errno())


def mount_own(place: Path) -> None:
    """Replace a mount of control groups by that of this process's namespace, as containers have."""
    private, options = 0x44000, None if place == CGROUP else b"memory"
    assert libc.mount(b"none", b"/", None, private, None) == 0, os.strerror(get_errno())
    assert libc.umount2(os.fsencode(place), MNT_DETACH) == 0, os.strerror(get_errno())
    version = b"cgroup" if options else b"cgroup2"
    done = libc.mount(b"none", os.fsencode(place), version, 0, options)
    assert done == 0, os.strerror(get_errno())
