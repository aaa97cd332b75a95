"""Whether a process is in a control group with a limit on reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainobs.probes.io_limits import has_read_limit

V1, V2 = "blkio.throttle.read_bps_device", "io.max"


@pytest.mark.parametrize(
    ("line", "file", "text", "limited"),
    [
        ("0::/a/b", f"a/b/{V2}", "8:0 rbps=1 wbps=max\n", True),
        ("0::/a/b", f"a/{V2}", "8:0 rbps=1 wbps=max\n", True),
        ("0::/", V2, "8:0 rbps=1 wbps=max\n", True),
        ("0::/a/b", f"a/b/{V2}", "8:0 wbps=1\n8:16 rbps=max wbps=max riops=9 wiops=max\n", True),
        ("0::/a/b", f"a/b/{V2}", "8:0 rbps=max wbps=1 riops=max wiops=9\n", False),
        ("0::/a/b", f"a/b/{V2}", "", False),
        ("0::/a", f"b/{V2}", "8:0 rbps=1\n", False),
        ("7:blkio:/a", f"blkio/a/{V1}", "8:0 1\n", True),
        ("7:cpu,blkio:/x", f"blkio/{V1}", "8:0 1\n", True),  # in a container, at its root
        ("7:blkio:/a", f"blkio/b/{V1}", "8:0 1\n", False),
        ("7:cpu:/a", f"blkio/a/{V1}", "8:0 1\n", False),
    ],
)
def test_the_group_and_those_above_it_are_asked(
    tmp_path: Path, line: str, file: str, text: str, limited: bool
) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text(f"{line}\n1:name=systemd:/\n")
    path = tmp_path / "groups" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert has_read_limit(7, tmp_path, tmp_path / "groups") is limited


def test_a_process_that_is_gone_has_none(tmp_path: Path) -> None:
    assert not has_read_limit(7, tmp_path, tmp_path)
