"""Run logs of every kind, made up, for the reports."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.samples import ITEM, USER, batch, busy_run, cells, info, lookup_rows
from trainobs import cli
from trainobs.core.records import BATCH_ROW, SETUP
from trainobs.runlog.embeddings import EmbeddingsSink
from trainobs.runlog.writer import RunLogSink

MS = 1e6
HOST = {"hostname": "node7", "kernel": "6.18", "usable_cpu_count": 4, "cpu_count": 4}
LOADER = {"workers": 1, "prefetch_factor": 2, "persistent_workers": False}
NO_EBPF = {"ebpf": "Operation not permitted: the process\nhas neither CAP_BPF nor CAP_PERFMON"}
LONG = "a." * 100


def write(path, table, rank: int = 0, end=None, **facts):
    """A run of one rank; `end=None` is one that has not ended."""
    sink = RunLogSink(path, rank)
    sink.begin(info(rank=rank, **{"host": HOST, **facts}))
    if table is not None:
        sink.write(table)
    sink.flush() if end is None else sink.end(end)
    return path


def steps_of(wait_ms: float, forward_ms: float, count: int = 200, **columns):
    """Equal steps after a slow first one, and one batch for each, made by worker 0."""
    took = wait_ms + forward_ms
    start = (np.arange(count) * took * MS).astype(np.int64)
    usual = {
        "step__duration_ns": [3 * took * MS] + [took * MS] * (count - 1),
        "loader__wait_ns": [3 * wait_ms * MS] + [wait_ms * MS] * (count - 1),
        "phase__forward_ns": [3 * forward_ms * MS] + [forward_ms * MS] * (count - 1),
        "sched__main_offcpu_ns": [wait_ms * MS] * count,
        "sched__wait_offcpu_ns": [wait_ms * MS] * count,
        "sched__work_offcpu_ns": [0.0] * count,
        "sched__work_runqueue_ns": [0.0] * count,
        "sched__others_cpu_ratio": [0.0] * count,
    }
    rows = np.zeros(count, BATCH_ROW)
    rows["for_step"] = rows["number"] = np.arange(count)
    rows["fetch_begin_ns"], rows["fetch_end_ns"] = start, start + int(wait_ms * MS)
    rows["end_ns"] = start + int(wait_ms * MS)
    rows["begin_ns"] = rows["end_ns"] - int(took * MS)
    rows["compute_ns"] = int(took * MS)
    told = batch(range(count), cells(count), **usual | columns)
    return replace(told, batches=rows, start_ns=start)


SPLIT = {
    f"loader__{part}_ns": [share * 10 * MS] * 200
    for part, share in (("device", 0.1), ("cpu_wait", 0), ("compute", 0.85), ("sleep", 0))
} | {"loader__handover_ns": [0.5 * MS] * 200, "loader__start_stop_ns": [0.0] * 200}
STORAGE = {
    "io__data_read_bytes": [2e6] * 200,
    "block__read_bytes": [1e6] * 200,
    "block__write_bytes": [4e3] * 200,
}


def loader_bound(path, **changed):
    facts = {"settings": {"loader_workers": 1}, "loaders": [LOADER], "end": {"outcome": "ok"}}
    return write(path, steps_of(10, 20, **SPLIT | STORAGE), **facts | changed)


def compute_bound(path):
    facts = {"settings": {"loader_workers": 1}, "loaders": [LOADER]}
    return write(path, steps_of(0.1, 100), end={"outcome": "ok"}, **facts)


def without_ebpf(path):
    table = batch(
        range(12),
        step__duration_ns=[100 * MS] * 12,
        loader__wait_ns=[60 * MS] * 12,
        phase__forward_ns=[40 * MS] * 12,
        io__read_bytes=[3e6] * 12,
    )
    return write(path, table, level="procfs", capabilities=NO_EBPF, end={"outcome": "ok"})


def with_tables(path):
    names = [replace(USER, name=f"{n}{LONG}", row_count=10 + n) for n in range(12)]
    rows = [
        (step, table, {"lookup_count": 8, "bytes": 512.0})
        for step in range(12)
        for table in range(12)
    ]
    facts = info(tables=(*names, ITEM), capabilities={"embeddings": "on"}, host=HOST)
    table = batch(range(12), step__duration_ns=[1e9] * 12, phase__forward_ns=[1e9] * 12)
    for sink in (RunLogSink(path, 0), EmbeddingsSink(path, 0)):
        sink.begin(facts)
        sink.write(replace(table, lookups=lookup_rows(*rows)))
        sink.end({"outcome": "ok"})
    return path


def of_64_ranks(path):
    for rank in range(64):
        table = batch(
            range(12),
            step__duration_ns=[(100 + rank % 7) * MS] * 12,
            phase__backward_ns=[(100 + rank % 7) * MS] * 12,
            ranks__wait_ns=[(1.0 if rank == 3 else 60.0) * MS] * 12,
        )
        write(path, table, rank, {"outcome": "ok"}, world_size=64)
    return path


def with_gpu(path):
    table = batch(
        range(12),
        step__duration_ns=[100 * MS] * 12,
        phase__forward_ns=[100 * MS] * 12,
        gpu__sm_active_ratio=[0.5] * 12,
        gpu__power_w=[650.0] * 12,
        gpu__throttle_thermal_ratio=[0.03] * 12,
    )
    device = {"uuid": "GPU-1", "name": "A board", "gpm": "on"}
    return write(path, table, gpu=device, end={"outcome": "ok"})


def without_steps(path):
    table = batch([SETUP], step__duration_ns=[5e9], loader__wait_ns=[1e9])
    return write(path, table, end={"outcome": "ok"})


def damaged(path):
    loader_bound(path)
    (path / "rank=0" / "latency.parquet").write_bytes(b"")
    (path / "rank=0" / "kernel-00000.parquet").write_bytes(b"PAR1")
    return path


def killed(path):
    return loader_bound(path, end=None)


def on_a_full_disk(path):
    lost = {"lost_steps": {"runlog": 1}, "lost_because": {"runlog": "ENOSPC: No space left"}}
    return loader_bound(path, end={"outcome": "ok", **lost})


def with_one_step(path):
    return write(path, batch([0], step__duration_ns=[1e9], loader__wait_ns=[1e9]))


def with_names_of_any_kind(path):
    host = HOST | {"hostname": "\x1b[31m" + LONG, "kernel": "\u202e\n" + LONG}
    outcome = {"outcome": "exception: " + LONG, "losses": {LONG: 1, "requests": 1}}
    return loader_bound(path, host=host, end=outcome, capabilities={LONG: LONG, "\x1b": "x"})


def busy(path):
    return write(path, busy_run(300), end={"outcome": "ok"}, settings={"loader_workers": 4})


RUNS = (
    loader_bound,
    compute_bound,
    without_ebpf,
    with_tables,
    of_64_ranks,
    with_gpu,
    without_steps,
    damaged,
    killed,
    on_a_full_disk,
    with_one_step,
    with_names_of_any_kind,
    busy,
)


def every_part(parts):
    """The parts of a comparison, and those of parts."""
    for one in parts:
        yield one
        yield from every_part(one["parts"])


def said(capsys, *words: object) -> str:
    """What a command prints that works."""
    assert cli.main(list(map(str, words))) == 0
    return capsys.readouterr().out
