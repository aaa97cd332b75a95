"""What a process is kept from, and which CPUs are left to it, as both change under it."""

from __future__ import annotations

import os
import threading
from math import isnan
from pathlib import Path

import pytest

from trainobs.host.cpu_limits import CpuLimits
from trainobs.host.facts import host_facts
from trainobs.host.group import (
    FROZEN,
    HIGH,
    OOM_KILLS,
    REFAULTS,
    STALLED,
    THROTTLED,
    GroupLimits,
)

two_cpus = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")


@pytest.fixture
def enter(tmp_path: Path):
    """Puts this process into a group of version 2, of which some files are written."""

    def enter(group: str, **files: str) -> None:
        own = tmp_path / "proc" / "self" / "cgroup"
        own.parent.mkdir(parents=True, exist_ok=True)
        own.write_text(f"0::/{group}\n")
        folder = tmp_path / "cgroup" / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (folder / name.replace("_", ".").replace("..", "_")).write_text(text)

    return enter


def stat(ms: int) -> str:
    return f"usage_usec 7\nthrottled_usec {1000 * ms}\n"


def test_a_group_that_is_entered_later_counts_from_then_on(tmp_path, enter):
    enter("", cpu_stat="usage_usec 7\n")  # the group of all has no quota
    enter("a", cpu_stat=stat(5))
    limits = GroupLimits(None, tmp_path / "proc", tmp_path / "cgroup")
    assert limits.names == (THROTTLED,)
    enter("a", cpu_stat=stat(8))
    assert limits.totals() == (3e6,)
    enter("b", cpu_stat=stat(1000))  # others were kept for that
    assert limits.totals() == (3e6,)
    enter("b", cpu_stat=stat(1200))
    assert limits.totals() == (203e6,)


def test_what_hidden_quotas_kept_is_told_by_the_group_where_the_kernel_knows(tmp_path, enter):
    """What a group above kept from others is not this one's, and nothing counts twice."""
    enter("pod", cpu_stat=stat(700), cpu_stat_local=stat(600))
    enter("pod/a/without", cpu_stat_local="")  # which has no controller
    enter("pod/a", cpu_stat=stat(10), cpu_stat_local=stat(30))
    enter("pod/a/without", cpu_stat="usage_usec 7\n")
    limits = GroupLimits(None, tmp_path / "proc", tmp_path / "cgroup")
    enter("pod", cpu_stat=stat(900), cpu_stat_local=stat(800))
    enter("pod/a", cpu_stat=stat(20), cpu_stat_local=stat(70))
    enter("pod/a/without")
    assert limits.totals() == (40e6,)


@pytest.mark.parametrize("mount", ["", "unified/"])
def test_what_a_group_was_frozen_is_told_by_the_group_itself(tmp_path, enter, mount):
    """Of the groups above the kernel adds it up; beside version 1 they lie elsewhere."""
    for name, text in (("a", "frozen_usec 900\n"), ("a/b", "frozen_usec 500\n")):
        folder = tmp_path / "cgroup" / mount / name
        folder.mkdir(parents=True)
        (folder / "cgroup.stat.local").write_text(text)
    enter("a/b")
    limits = GroupLimits(None, tmp_path / "proc", tmp_path / "cgroup")
    assert limits.names == (FROZEN,)
    (tmp_path / "cgroup" / mount / "a/b/cgroup.stat.local").write_text("frozen_usec 700\n")
    assert limits.totals() == (2e5,)


@pytest.mark.parametrize("name", ["memory_events", "memory_oom__control"])
def test_the_oom_killers_own_count_of_the_group_is_told_also_of_who_it_killed(
    tmp_path, enter, name
):
    def told(kills: int) -> dict[str, str]:
        return {name: f"oom 9\noom_kill_disable 0\noom_kill {kills}\noom_group_kill 7\n"}

    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "vmstat").write_text("oom_kill 50\n")
    enter("a", **told(100))
    enter("a/b", **told(3))
    limits = GroupLimits(None, tmp_path / "proc", tmp_path / "cgroup")
    assert (limits.names, limits.kills_of_machine) == ((OOM_KILLS,), False)
    enter("a/b", **told(4))
    assert limits.totals() == (1,)
    enter("a/b", **told(6))
    (tmp_path / "proc" / "self" / "cgroup").unlink()  # as of a process that is gone
    assert limits.totals() == limits.totals() == (3,)
    enter("")
    assert limits.totals() == (3,)
    assert isnan(limits.totals()[0])


