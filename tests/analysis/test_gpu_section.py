"""The GPU on the report's page."""

from __future__ import annotations

import pytest

from tests.samples import batch, info
from trainobs.analysis.summary import summarize
from trainobs.core.errors import RunLogError
from trainobs.report.full import render
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink

DEVICE = {"uuid": "GPU-1", "name": "A board", "driver": "999.1", "gpm": "on"}


def page_of(path, gpu=DEVICE, **columns) -> list[str]:
    """The GPU's section of a run of two steps of a second."""
    sink = RunLogSink(path, 0)
    sink.begin(info(gpu=gpu))
    sink.write(batch([0, 1], step__duration_ns=[1e9, 1e9], **columns))
    sink.end({"outcome": "ok"})
    sections = render(summarize(RunLog.open(path))).split("\n\n")
    return next((s.splitlines() for s in sections if s.startswith("GPU ")), [])


def test_it_has_what_was_measured_each_in_its_unit(tmp_path):
    lines = page_of(
        tmp_path / "run",
        gpu__sm_active_ratio=[0.25, 0.75],
        gpu__sm_clock_mhz=[1700, 1755],
        gpu__power_w=[600, 700],
        gpu__temperature_c=[50, 60],
        gpu__memory_used_bytes=[4e9, 4e9],
        gpu__energy_mj=[600_000, 700_000],
        gpu__forward_ns=[2e8, 4e8],
        gpu__window_ns=[1e9, 1.1e9],
    )
    told = [" ".join(line.split()) for line in lines]
    assert told == [
        "GPU mean p95 highest",
        "A board, GPU-1, driver 999.1",
        "forward, on the GPU 300 ms 390 ms 400 ms",
        "multiprocessors at work (cycles) 50 % 73 % 75 %",
        "clock of the multiprocessors 1728 MHz 1752 MHz 1755 MHz",
        "memory in use, by all processes 4 GB 4 GB 4 GB",
        "temperature 55 C 60 C 60 C",
        "power of the board 650 W 695 W 700 W",
        "energy: per step, in all 650 J 1.3 kJ",
        "read over windows of 1.05 s; shorter steps share a window",
    ]
    assert max(map(len, lines)) <= 100


def test_without_values_there_is_no_section(tmp_path):
    why = {"uuid": "GPU-1", "gpm": "NVML: no library"}
    assert page_of(tmp_path / "run", gpu=why) == []


def test_why_there_are_no_values_is_told(tmp_path):
    page_of(tmp_path / "run", gpu={"uuid": "GPU-1", "gpm": "NVML: no library"})
    page = render(summarize(RunLog.open(tmp_path / "run")))
    assert "Probes that were off\n  gpu activity: NVML: no library" in page


def test_a_run_of_before_there_was_a_gpu_is_read(write_run):
    path = write_run()
    file = path / "run.json"
    file.write_text(file.read_text().replace('"gpu": {}', '"other": {}'))
    assert summarize(RunLog.open(path))["gpu"] == {}


@pytest.mark.parametrize("gpu", ["[]", '{"uuid": 7}'])
def test_a_damaged_field_is_told(write_run, gpu):
    path = write_run()
    file = path / "run.json"
    file.write_text(file.read_text().replace('"gpu": {}', f'"gpu": {gpu}'))
    with pytest.raises(RunLogError, match="gpu"):
        RunLog.open(path)
