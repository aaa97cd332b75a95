"""Life, rights and cost of the sampler."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import threading
import time
from pathlib import Path

from tests.host.helpers import (
    Child,
    become_worker,
    in_child,
    own_io,
    read_file,
    rested,
    sampling,
    value,
)
from trainobs.core.catalogue import METRICS
from trainobs.host import HostSampler
from trainobs.host.tree import ChildrenFileFinder, ParentScanFinder

NOBODY = 65_534
PR_SET_DUMPABLE = 4


def fds() -> set[str]:
    found = os.listdir("/proc/self/fd")  # with its own, which is closed again
    return {fd for fd in found if os.path.lexists(f"/proc/self/fd/{fd}")}


def test_every_metric_is_in_the_catalogue() -> None:
    assert set(HostSampler.METRICS) <= set(METRICS)
    with sampling() as sampler:
        assert set(sampler.available) <= set(HostSampler.METRICS)
        assert sampler.sample().shape == (len(sampler.available),)


def test_close_leaves_no_descriptor_and_may_be_repeated() -> None:
    gc.collect()
    before = fds()
    children = [Child(become_worker) for _ in range(3)]
    with_pipes = fds()
    with sampling() as sampler:
        for child in children:
            child.run()
        sampler.refresh()
        assert len(fds() - with_pipes) >= 8
        children.pop().end()
        sampler.refresh()
        last = sampler.sample()
    assert fds() <= with_pipes
    sampler.close()
    sampler.refresh()
    assert (sampler.sample() == last).all()
    for child in children:
        child.end()
    assert fds() == before


def test_a_forked_child_can_drop_it_though_the_lock_is_held() -> None:
    gc.collect()
    before = fds()
    with sampling() as sampler:
        value(sampler, "io/read_bytes")

        def body() -> None:
            sampler.close()
            assert fds() <= before  # less, once there is matplotlib, which drops fonts

        with sampler._watch._lock:
            in_child(body)
        sampler.refresh()
        read_file(Path(__file__))
        assert value(sampler, "io/read_bytes") >= Path(__file__).stat().st_size


def test_a_descriptor_in_use_is_closed_only_afterwards() -> None:
    with sampling() as sampler:
        child = Child(become_worker)
        child.run()
        sampler.refresh()
        process = sampler._watch.family.processes[0]
        sampler._watch.reading = True  # a sample is under way
        child.end()
        sampler.refresh()
        assert sampler._watch.family.processes == ()
        assert process.fd >= 0
        sampler._watch.reading = False
        sampler.refresh()
        assert process.fd == -1


def test_works_for_nobody_without_capabilities(tmp_path: Path) -> None:
    data = tmp_path / "file"
    data.write_bytes(bytes(1_000_000))
    fd = os.open(data, os.O_RDONLY)

    def body() -> None:
        if os.getuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            # An exec would do this: who changes his user may else not look at his own children.
            assert ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0) == 0
        assert "CapEff:\t0000000000000000" in Path("/proc/self/status").read_text()
        with sampling() as sampler:
            child = Child(lambda: (become_worker(), len(os.pread(fd, 1_000_000, 0))))
            child.run()
            sampler.refresh()
            rested(sampler)
            assert len(sampler._watch.family.threads) == 1
            assert 1_000_000 <= value(sampler, "io/read_bytes") < 1_100_000
            assert value(sampler, "sched/worker_offcpu_ns") > 0
            assert set(sampler.available) >= set(HostSampler.METRICS[:8])
            child.end()

    in_child(body)
    os.close(fd)


def test_both_ways_to_find_the_tree_agree() -> None:
    def with_child() -> int:
        return Child(int).pid

    # multiprocessing may have a resource tracker of an earlier test.
    before = ChildrenFileFinder(Path("/proc")).descendants(os.getpid())
    child = Child(with_child)
    grandchild = int(child.run())
    by_parent = ParentScanFinder(Path("/proc"))
    for tree in (ChildrenFileFinder(Path("/proc")), by_parent):
        found = tree.descendants(os.getpid())
        assert [pid for pid in found if pid not in before] == [child.pid, grandchild]
        assert set(before) <= set(found)
    assert by_parent.descendants(os.getpid()) is None, "it rests after a scan of the machine"
    child.end()


def test_children_of_other_threads_are_found() -> None:
    children: list[Child] = []
    ready, stop = threading.Event(), threading.Event()

    def fork_here() -> None:
        children.append(Child(int))
        ready.set()
        stop.wait()

    thread = threading.Thread(target=fork_here)
    thread.start()
    ready.wait()
    try:
        # Not the only one: multiprocessing may have a resource tracker of an earlier test.
        assert children[0].pid in ChildrenFileFinder(Path("/proc")).descendants(os.getpid())
    finally:
        stop.set()
        thread.join()
        children[0].end()


def test_pressure_is_left_out_where_the_kernel_has_none(tmp_path: Path) -> None:
    # The real files of this process, under a root that has no `pressure`.
    (tmp_path / "self").symlink_to(str(os.getpid()))
    (tmp_path / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    (tmp_path / "thread-self").symlink_to("/proc/thread-self")
    with sampling(tmp_path) as sampler:
        assert not [name for name in sampler.available if name.startswith("pressure/")]
        assert len(sampler.sample()) == len(sampler.available) == 11


def test_no_sampler_without_io_accounting(tmp_path: Path) -> None:
    assert HostSampler.open(tmp_path) is None


def test_pressure_never_exceeds_the_wall_clock() -> None:
    with sampling() as sampler:
        began = time.monotonic_ns()
        time.sleep(0.05)
        for name in sampler.available:
            if name.startswith("pressure/"):
                assert 0 <= value(sampler, name) <= time.monotonic_ns() - began + 10_000_000


def test_major_faults(tmp_path: Path) -> None:
    data = tmp_path / "file"
    data.write_bytes(os.urandom(4 << 20))
    with sampling() as sampler, data.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            before = value(sampler, "memory/major_fault_count")
            assert len(bytes(view)) == 4 << 20
            assert value(sampler, "memory/major_fault_count") > before


def test_a_sample_makes_one_read_per_source() -> None:
    children = [Child(become_worker) for _ in range(4)]
    with sampling() as sampler:
        for child in children:
            child.run()
        sampler.refresh()
        rested(sampler)
        before = own_io("syscr")
        idle = own_io("syscr") - before
        before = own_io("syscr")
        sampler.sample()
        reads = own_io("syscr") - before - idle
    pressures = sum(name.startswith("pressure/") for name in sampler.available)
    assert reads == 1 + 4 + 1 + 4 + pressures
    for child in children:
        child.end()
