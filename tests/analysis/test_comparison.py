"""Two sides of run logs: what is told of their difference, by the API and by the commands."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from tests.analysis.runs import every_part, said
from tests.samples import batch, busy_run, cells, info
from trainobs import cli
from trainobs.analysis.comparison.two_sides import compare
from trainobs.core.abi import FileClass, Op, Role
from trainobs.core.errors import TrainobsError
from trainobs.core.records import SETUP
from trainobs.report import comparison
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink

MS = 1e6
BEGAN = count(1)
WAIT = {"loader__compute_ns": 0.8, "loader__handover_ns": 0.2}
NO_WAIT = dict.fromkeys(("loader__device_ns", "loader__cpu_wait_ns", "loader__sleep_ns"), 0.0)


def columns(wait_ms: float, forward_ms: float, steps: int = 100, **more: object) -> dict:
    """Steps that wait for the loader and compute, each 1 % off, with 1 ms of everything else."""
    random = np.random.default_rng(0)
    wait, forward = (x * MS * random.normal(1, 0.01, steps) for x in (wait_ms, forward_ms))
    other = np.full(steps, MS)
    given = {name: np.asarray(values) for name, values in more.items()}
    extra = sum(values for name, values in given.items() if name.startswith("phase__"))
    parts = {name: share * wait for name, share in (WAIT | NO_WAIT).items()}
    return {
        "step__duration_ns": wait + forward + other + extra,
        "loader__wait_ns": wait,
        "phase__forward_ns": forward,
        "phase__other_ns": other,
        "sched__others_cpu_ratio": np.zeros(steps),
        **parts,
        **given,
    }


@pytest.fixture
def write(tmp_path):
    """Writes a run that began when no other did."""

    def write(name, steps=None, *, level="ebpf", rank=0, **facts):
        sink = RunLogSink(tmp_path / name, rank)
        about = info(level, rank=rank, **facts)
        about.clock = {"monotonic_ns": 0, "wall_ns": next(BEGAN)}
        sink.begin(about)
        if steps is None:
            steps = columns(10, 20)
        if isinstance(steps, dict):
            steps = batch([SETUP, *range(len(steps["step__duration_ns"]))], **_with_setup(steps))
        sink.write(steps)
        sink.end({"outcome": "ok"})
        return tmp_path / name

    return write


def _with_setup(steps):
    return {name: [0.0, *values] for name, values in steps.items()}


def compared(old, new):
    sides = [side if isinstance(side, list) else [side] for side in (old, new)]
    return compare(*([RunLog.open(run) for run in side] for side in sides))


def part(found, name):
    (one,) = (one for one in every_part(found["parts"]) if one["name"] == name)
    return one


def refused(capsys, *words):
    assert cli.main(list(map(str, words))) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 3
    return error


def test_the_first_line_answers_and_the_loader_is_what_changed(write, capsys):
    old, new = write("old", columns(10, 20)), write("new", columns(0.2, 20))
    found = compared(old, new)
    assert found["answer"] == "faster"
    assert found["gain"] == pytest.approx(31 / 21.2, rel=0.01)
    assert found["gain_interval"][0] <= found["these_runs"][0] < found["these_runs"][1]
    assert part(found, "loader/wait_ns")["claim"]
    assert part(found, "loader/compute_ns")["difference_ns"] == pytest.approx(-7.84 * MS, rel=0.01)
    assert not part(found, "phase/forward_ns")["claim"]
    page = said(capsys, "compare", old, new).splitlines()
    assert page[0].startswith("B is 1.46 times as fast as A (1.35 to 1.58)")
    assert "of these two alone" in page[1]
    (wait,) = (line for line in page if "waiting for data" in line)
    assert wait.split()[3:9] == ["10.0", "ms", "200", "us", "-9.81", "ms"]
    (forward,) = (line for line in page if "forward" in line)
    assert forward.endswith("within noise")
    back = said(capsys, "compare", new, old).splitlines()[0]
    assert back.startswith("B is slower: a step takes 1.46 times as long as in A (1.35 to 1.58)")


def test_equal_runs_are_within_noise(write, capsys):
    page = said(capsys, "compare", write("a"), write("b")).splitlines()
    assert page[0].startswith("No difference is shown: B is 0.93 to 1.08 times as fast as A")
    assert "nothing was predicted: nothing that is known has changed" in page[-1]


@pytest.mark.parametrize("a_side", [1, 3])
def test_parts_add_up_to_the_step_and_to_its_difference(write, a_side):
    sides = [
        [write(f"{name}{i}", busy_run(200, seed=10 * i + len(name))) for i in range(a_side)]
        for name in ("a", "bb")
    ]
    found = compared(*sides)
    for side in (0, 1):
        total = sum(one["ns"][side] for one in found["parts"])
        assert total == pytest.approx(found["step_ns"][side], rel=1e-12)
    for one in every_part(found["parts"]):
        assert one["difference_ns"] == pytest.approx(one["ns"][1] - one["ns"][0])
        if one["parts"]:
            for side in (0, 1):
                inner = sum(of["ns"][side] for of in one["parts"])
                assert inner == pytest.approx(one["ns"][side], rel=1e-12)
    assert {"loader/device_ns", "phase/validation_ns", "phase/other_ns"} <= {
        one["name"] for one in every_part(found["parts"])
    }


def test_what_starts_loaders_is_no_hand_over_where_both_sides_know_it(write):
    starting = write("a", columns(10, 20, loader__start_stop_ns=[1.5 * MS] * 100))
    found = compared(starting, write("b", columns(10, 20, loader__start_stop_ns=[0.0] * 100)))
    assert part(found, "loader/start_stop_ns")["ns"] == pytest.approx([1.5 * MS, 0])
    assert part(found, "loader/handover_ns")["ns"] == pytest.approx([0.5 * MS, 2 * MS], rel=0.01)
    found = compared(starting, write("old", columns(10, 20)))
    assert part(found, "loader/handover_ns")["ns"] == pytest.approx([2 * MS, 2 * MS], rel=0.01)
    assert "loader/start_stop_ns" not in {one["name"] for one in every_part(found["parts"])}


def test_the_step_is_the_mean_of_all_but_the_first(write):
    first = columns(10, 20)
    first["step__duration_ns"][0] += 1e12
    first["phase__other_ns"][0] += 1e12
    found = compared(write("a", first), write("b"))
    expected = np.mean(columns(10, 20)["step__duration_ns"][1:])
    assert found["step_ns"] == pytest.approx([expected, expected], rel=1e-9)


def test_report_after_is_the_same_as_compare(write, capsys):
    old, new = write("old"), write("new", columns(5, 20))
    for form in ([], ["--json"]):
        of_report = said(capsys, "report", new, "--after", old, *form)
        assert of_report == said(capsys, "compare", old, new, *form)
        assert of_report == said(capsys, "compare", old, "--", new, *form)
        assert of_report == said(capsys, "compare", old, *form, "--", new)
        assert of_report == said(capsys, "compare", old, "--", *form, new)


def test_several_runs_a_side_are_the_units(write, capsys):
    def of_side(name, *waits):
        return [write(f"{name}{i}", columns(wait, 20)) for i, wait in enumerate(waits)]

    old, new = of_side("a", 10, 10.3, 9.8), of_side("b", 5, 5.2, 4.9)
    found = json.loads(said(capsys, "compare", *old, "--", *new, "--json"))
    assert (found["answer"], found["units"], found["these_runs"]) == ("faster", "runs", None)
    assert found == json.loads(said(capsys, "compare", "--json", *old, "--", *new))
    page = said(capsys, "compare", *old, "--", *new)
    assert "of these two alone" not in page
    assert f"99 + 99 + 99 steps: {old[0]} and 2 more" in page
    wide = compared(of_side("c", 4, 10, 16), of_side("d", 3, 8, 14))
    assert wide["answer"] == "none"


@pytest.mark.parametrize(
    "words", ["a b c", "a", "-- a", "a --", "a -- b -- c", "--", "a b --", "--json a -- --"]
)
def test_sides_that_are_not_told_apart_are_refused_in_three_lines(words, capsys):
    told = refused(capsys, "compare", *words.split())
    assert "It is not clear which runs to compare with which." in told
    assert "1 runs" not in told


def test_runs_that_nothing_divides_are_counted(capsys):
    assert "found: 3 runs without `--`\n" in refused(capsys, "compare", "a", "b", "c")
    assert "between each `--`: 1 run, then 0 runs\n" in refused(capsys, "compare", "a", "--")


def test_a_side_without_runs_is_refused_by_the_function_too(write):
    with pytest.raises(TrainobsError, match="no run for B"):
        compare([RunLog.open(write("a"))], [])


def test_the_same_run_twice_is_told(write, tmp_path, capsys):
    run, other = write("run"), write("other")
    shutil.copytree(run, tmp_path / "copy")
    assert "are the same run" in refused(capsys, "compare", run, run)
    assert "are the same run" in refused(capsys, "compare", run, tmp_path / "copy")
    assert "are the same run" in refused(capsys, "compare", run, run, "--", other)
    log = RunLog.open(run)
    with pytest.raises(TrainobsError, match="are the same run"):
        compare([log], [log])


def test_runs_without_steps_are_refused_and_short_ones_are_unknown(write, capsys):
    run = write("run")
    for name, steps in (
        ("none", batch([SETUP], step__duration_ns=[1e9])),
        ("one", columns(1, 1, 1)),
    ):
        assert "fewer than two steps" in refused(capsys, "compare", run, write(name, steps))
    page = said(capsys, "compare", run, write("short", columns(10, 20, 9)))
    assert page.startswith("Whether B is faster is unknown: it takes 20 steps after the first; A")
    assert "unknown" in page.split("Where a step went")[1]


def test_why_was_waited_is_unknown_where_one_side_does_not_tell(write, capsys):
    timing = {name: x for name, x in columns(5, 20).items() if name not in WAIT | NO_WAIT}
    old, new = write("old"), write("new", timing, level="timing")
    found = compared(old, new)
    assert part(found, "loader/wait_ns")["parts"] == []
    assert part(found, "loader/wait_ns")["claim"]
    assert found["changes"] == {"level of observation": ["ebpf", "timing"]}
    page = said(capsys, "compare", old, new)
    assert "what waiting for data was for is known of A alone" in page
    assert "a replay does not tell what a change of level of observation does" in page


def test_a_phase_that_one_side_does_not_mark_is_counted_in_the_rest_of_both(write, capsys):
    old = write("old", columns(10, 20, phase__validation_ns=np.full(100, 4 * MS)))
    new = write("new", columns(10, 20) | {"phase__other_ns": np.full(100, 5 * MS)})
    found = compared(old, new)
    assert part(found, "phase/other_ns")["ns"] == pytest.approx([5 * MS, 5 * MS])
    assert "validation is marked in A alone" in found["notes"][0]
    assert "validation is marked in A alone" in said(capsys, "compare", old, new)


def test_phases_with_names_of_ones_own_are_parts(write):
    def steps(augment_ms):
        made = batch([SETUP, *range(100)], **_with_setup(columns(10, 20)))
        augment = np.full(101, augment_ms * MS)
        step = made.columns["step/duration_ns"] + augment
        more = {"phase/augment_ns": augment, "step/duration_ns": step}
        return replace(made, columns=made.columns | more)

    old, new = (write(f"{ms} ms", steps(ms), phases=["augment"]) for ms in (9, 3))
    without = write("without")
    augment = part(compared(old, new), "phase/augment_ns")
    assert (augment["label"], augment["claim"]) == ("augment", True)
    assert augment["ns"] == pytest.approx([9 * MS, 3 * MS])
    found = compared(old, without)
    assert part(found, "phase/other_ns")["ns"] == pytest.approx([10 * MS, MS])
    assert "augment is marked in A alone" in found["notes"][0]


def test_steps_whose_batches_are_unknown_are_a_part_of_their_own(write):
    some = columns(10, 20)
    for name in WAIT | NO_WAIT:
        some[name][50:] = np.nan
    found = compared(write("a", some), write("b"))
    assert part(found, "loader/unknown_ns")["ns"] == pytest.approx([5 * MS, 0], rel=0.02, abs=1e-3)


def test_files_that_cannot_be_read_are_told(write, capsys):
    old, new = write("old"), write("new")
    damaged = new / "rank=0" / "kernel-00000.parquet"
    damaged.write_bytes(b"PAR1")
    page = " ".join(said(capsys, "compare", old, new).split())  # lines end anywhere
    assert f"files of {new} that are gone or cannot be read: 1" in page
    assert "missing" not in page
    (new / "rank=0" / "steps-00000.parquet").write_bytes(b"")
    told = " ".join(refused(capsys, "compare", old, new).split())
    assert "has fewer than two steps: 1 file of steps cannot be read; the reason is in" in told


def test_ranks_and_loaders_and_conditions_are_told(write, capsys):
    loader = {"serial": 1, "workers": 2, "prefetch_factor": 2, "batch_size": 8}
    facts = {"settings": {"loader_workers": 2}, "loaders": [loader]}
    old = write("old", columns(10, 20, sched__others_cpu_ratio=np.full(100, 0.05)), **facts)
    write("new", columns(10, 20), rank=1, world_size=2, **facts)
    validation = {**loader, "workers": 4}
    facts["loaders"] = [loader, validation]
    busy = columns(10, 20, sched__others_cpu_ratio=np.full(100, 0.4))
    new = write("new", busy, world_size=2, host={"hostname": "there"}, **facts)
    found = compared(old, new)
    assert found["changes"]["loaders"] == [1, 2]
    assert found["changes"]["world_size"] == [1, 2]
    assert found["changes"]["CPU taken by others"] == [0.05, 0.4]
    assert "host" not in found["changes"]  # the old run does not tell its own
    assert [one["values"] for one in found["conditions"]] == [pytest.approx([0.05, 0.4])]
    page = said(capsys, "compare", old, new)
    assert "of each run its lowest rank is compared" in page
    assert "other processes took more of the CPUs of B: a difference may be theirs" in page


def test_data_in_memory_is_told_of_the_steps_that_are_compared(write):
    def run(name, first, later):
        """Steps that read 8 KB, of which some are not in memory."""
        misses = [first] + 99 * [later]
        of_data = FileClass.DATA, Role.MAIN
        reads = [(row, Op.CACHE_READ, *of_data, {"count": 1, "bytes": 8192}) for row in range(100)]
        reads += [(row, Op.CACHE_MISS, *of_data, {"bytes": n}) for row, n in enumerate(misses)]
        ratios = [1 - n / 8192 for n in misses]
        steps = batch(range(100), cells(100, *reads), **columns(10, 20, cache__hit_ratio=ratios))
        return write(name, steps)

    found = compared(run("old", 0, 4096), run("new", 8192, 0))["conditions"]
    (told,) = (one["values"] for one in found if one["name"] == "cache/hit_ratio")
    assert told == [0.5, 1.0]


def test_data_behind_hints_is_neither_found_in_memory_nor_told_to_be_cold(write):
    def run(name, op, filled):
        of_data = FileClass.DATA, Role.MAIN
        reads = [(row, Op.CACHE_READ, *of_data, {"count": 1, "bytes": 8192}) for row in range(100)]
        fills = [(row, op, *of_data, {"count": 1, "bytes": filled}) for row in range(100)]
        known = {name: 100 * [0.0] for name in ("cache__miss_bytes", "cache__hint_bytes")}
        known |= {f"cache__{'hint' if op is Op.HINT else 'miss'}_bytes": 100 * [float(filled)]}
        known |= {"io__data_read_bytes": 100 * [8192.0], "cache__hit_ratio": 100 * [0.5]}
        steps = batch(range(100), cells(100, *reads, *fills), **columns(10, 20, **known))
        return write(name, steps)

    warm, missed = run("warm", Op.CACHE_MISS, 0), run("missed", Op.CACHE_MISS, 8192)
    hinted = run("hinted", Op.HINT, 8192)
    for cold, ratio, told in ((missed, 0.0, True), (hinted, None, False)):
        found = compared(cold, warm)
        (values,) = (c["values"] for c in found["conditions"] if c["name"] == "cache/hit_ratio")
        assert values == [ratio, 1.0]
        assert ("data from a device" in found["changes"]) is told


def test_runs_of_a_side_that_differ_are_told(write, capsys):
    side = [write(f"a{n}", settings={"loader_workers": 1, "torch_threads": n}) for n in (1, 2)]
    page = said(capsys, "compare", *side, "--", write("b"))
    assert "the runs of A are taken as equal, but differ in torch_threads" in page


@pytest.mark.parametrize("name", ["\x1b[31mred", "‮txt.exe", "a\nb", "<script>", "\udcff"])
def test_names_of_runs_are_shown_as_text(write, capsys, name):
    run = write(name, settings={"torch_threads": name})
    other = write("other", settings={"torch_threads": 1})
    page = said(capsys, "compare", run, other)
    assert all(line.isprintable() for line in page.splitlines())
    assert json.loads(said(capsys, "compare", run, other, "--json"))["runs"]["A"]
    refused(capsys, "compare", run, run)


def test_a_page_fits_a_screen(write, capsys):
    loader = {"serial": 1, "workers": 2, "prefetch_factor": 2, "batch_size": 8}
    runs = []
    for name, seed in (("a", 1), ("b", 2)):
        steps = busy_run(300, seed)
        more = {"sched/others_cpu_ratio": 0.02, "pressure/cpu_ns": 1e6, "pressure/io_ns": 1e5}
        steps = replace(
            steps, columns=steps.columns | {k: np.full(300, x) for k, x in more.items()}
        )
        facts = {"loaders": [loader | {"workers": seed}], "host": {"kernel": f"6.{seed}"}}
        runs.append(write(name, steps, settings={"loader_workers": seed}, **facts))
    lines = said(capsys, "compare", *runs).splitlines()
    assert len(lines) <= 30
    for line in lines:
        assert str(runs[0].parent) in line or len(line) <= 100


def test_an_interval_that_tells_nothing_is_not_told():
    found = {"answer": "none", "gain": 1.0, "gain_interval": (0.004, 279.1), "per": "step"}
    assert "too few" in comparison._sentence(found)
    assert "0.90 to 1.20" in comparison._sentence({**found, "gain_interval": (0.9, 1.2)})


def test_steps_that_are_different_things_are_not_compared(write):
    def seen(steps):
        events = {"backward": 1, "optimizer": steps, "fetch": 1}
        return {"torch": "2.13", "attached": {"events_per_step": events}}

    old, new = (write(f"{n}", columns(1, 2), settings=seen(n)) for n in (1, 12))
    found = compared(old, new)
    assert found["why_unknown"].endswith("one of B has 12 optimizer steps")
    assert found["gain"] is found["these_runs"] is None
    assert not any(part["claim"] for part in found["parts"])
