"""Facts about the machine, and no error where there are none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainobs.host import host_facts


def test_facts_of_this_machine() -> None:
    facts = host_facts()
    total_kib = int(Path("/proc/meminfo").read_text().split()[1])
    assert facts["kernel"] == os.uname().release
    assert facts["machine"] == os.uname().machine
    assert facts["hostname"] == os.uname().nodename
    assert facts["usable_cpu_count"] == len(os.sched_getaffinity(0))
    assert facts["memory_bytes"] == total_kib * 1024
    assert json.loads(json.dumps(facts)) == facts


def test_ranks_beside_this_one_are_those_that_the_launcher_tells(monkeypatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert host_facts()["local_world_size"] is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert host_facts()["local_world_size"] == 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "many")
    assert host_facts()["local_world_size"] is None


def cgroups(root: Path, lines: str, files: dict[str, str], fact: str = "cpu_quota") -> object:
    (root / "proc" / "self").mkdir(parents=True)
    (root / "proc" / "self" / "cgroup").write_text(lines)
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return host_facts(root / "proc", root / "cgroup")[fact]


def test_the_tightest_quota_on_the_way_to_the_root(tmp_path: Path) -> None:
    files = {"a/cpu.max": "150000 100000\n", "a/b/cpu.max": "max 100000\n"}
    assert cgroups(tmp_path, "0::/a/b\n", files) == 1.5


def test_quota_of_cgroup_version_1(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
        "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
    }
    lines = "4:memory:/job\n3:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n"
    assert cgroups(tmp_path, lines, files) == 0.5


def test_nothing_raises_where_nothing_is_there(tmp_path: Path) -> None:
    assert host_facts(tmp_path, tmp_path)["cpu_quota"] is None


def test_nonsense_is_no_quota(tmp_path: Path) -> None:
    assert cgroups(tmp_path, "0::/a\nbad\n", {"a/cpu.max": "many few\n"}) is None


def test_the_tightest_limit_of_memory_on_the_way_to_the_root(tmp_path: Path) -> None:
    files = {"a/memory.max": f"{1 << 20}\n", "a/b/memory.max": "max\n", "a/b/memory.high": "max\n"}
    assert cgroups(tmp_path, "0::/a/b\n", files, "memory_limit_bytes") == 1 << 20
    (tmp_path / "cgroup/a/b/memory.high").write_text("4096\n")
    assert host_facts(tmp_path / "proc", tmp_path / "cgroup")["memory_limit_bytes"] == 4096


def test_limits_of_memory_of_cgroup_version_1_and_what_is_no_limit(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/job/memory.limit_in_bytes": "8192\n",
    }
    lines = "4:memory:/job\n3:cpu,cpuacct:/\n"
    assert cgroups(tmp_path, lines, files, "memory_limit_bytes") == 8192
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/\n")
    assert host_facts(tmp_path / "proc", tmp_path / "cgroup")["memory_limit_bytes"] is None


def test_groups_beyond_the_root_of_the_namespace_are_unknown(tmp_path: Path) -> None:
    # What is mounted is the group of who looks, which has a quota of its own.
    files = {"cpu.max": "50000 100000\n", "memory.max": "4096\n"}
    assert cgroups(tmp_path, "0::/../other\n", files) is None
    assert host_facts(tmp_path / "proc", tmp_path / "cgroup")["memory_limit_bytes"] is None
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    assert host_facts(tmp_path / "proc", tmp_path / "cgroup")["cpu_quota"] == 0.5


def test_groups_that_cannot_be_seen_may_have_quotas(tmp_path: Path) -> None:
    first, other = "cgroup:[4026531835]", "cgroup:[4026532000]"
    files, lines = {"a/cpu.stat": "usage_usec 7\n"}, "0::/a\n"
    assert cgroups(tmp_path, lines, files, "cpu_groups_hidden") is True
    namespace = tmp_path / "proc/self/ns/cgroup"
    namespace.parent.mkdir()
    for name, hidden in ((other, True), (first, False)):
        namespace.unlink(missing_ok=True)
        namespace.symlink_to(name)
        found = host_facts(tmp_path / "proc", tmp_path / "cgroup")
        assert found["cpu_groups_hidden"] is hidden
    (tmp_path / "cgroup/a/cpu.stat").unlink()
    assert host_facts(tmp_path / "proc", tmp_path / "cgroup")["cpu_groups_hidden"] is True


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes namespaces of control groups")
def test_in_a_real_namespace_of_control_groups_those_above_are_hidden() -> None:
    ask = "from trainobs.host.facts import host_facts; print(host_facts()['cpu_groups_hidden'])"
    command = ["unshare", "--cgroup", sys.executable, "-c", ask]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "True\n"