def test_a_group_without_the_memory_controller_is_counted_by_the_one_above(tmp_path, enter):
    def told(kills: int, refaults: int) -> dict[str, str]:
        stat = f"file 7\nworkingset_refault_file {refaults}\n"
        return {"memory_events": f"oom_kill {kills}\n", "memory_stat": stat}

    enter("", memory_stat="workingset_refault_file 900\n")
    enter("a", **told(3, 40))
    enter("a/b/c", cpu_stat="usage_usec 7\n")
    limits = GroupLimits(None, tmp_path / "proc", tmp_path / "cgroup")
    assert (limits.names, limits.kills_of_machine) == ((THROTTLED, REFAULTS, OOM_KILLS), False)
    enter("a", **told(4, 45))
    enter("a/b/c")
    assert limits.totals() == (0, 5, 1)


def test_what_memory_high_holds_back_is_told_by_each_group_on_the_way_to_the_root(tmp_path, enter):
    def told(high: int, stalled_us: int) -> dict[str, str]:
        pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\n"
        return {
            "memory_events_local": f"low 9\nhigh {high}\nmax 8\n",
            "memory_pressure": pressure.format(stalled_us) + pressure.format(3)[5:],
        }

    for group, numbers in (("a", (5, 100)), ("a/b", (1, 10)), ("a/c", (1, 10))):
        enter(group, **told(*numbers))
    enter("a/b")
    limits = GroupLimits(None, tmp_path / "proc", tmp_path / "cgroup")
    assert limits.names == (HIGH, STALLED)
    for group, numbers in (("a", (7, 900)), ("a/c", (99, 800)), ("a/b", (2, 60))):
        enter(group, **told(*numbers))
    assert limits.totals() == (3, 50_000)


@pytest.mark.parametrize("lines", ["0::/\n", "4:memory:/../other\n", None])
def test_where_the_group_does_not_tell_the_machines_kills_are_told(tmp_path, lines):
    (tmp_path / "proc" / "self").mkdir(parents=True)
    if lines:
        (tmp_path / "proc" / "self" / "cgroup").write_text(lines)
    vmstat = tmp_path / "proc" / "vmstat"
    vmstat.write_text("nr_free_pages 7\noom_kill 50\n")
    limits = GroupLimits(None, tmp_path / "proc", tmp_path / "cgroup")
    assert (limits.names, limits.kills_of_machine) == ((OOM_KILLS,), True)
    vmstat.write_text("nr_free_pages 7\noom_kill 52\n")
    assert limits.totals() == (2,)
    vmstat.write_text("nr_free_pages 7\n")  # before Linux 4.13
    assert GroupLimits(None, tmp_path / "proc", tmp_path / "cgroup").names == ()


def limits_of(host: dict[str, object], tid: int, root: Path) -> CpuLimits:
    return CpuLimits(host, None, tid, root / "proc", root / "cgroup")


def told(host: dict[str, object]) -> list[object]:
    return [host[f"{name}usable_cpu_count"] for name in ("", "most_")] + [host["cpu_quota"]]


def test_the_tightest_quota_is_told_and_that_it_changed(tmp_path, enter):
    count = len(os.sched_getaffinity(0))
    enter("a", cpu_max="max 100000\n")
    host = host_facts(tmp_path / "proc", tmp_path / "cgroup")
    limits = limits_of(host, threading.get_native_id(), tmp_path)
    limits.look()
    assert told(host) == [count, None, None]
    enter("a", cpu_max="40000 100000\n")
    limits.look()
    assert told(host) == [count, count, 0.4]
    for loose in ("80000 100000\n", "max 100000\n"):
        enter("a", cpu_max=loose)
        limits.look()
        assert told(host) == [count, count, 0.4]


@two_cpus
def test_the_fewest_cpus_of_the_training_thread_are_told_and_not_those_of_others(tmp_path, enter):
    enter("a", cpu_max="max 100000\n")
    host = host_facts(tmp_path / "proc", tmp_path / "cgroup")
    count = len(os.sched_getaffinity(0))
    found: list[list[object]] = []

    def train() -> None:
        own = limits_of(host, threading.get_native_id(), tmp_path)
        every = os.sched_getaffinity(0)
        for cpus in ({min(every)}, every):
            os.sched_setaffinity(0, cpus)
            looking = threading.Thread(target=own.look)  # as the observer's thread does
            looking.start()
            looking.join()
            found.append(told(host))

    training = threading.Thread(target=train)
    training.start()
    training.join()
    assert found == [[1, count, None], [1, count, None]]
    limits_of(host, training.native_id or 0, tmp_path).look()  # it has ended
    assert told(host)[0] == 1
