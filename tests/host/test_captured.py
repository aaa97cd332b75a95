"""A /proc that is not this machine's: formats, and a kernel without `children`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.host.helpers import sampling, value
from trainobs.host.procfs import Stat, number_behind, parse_stat

IO = "rchar: {}\nwchar: {}\nsyscr: 1\nsyscw: 1\nread_bytes: {}\nwrite_bytes: {}\ncancelled: 0\n"
STAT = "{} ({}) S {} 1 1 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 {} 1 1 1\n"


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Process 100 with child 101, a worker, and grandchild 102; 103 is a stranger."""
    for tgid, parent, name in (
        (100, 1, "python"),
        (101, 100, "pt_data_worker"),
        (102, 101, "odd ) (name"),
        (103, 1, "stranger"),
    ):
        task = tmp_path / str(tgid) / "task" / str(tgid)
        task.mkdir(parents=True)
        for folder in (tmp_path / str(tgid), task):
            (folder / "io").write_text(IO.format(tgid * 1000, 20, 30, 40))
            (folder / "stat").write_text(STAT.format(tgid, name, parent, 12))
            (folder / "comm").write_text(name + "\n")
            (folder / "schedstat").write_text("5000 7000 3\n")
    (tmp_path / "self").symlink_to("100")
    (tmp_path / "thread-self").symlink_to("100/task/100")
    return tmp_path


def test_totals_of_the_tree_without_children_files(proc: Path) -> None:
    with sampling(proc) as sampler:
        assert [p.tgid for p in sampler._watch.family.processes] == [101, 102]
        (proc / "102" / "io").write_text(IO.format(102_500, 21, 32, 43))
        (proc / "100" / "io").write_text(IO.format(100_001, 20, 30, 40))
        (proc / "103" / "io").write_text(IO.format(999_999, 99, 99, 99))
        assert sampler.sample()[:4].tolist() == [501, 1, 2, 3]


def test_one_that_may_no_longer_be_read_takes_nothing_away(proc: Path) -> None:
    with sampling(proc) as sampler:
        (proc / "102" / "io").write_text(IO.format(102_500, 21, 32, 43))
        assert value(sampler, "io/read_bytes") == 500
        (proc / "102" / "io").write_text("")
        assert value(sampler, "io/read_bytes") == 500
        (proc / "101" / "io").write_text(IO.format(101_007, 20, 30, 40))
        assert value(sampler, "io/read_bytes") == 507


def test_run_queue_time_is_null_where_the_kernel_shows_zeros(proc: Path) -> None:
    (proc / "100" / "task" / "100" / "schedstat").write_text("0 0 0\n")
    with sampling(proc) as sampler:
        known = [name for name in sampler.available if name.startswith("sched/")]
        assert known == ["sched/main_offcpu_ns", "sched/thread_cpu_ns"]
        assert len(sampler.sample()) == len(sampler.available)


def test_stat_of_a_name_with_brackets() -> None:
    raw = STAT.format(7, "a) R 1 (b", 55, 12).encode()
    assert parse_stat(raw) == Stat("a) R 1 (b", 55, 12, major_faults=0, resident_pages=1)


def test_pressure_is_the_total_of_some() -> None:
    some = "some avg10=1.07 avg60=0.50 avg300=0.15 total=2703778\n"
    full = "full avg10=1.07 avg60=0.50 avg300=0.14 total=2445602\n"
    assert number_behind(b"total=", (some + full).encode()) == 2_703_778
    cpu_before_5_13 = some.encode()
    assert number_behind(b"total=", cpu_before_5_13) == 2_703_778
