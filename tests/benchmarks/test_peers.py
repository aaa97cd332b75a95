"""benchmarks/peers: the harness measures real runs, and the tables say what the JSON holds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.peers import processes, tables
from benchmarks.peers.tools import TOOLS, Tool

ROOT = Path(__file__).parents[2]


def cell(tool, mean_step_us, loop="light", **other):
    return {
        "loop": loop,
        "tool": tool,
        "mean_step_us": mean_step_us,
        "median_step_us": 0.9 * mean_step_us,
        "cpu_us_per_step": 2 * mean_step_us,
        "peak_rss_bytes": 300 * 2**20,
        "bytes_per_1000_steps": 2048,
        "outside_s": 4.0,
        **other,
    }


@pytest.fixture
def results():
    return {
        "date": "2026-01-02",
        "machine": {"usable_cpu_count": 2, "kernel": "6.18", "python": "3.11"},
        "versions": {"torch": "2.13.0"},
        "load_before": 0.1,
        "missing": {"perf_trace": "no perf on the PATH"},
        "minutes": 1.0,
        "rounds": [
            [
                cell("bare", bare),
                cell("trainobs", 1.02 * bare),
                cell("device_stats", 1.01 * bare),
                cell("simple_profiler", 1.001 * bare),
                {"loop": "light", "tool": "strace", "failed": "exit status 1: not allowed"},
            ]
            for bare in (1000, 3000)
        ],
    }


def row(text, begin):
    """Cells of the first row whose first cell is `begin`."""
    lines = (line.strip("| ").split(" | ") for line in text.splitlines())
    return next(cells for cells in lines if cells[0] == begin)


def test_a_ratio_is_that_of_the_same_round(results):
    # The machine was three times as slow in the second round: a ratio of medians would not be 1.02.
    results["rounds"][1].pop(0)
    results["rounds"].append([cell("bare", 500), cell("trainobs", 520)])
    assert tables.ratios(results, "light", "trainobs", tables.TIME) == [1.02, 1.04]
    assert row(tables.render(results), "trainobs")[1] == "1.030 (1.025 to 1.035)"


def test_the_two_bare_runs_of_a_round_are_averaged_and_compared_with_each_other(results):
    del results["rounds"][1]
    results["rounds"][0].append(cell("again", 1040))
    assert tables.ratios(results, "light", "trainobs", tables.TIME) == [1.0]
    assert tables.ratios(results, "light", "again", tables.TIME) == [1.04]
    assert tables.ratios(results, "light", "bare", tables.TIME) == [1.0]
    assert row(tables.render(results), "no observer, again")[1] == "1.040"


def test_a_tool_that_is_missing_or_fails_is_listed_with_why(results):
    text = tables.render(results)
    assert row(text, "`perf trace -s`")[1] == "not run: no perf on the PATH"
    assert row(text, "`strace -f -c`")[1] == "failed: exit status 1: not allowed"


def test_the_verdict_compares_only_tools_that_report_on_every_step(results):
    for cells, bare in zip(results["rounds"], (1000, 3000), strict=True):
        cells.append(cell("dftracer", 1.011 * bare))
        cells.append(cell("traceml", 1.021 * bare, cpu_us_per_step=2.01 * bare))
    text = tables.render(results)
    assert (
        "Light loop, step time: trainobs 1.020, aim 1.03 met. Of the 2 others that report on every "
        "step, DFTracer (1.011) cost less beyond chance." in text
    )
    assert (
        "Light loop, CPU time a step: trainobs 1.020, aim 1.03 met. Of the 2 others that report on "
        "every step, TraceML (1.005) and DFTracer (1.011) cost less beyond chance." in text
    )
    for cells in results["rounds"]:
        cells[1]["mean_step_us"] *= 1.02
    assert "step time: trainobs 1.040, aim 1.03 **missed**." in tables.render(results)


def test_who_costs_less_by_chance_is_not_said_to(results):
    for cells, ratio in zip(results["rounds"], (1.0, 1.05), strict=True):
        cells.append(cell("dftracer", ratio * cells[0]["mean_step_us"]))
    results["rounds"][1][1]["mean_step_us"] *= 1.01
    assert "report on every step, none cost less beyond chance." in tables.render(results)


def test_an_aim_is_not_decided_where_chance_moves_more_than_is_at_stake(results):
    for cells in results["rounds"]:
        cells.append(cell("again", cells[0]["mean_step_us"] * 1.02))
    assert "aim 1.03 met." in tables.render(results)
    for cells in results["rounds"]:
        cells[-1]["mean_step_us"] *= 1.02
    assert (
        "aim 1.03 **not decided**, since the bare loop differs from itself by 0.040."
        in tables.render(results)
    )


def test_an_aim_is_not_decided_between_the_quartiles_of_its_rounds(results):
    results["rounds"][1][1]["mean_step_us"] *= 1.05
    results["rounds"][0][1]["mean_step_us"] *= 0.99
    assert (
        "trainobs 1.040, aim 1.03 **not decided**, since half of the rounds lie between 1.025 and "
        "1.056." in tables.render(results)
    )


def test_a_table_a_loop_tells_what_the_tools_used(results):
    results["rounds"][0].append(cell("bare", 30_000, loop="heavy"))
    results["rounds"][0].append(
        cell("trainobs", 30_300, loop="heavy", median_step_us=27_540, outside_s=5.25)
    )
    text = tables.render(results)
    assert row(text, "light loop")[1:] == [
        "median step, ratio",
        "CPU a step",
        "peak RSS",
        "written in 1,000 steps",
        "start and end",
    ]
    heavy = text[text.index("| heavy loop |") :]
    assert row(heavy, "no observer")[1:] == ["1.000", "60.00 ms", "300 MiB", "2 KiB", "4.0 s"]
    assert row(heavy, "trainobs")[1:] == ["1.020", "60.60 ms", "300 MiB", "2 KiB", "5.2 s"]


def test_a_machine_that_was_not_quiet_is_said_to_be(results):
    assert "Not a quiet machine" not in tables.render(results)
    results["load_before"] = 2.5
    assert "**Not a quiet machine**" in tables.render(results)


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def test_the_page_is_filled_between_its_markers(results, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "PAGE", tmp_path / "peers.md")
    tables.PAGE.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    tables.update(results, tmp_path / "peers-2026-01-02.json")
    text = tables.PAGE.read_text()
    assert text.startswith(f"before\n{BEGIN}\nMeasured 2026-01-02")
    assert text.endswith(f"|\n{END}\nafter\n")
    assert "[peers-2026-01-02.json](../benchmarks/results/peers-2026-01-02.json)" in text


def test_a_tool_that_left_no_proof_has_not_observed(tmp_path):
    tool = Tool("x", "y", proof="*/report", mark=b"calls")
    assert not tool.has_observed(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "report").write_text("nothing")
    assert not tool.has_observed(tmp_path)
    (tmp_path / "run" / "report").write_text("3 calls")
    assert tool.has_observed(tmp_path)


@pytest.mark.parametrize(
    ("tool", "why"),
    [
        (Tool("x", "y"), ""),
        (Tool("x", "y", packages=("no-such",)), "the package no-such is not installed"),
        (Tool("x", "y", program="no-such"), "no no-such on the PATH"),
        (Tool("x", "y", trial=("sh", "-c", "echo denied >&2; exit 3")), "denied"),
        (Tool("x", "y", trial=("false",)), "exit status 1"),
    ],
)
def test_why_a_tool_cannot_run(tool, why):
    assert tool.missing() == why


def test_the_cpu_time_is_that_of_all_processes_below_the_runner(monkeypatch):
    monkeypatch.setenv(processes.RUNNER, str(os.getpid()))
    tree = processes.Tree()
    before = tree.cpu_s()
    busy = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    # Of a grandchild, whose time is not in its parent's as long as it lives.
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    command = [sys.executable, "-c", parent, busy]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        used = tree.cpu_s() - before
        child.communicate(b"\n")
    assert 0.45 <= used < 2  # the kernel tells it in hundredths of a second
    assert tree.cpu_s() - before < 0.4, "what has ended is no longer below the runner"


def test_what_a_run_leaves_behind_is_ended():
    # In a process of its own, since whatever is below it is killed.
    script = (
        "import subprocess\n"
        "from benchmarks.peers.processes import adopt_orphans, end_descendants\n"
        "adopt_orphans()\n"
        "subprocess.run(['sh', '-c', 'sleep 60 >/dev/null & echo $!'], check=True)\n"
        "end_descendants(patience_s=0.2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert not Path("/proc", done.stdout.strip()).exists()


def test_the_harness_runs_a_loop_under_two_tools(tmp_path):
    output = tmp_path / "peers.json"
    command = [sys.executable, "-m", "benchmarks.peers.run", "--quick", "--loops", "light"]
    begin = time.monotonic()
    done = subprocess.run(
        [*command, "--tools", "device_stats", "--output", output],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.monotonic() - begin
    results = json.loads(output.read_text())
    (cells,) = results["rounds"]
    found = {cell["tool"]: cell for cell in cells}
    assert found.keys() == {"bare", "device_stats"}
    for measured in found.values():
        # Within the window of half a second, the last step of which may end late.
        assert 0.5 <= measured["steps"] * measured["mean_step_us"] / 1e6 < 5
        assert measured["cpu_us_per_step"] > 0
        assert measured["peak_rss_bytes"] > 100 * 2**20
        assert 0 < measured["outside_s"] < seconds
    assert found["bare"]["bytes_per_1000_steps"] == 0
    assert found["device_stats"]["bytes_per_1000_steps"] > 1000
    assert tables.render(results) in done.stdout
    assert "failed" not in done.stdout


def test_every_tool_says_what_it_tells_and_how_to_see_that_it_did():
    for name, tool in TOOLS.items():
        if name not in ("bare", "again"):
            assert tool.tells, name
            assert tool.proof, name
            assert tool.mark, name
