"""What the kernel counts of our programs is read where it lies."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import pytest

from tests.kernel.btf import STRUCT
from tests.kernel.own import Marked, source
from trainobs import Probe
from trainobs.core.abi import FileClass
from trainobs.probes import statistics
from trainobs.probes.kernel_names import KERNEL_BTF
from trainobs.probes.local_backend import LocalBackend
from trainobs.probes.shared import SharedProbes
from trainobs.probes.statistics import ProbeStatistics


def test_counters_of_a_program_lie_where_the_running_kernel_has_them() -> None:
    places = kernel_layout(b"bpf_prog_info")
    assert places[b"run_time_ns"] == statistics._RUN_TIME_OFFSET
    assert places[b"run_cnt"] == statistics._RUN_COUNT_OFFSET
    assert places[b"recursion_misses"] == statistics._MISSES_OFFSET


def test_left_out_runs_are_a_loss_until_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = LocalBackend()
    try:
        assert kernel.losses()["runs"] == 0
        # No event makes the kernel leave one out at will: a number that it does know, instead.
        offset = kernel_layout(b"bpf_prog_info")[b"load_time"]
        monkeypatch.setattr(statistics, "_MISSES_OFFSET", offset)
    finally:
        kernel.stop()
    losses = kernel.losses()
    assert losses["runs"] > 0, "they were asked once more"
    assert kernel._statistics.share() is None
    monkeypatch.undo()
    assert kernel.losses() == losses, "the programs are gone, and there is nothing to ask"


def test_left_out_runs_of_programs_of_the_users_are_a_loss(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(statistics, "_MISSES_OFFSET", kernel_layout(b"bpf_prog_info")[b"load_time"])
    kernel = LocalBackend(())
    try:
        before = kernel.losses()["runs"]
        kernel.load_own([Probe(source(tmp_path), attach=Marked(tmp_path).attach)])
        assert kernel.own.status == {"own.c": "on"}
        assert kernel.losses()["runs"] > before
    finally:
        kernel.stop()


def test_a_root_takes_the_same_however_many_tasks_the_machine_has(tmp_path: Path) -> None:
    probes, end = SharedProbes(["net"]), threading.Event()
    count = ProbeStatistics({"tobs_root": probes._loader.program_fd("tobs_root")})
    switch = count._library.bpf_enable_stats(statistics._RUN_TIME)
    descriptor = os.open(tmp_path, os.O_RDONLY)

    def runs() -> int:
        before = count.run_counts()[0]
        probes.add_root(0, descriptor, FileClass.DATA)
        return count.run_counts()[0] - before

    threads = [threading.Thread(target=end.wait) for _ in range(300)]
    try:
        alone = runs()
        for thread in threads:
            thread.start()
        assert 0 < runs() < alone + 100  # others may make some maps meanwhile
    finally:
        end.set()
        for thread in threads:
            thread.join()
        os.close(descriptor)
        os.close(switch)
        probes.stop()


def kernel_layout(name: bytes) -> dict[bytes, int]:
    """Byte offset of each member of a structure of the running kernel."""
    data = KERNEL_BTF.read_bytes()
    header, types, types_bytes, strings, strings_bytes = struct.unpack_from("<IIIII", data, 4)
    texts = data[header + strings :][:strings_bytes]
    wanted = struct.pack("<I", texts.index(b"\0" + name + b"\0") + 1)
    at, end = header + types, header + types + types_bytes
    while True:
        at = data.index(wanted, at, end)
        (info,) = struct.unpack_from("<I", data, at + 4)
        if info >> 24 & 0x1F == STRUCT:
            break
        at += 1
    members = (struct.unpack_from("<III", data, at + 12 * n) for n in range(1, 1 + (info & 0xFFFF)))
    return {
        texts[name : texts.index(b"\0", name)]: (offset & 0xFFFFFF) // 8
        for name, _, offset in members
    }
