"""Real faults, really injected, and the verdicts on them; and what the injectors leave behind."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from trainobs.verdict.verdict import Cause

SUITE = Path(__file__).parents[2] / "benchmarks" / "verdicts.py"


@pytest.fixture
def faults(monkeypatch):
    """Imports a module of the suite."""
    monkeypatch.syspath_prepend(SUITE.parent)
    return lambda name: importlib.import_module(f"faults.{name}")


def test_the_quick_suite_gets_every_verdict_right(tmp_path):
    command = [sys.executable, SUITE, "--quick", "--json", tmp_path / "found.json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (tmp_path / "found.json").exists(), done.stdout + done.stderr
    cases = json.loads((tmp_path / "found.json").read_text())["cases"]
    assert cases.keys() == {
        "healthy_light_loader",
        "large_checkpoints",
        "frequent_gc",
        "program_one_worker",
    }
    results = {name: (case["result"], case["reason"]) for name, case in cases.items()}
    # Which part of a checkpoint is slow depends on the disk, and may be no part alone.
    assert {result for result, _ in results.values()} <= {"right", "vague", "disturbed"}, results
    assert done.returncode == 0


def test_kept_runs_are_judged_again_without_running(tmp_path):
    command = [sys.executable, SUITE, "--only", "healthy_2ms"]
    kept = tmp_path / "kept"
    subprocess.run([*command, "--keep", kept], capture_output=True, check=False)
    before = sorted(kept.rglob("*"))
    again = [*command, "--judge", kept, "--json", tmp_path / "found.json"]
    subprocess.run(again, capture_output=True, check=False)
    found = json.loads((tmp_path / "found.json").read_text())["cases"]["healthy_2ms"]
    assert found["verdict"]["steps"] == 399
    assert 0.5 < found["step_ms"] < 50
    assert sorted(kept.rglob("*")) == before


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_injection_leaves_no_group_and_no_process(signum):
    if os.geteuid():
        pytest.skip("control groups need root")
    suite = subprocess.Popen(
        [sys.executable, SUITE, "--only", "slow_storage"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        groups = _wait_for_groups(suite)
        suite.send_signal(signum)
        output, _ = suite.communicate()
    finally:
        suite.kill()
        suite.wait()
    if groups is None:
        pytest.skip(f"no control group for I/O here: {output.decode()}")
    assert suite.returncode != 0
    assert not any(folder.exists() for folder in groups)


def _wait_for_groups(suite: subprocess.Popen[bytes]) -> list[Path] | None:
    """Groups that the suite has made, once there is one; None if it ended without."""
    while suite.poll() is None:
        found = list(Path("/sys/fs/cgroup").glob(f"**/trainobs-fault-{suite.pid}"))
        if found:
            time.sleep(1.0)  # until its job is under way
            return found
        time.sleep(0.05)
    return None


def verdict_of(kind: str | None, cause: str | None, **more: object) -> dict[str, object]:
    return {"kind": kind, "cause": cause, "advice": None, "abstained_because": None} | more


@pytest.mark.parametrize(
    ("case", "kind", "cause", "gain", "result"),
    [
        ("slow_storage", "loader-bound", "storage", 9.0, "right"),
        ("slow_storage", "loader-bound", None, 9.0, "vague"),
        ("slow_storage", "loader-bound", "fsync", 9.0, "wrong"),
        ("slow_storage", "compute-bound", None, 9.0, "wrong"),
        ("slow_storage", None, None, 9.0, "abstained"),
        ("slow_storage", "loader-bound", "storage", 1.1, "not injected"),
        ("printing_callback", None, None, 9.0, "right"),
        ("frequent_gc", "compute-bound", None, 9.0, "wrong"),  # as if nothing were wrong
        ("healthy_no_worker", "compute-bound", None, None, "right"),
        ("healthy_no_worker", "compute-bound", "waiting for a CPU", None, "wrong"),
        ("healthy_no_worker", "loader-bound", None, None, "wrong"),
    ],
)
def test_the_suite_calls_wrong_what_is_wrong(faults, case, kind, cause, gain, result):
    case = faults("cases").CASES[case]
    found, _ = faults("judge").result_of(case, verdict_of(kind, cause), gain, {})
    assert found == result


@pytest.mark.parametrize(
    ("kind", "cause", "result"),
    [
        ("loader-bound", Cause.FETCH_SLEEP.value, "vague"),
        ("loader-bound", "waiting for a CPU", "wrong"),
        ("asleep", "not known", "wrong"),
    ],
)
def test_where_no_probes_are_loaded_one_of_several_causes_is_vague(faults, kind, cause, result):
    case = faults("cases").CASES["slow_storage"]
    of = faults("judge").result_of
    assert of(case, verdict_of(kind, cause), 9.0, {})[0] == "wrong"
    found, _ = of(case.changed(unprivileged=True), verdict_of(kind, cause), 9.0, {})
    assert found == result


@pytest.mark.parametrize(
    ("advice", "result"),
    [
        ({}, "right"),
        ({"gain": 1.5}, "right"),
        ({"gain": 0.97}, "right"),
        ({"gain": 0.9}, "wrong"),
        ({"refused": "it changes nothing"}, "right"),
    ],
)
def test_advice_that_does_harm_is_wrong(faults, advice, result):
    case, verdict = faults("cases").CASES["slow_storage"], verdict_of("loader-bound", "storage")
    assert faults("judge").result_of(case, verdict, 9.0, advice)[0] == result


def keep(place: Path, step_ms: float, others_cpus: float = 0.0) -> None:
    """What a run leaves, without its run log."""
    place.mkdir(parents=True)
    facts = {"step_ms": step_ms, "middle_ms": 1.0, "wall_s": 1.0, "steps": 1, "setting": {}}
    (place / "kept.json").write_text(json.dumps(facts | {"others_cpus": others_cpus}))


def test_what_was_advised_is_found_and_its_gain_measured(faults, monkeypatch, tmp_path):
    judge, case = faults("judge"), faults("cases").CASES["far_one_worker"]
    advice = {"text": "num_workers=2", "change": {"workers": 2}, "gain": [1.5, 2.0]}
    verdict = verdict_of("loader-bound", faults("judge").Cause.LOADER_SLEEP.value, advice=advice)
    summary = {"level": "ebpf", "verdict": {"run": verdict}, "metrics": {}}
    monkeypatch.setattr(judge.RunLog, "open", lambda path: path)
    monkeypatch.setattr(judge, "summarize", lambda run: summary)
    keep(tmp_path / "fault", 80.0)
    setting, place = judge.advised(case, tmp_path)
    assert (setting, place.name) == (case.setting.changed(workers=2), "workers=2")
    keep(tmp_path / "remedy", 20.0)
    assert judge.judged(case, tmp_path)["followed"] == {
        "change": {"workers": 2},
        "predicted": [1.5, 2.0],
    }
    keep(place, 50.0)
    found = judge.judged(case, tmp_path)
    assert (found["remedy"]["gain"], found["followed"]["gain"]) == (4.0, 1.6)
    keep(judge.again(tmp_path / "fault"), 100.0)
    keep(judge.again(place), 70.0)
    assert judge.judged(case, tmp_path)["followed"]["gain"] == 1.5
    assert found["result"] == "right"


@pytest.mark.parametrize(
    ("change", "by_remedy"),
    [({"cpus": 2.0}, True), ({"gc": False}, True), ({"workers": 2}, False), ({"cached": 1}, False)],
)
def test_a_change_outside_the_training_or_in_its_code_is_made_by_the_remedy(
    faults, tmp_path, change, by_remedy
):
    keep(tmp_path / "fault", 80.0)
    keep(tmp_path / "remedy", 20.0)
    case = faults("cases").CASES["far_one_worker"]
    verdict = verdict_of("loader-bound", None, advice={"change": change, "gain": [2.0, None]})
    assert (faults("judge")._advice(case, verdict, tmp_path).get("gain") == 4.0) is by_remedy


def test_a_prediction_is_held_against_all_rounds(faults, monkeypatch, tmp_path):
    predictions = faults("predictions")
    told = SimpleNamespace(predict=lambda run_dir, change: SimpleNamespace(low=40e6, high=50e6))
    monkeypatch.setitem(sys.modules, "trainobs.analysis.whatif", told)
    for number, after_ms in enumerate((50.0, 60.0, 100.0)):
        pair = next(predictions.pairs(1))
        pair = predictions.Pair(pair.before, pair.change, number)
        for place, step_ms in zip(pair.places(tmp_path), (90.0, after_ms), strict=True):
            keep(place, step_ms)
    found = predictions.judge_pairs(tmp_path, rounds=3)
    assert [each["error"] for each in found] == pytest.approx([0.0, -1 / 6, -0.5])
    assert found[0]["allowed"] == pytest.approx(2 * 26.4575 / 70, rel=1e-4)
    assert [each["result"] for each in found] == ["good", "good", "good"]
    assert len(list(predictions.lines_of(found))) == 5


def test_advice_where_nothing_is_wrong_is_wrong(faults):
    verdict = verdict_of("compute-bound", None, advice="num_workers=2")
    case = faults("cases").CASES["healthy_no_worker"]
    assert faults("judge").result_of(case, verdict, None, {})[0] == "wrong"


@pytest.mark.parametrize(
    ("main_ns", "worker_ns", "others", "disturbed"),
    [(5, 0, 0.0, False), (0, 0, 0.9, False), (20, 0, 0.9, True), (0, 20, 0.9, True)],
)
def test_disturbed_is_who_lacked_cpus_that_others_had(
    faults, main_ns, worker_ns, others, disturbed
):
    judge = faults("judge")
    means = {
        "step/duration_ns": 100.0,
        "sched/main_runqueue_ns": main_ns,
        "sched/worker_runqueue_ns": worker_ns,
    }
    summary = {"metrics": {name: {"mean": mean} for name, mean in means.items()}}
    run = faults("runner").Kept(Path(), 1.0, 1.0, 1.0, 1, others * judge.CPUS, {})
    assert judge.is_disturbed(summary, run, None) == disturbed


@pytest.mark.parametrize(
    ("case", "change", "after"),
    [
        ("far_one_worker", {"workers": 2}, {"workers": 2}),
        ("far_one_worker", {"latency": 0.5}, {"item_sleep_ms": 2.0}),
        ("stat_storm", {"transform": 0.5}, {"stats": 1000}),
        ("slow_storage", {"cached": True}, {"cold": False}),
        ("slow_storage", {"device": 2}, {"read_mb_s": 20}),
        ("large_checkpoints", {"checkpoint": 0.0}, {"checkpoint": ""}),
        ("validation", {"validation": 0.5}, {"validate_every": 40}),
        ("validation", {"validation": 0}, {"validate_every": 0}),
    ],
)
def test_a_change_is_carried_out(faults, case, change, after):
    setting = faults("cases").CASES[case].setting
    assert faults("follow").followed(setting, change) == setting.changed(**after)


@pytest.mark.parametrize("change", [{"workers": 1}, {"checkpoint": 0.0}, {"colour": "red"}])
def test_what_changes_nothing_cannot_be_followed(faults, change):
    follow = faults("follow")
    with pytest.raises(follow.CannotFollow):
        follow.followed(faults("cases").CASES["far_one_worker"].setting, change)


def test_every_case_can_be_judged(faults):
    """Each remedy changes something, and each case has a verdict that is right."""
    cases = faults("cases").CASES
    assert len(cases) >= 45
    for case in cases.values():
        assert case.healthy or case.setting.changed(**case.remedy) != case.setting
        assert case.right


def test_every_change_that_is_predicted_can_be_carried_out(faults):
    pairs = list(faults("predictions").pairs(1))
    assert len({pair.name for pair in pairs}) >= 15
    for pair in pairs:
        faults("follow").followed(pair.before.setting, pair.change)


@pytest.mark.parametrize(
    ("low", "high", "error"), [(9, 11, 0.0), (12, 14, 0.2), (5, 8, -0.2), (10, 10, 0.0)]
)
def test_the_error_of_an_interval(faults, low, high, error):
    assert faults("predictions").error_of(10.0, low, high) == pytest.approx(error)


def test_times_of_a_job(faults):
    ended = [0, 10, 20, 30, 40, 140, 150, 160, 170]
    measured = faults("job").measured([int(each * 1e6) for each in ended])
    assert measured == {"steps": 8, "wall_s": 0.17, "step_ms": 21.25, "middle_ms": 32.5}
