"""Mount points, from a file of mountinfo as the kernel writes it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainobs.probes.mounts import mount_points, mounts_below

NAMES = {
    b"/": b"/",
    b"/data": b"/data",
    b"/data/a b": rb"/data/a\040b",
    b"/data/back\\slash": rb"/data/back\134slash",
    b"/data/caf\xe9": b"/data/caf\xe9",
    b"/database": b"/database",
}


@pytest.fixture
def mountinfo(tmp_path: Path) -> Path:
    """One line for each name."""
    lines = [b"36 35 98:0 / %s rw,noatime - ext4 /dev/sda rw\n" % name for name in NAMES.values()]
    path = tmp_path / "mountinfo"
    path.write_bytes(b"".join(lines * 2))
    return path


def test_names_are_read_back_whatever_their_bytes(mountinfo: Path) -> None:
    assert list(map(os.fsencode, mount_points(mountinfo))) == sorted(NAMES)


def test_only_what_is_strictly_below_is_found(mountinfo: Path) -> None:
    found = mounts_below(Path("/data"), mount_points(mountinfo))
    assert sorted(map(os.fsencode, found)) == sorted(x for x in NAMES if x.startswith(b"/data/"))
    assert len(mounts_below(Path("/"), mount_points(mountinfo))) == len(NAMES) - 1
