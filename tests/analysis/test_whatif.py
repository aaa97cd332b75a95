"""Predictions from run logs, what two runs tell of each other, and the commands for both."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import count

import numpy as np
import pytest

from tests.analysis.runs import said
from tests.samples import batch, info
from trainobs import cli
from trainobs.analysis.summary import summarize
from trainobs.analysis.verdicts import summed_steps
from trainobs.analysis.whatif import predict, replayed
from trainobs.analysis.would_help import would_help
from trainobs.core.errors import TrainobsError
from trainobs.core.records import BATCH_ROW
from trainobs.replay.predict import Prediction, Replay
from trainobs.runlog.reader import RunLog
from trainobs.runlog.schema import BATCHES
from trainobs.runlog.writer import RunLogSink
from trainobs.verdict.advice import MADE_ONCE

MS = 1e6
STEPS = 200
BEGAN = count(1)
HOST = {"usable_cpu_count": 4, "cpu_count": 4, "hostname": "here"}


def loader(workers: int = 1, **changed: object) -> dict[str, object]:
    usual = {"serial": 1, "workers": workers, "prefetch_factor": 2, "batch_size": 16}
    more = {"pin_memory": False, "persistent_workers": False, "start_method": "fork"}
    return usual | more | changed


@pytest.fixture
def write(tmp_path):
    """Writes a run that computes 20 ms a step, and whose worker computes 30 ms a batch."""

    def write(
        name: str = "run",
        *,
        step_ms: float = 30,
        steps: int = STEPS,
        resident: float = 1e8,
        direct: float = 0.0,
        device_ms: float = 0.0,
        others: float = 0.0,
        more: np.ndarray | None = None,
        **facts: object,
    ):
        sink = RunLogSink(tmp_path / name)
        settings = {"loader_workers": 1, "torch_threads": 1}
        usual = {"settings": settings, "host": HOST, "loaders": [loader()]}
        about = info(**usual | facts)
        about.clock = {"monotonic_ns": 0, "wall_ns": next(BEGAN)}
        sink.begin(about)
        start = (np.arange(steps) * step_ms * MS).astype(np.int64)
        wait = step_ms - 20
        record = batch(
            range(steps),
            step__duration_ns=[step_ms * MS] * steps,
            loader__wait_ns=[wait * MS] * steps,
            phase__forward_ns=[20 * MS] * steps,
            sched__wait_offcpu_ns=[wait * MS] * steps,
            sched__work_offcpu_ns=[0.0] * steps,
            sched__work_runqueue_ns=[0.0] * steps,
            sched__others_cpu_ratio=[others] * steps,
            memory__worker_rss_bytes=[resident] * steps,
            io__data_read_bytes=[1e6] * steps,
            io__data_direct_read_bytes=[direct] * steps,
        )
        rows = np.zeros(steps, BATCH_ROW)
        rows["loader"] = 1
        rows["for_step"] = rows["number"] = np.arange(steps)
        rows["fetch_begin_ns"], rows["fetch_end_ns"] = start, start + int(wait * MS)
        rows["begin_ns"], rows["end_ns"] = start - int(20 * MS), start + int(wait * MS)
        rows["compute_ns"] = int((step_ms - device_ms) * MS)
        rows["device_ns"] = int(device_ms * MS)
        rows = rows if more is None else np.concatenate([rows, more])
        sink.write(replace(record, batches=rows, start_ns=start))
        sink.end({})
        return tmp_path / name

    return write


def test_a_second_worker_is_predicted_to_hide_the_loader(write, capsys):
    found = predict(write(), {"workers": 2})
    assert found.low <= 20 * MS <= found.high
    page = said(capsys, "whatif", write("other"), "workers=2").splitlines()
    assert "30 ms a step; the replay of the run as it was is off by 0 %" in page[0]
    assert page[2].split()[0] == "workers=2"
    data = json.loads(
        said(capsys, "whatif", write("third"), "workers=2", "transform=0.5x", "--json")
    )
    assert [one["change"] for one in data["changes"]] == ["workers=2 transform=0.5x"]


def test_where_the_cpus_of_a_run_changed_no_number_of_workers_is_predicted(write, capsys):
    assert "num_workers=2" in said(capsys, "report", write("before"))
    confined = write(host=HOST | {"usable_cpu_count": 2, "most_usable_cpu_count": 4})
    why = "the CPUs that the run may use, or their quota, changed while it ran"
    for change in ("workers=2", "cpus=4", "others=0.1", "threads=2"):
        assert cli.main(["whatif", str(confined), change]) == 2
        assert why in capsys.readouterr().err
    tried = said(capsys, "whatif", confined)
    assert "workers" not in tried
    assert "transform=0.5x" in tried
    for options in ((), ("--full",)):
        told = " ".join(said(capsys, "report", confined, *options).split())
        assert f"num_workers is not predicted: {why}" in told
        assert "num_workers=" not in told
    found = json.loads(said(capsys, "report", confined, "--json"))["would_help"]
    assert found["unknown"]["workers"] == why


def test_without_changes_usual_ones_are_tried(write, capsys):
    page = said(capsys, "whatif", write())
    assert {"workers=2", "persistent", "cached", "compute=0.5x"} <= set(page.split())


def test_what_is_read_by_o_direct_is_not_predicted_to_be_in_memory(write, capsys):
    slow = {"device_ms": 15.0}
    assert "cached" in said(capsys, "whatif", write(**slow))
    assert "  cached: " not in said(capsys, "report", write("direct", direct=1e6, **slow))
    page = said(capsys, "whatif", write("other", direct=1e6, **slow))
    assert "device=2x" in page
    assert "cached" not in page
    with pytest.raises(TrainobsError, match="O_DIRECT"):
        predict(write("third", direct=1e6), {"cached": True})
    assert "cached: the data is in memory" in said(capsys, "report", write("fourth", **slow))


def test_the_report_tells_what_would_help_and_nothing_that_would_not(write, capsys):
    page = said(capsys, "report", write(), "--full")
    section = page.split("What would help")[1].split("\n\n")[0]
    assert "workers=2" in section
    assert "cached" not in section
    assert "advice: num_workers=2: 1.37 to 1.66 times as fast (predicted)" in page


def test_a_run_that_cannot_be_replayed_says_why(write, capsys):
    short = write(steps=12)
    with pytest.raises(
        TrainobsError, match="11 steps to replay; 24 are needed, and the first does not count"
    ):
        predict(short, {"workers": 2})
    wrong = write("wrong", step_ms=60, loaders=[loader(workers=8)], settings={"loader_workers": 8})
    with pytest.raises(TrainobsError, match=r"off by \d+ % \(limit 10 %\)"):
        predict(wrong, {"workers": 2})
    assert cli.main(["whatif", str(wrong)]) == 2
    assert "a longer run, or one on a quieter machine" in capsys.readouterr().err
    assert "What would help: not known" in said(capsys, "report", wrong)


def test_what_is_missing_first_is_the_cause_that_is_told(write, tmp_path, capsys):
    def cause(run) -> str:
        assert cli.main(["whatif", str(run)]) == 2
        return capsys.readouterr().err.splitlines()[1].removeprefix("  found: ")

    assert cause(write("one", steps=1)).startswith("1 step to replay; 24 are needed")
    bare = write("bare")
    shutil.rmtree(bare / "rank=0")
    assert cause(bare).startswith("no steps. There is no directory rank=0 in it")
    killed = tmp_path / "killed"
    RunLogSink(killed).begin(info())
    assert cause(killed).startswith("no steps. The run is still in its first step")
    for table in ("batches", "steps"):
        run = write(table)
        (run / f"rank=0/{table}-00000.parquet").write_bytes(b"PAR1")
        why = f"unreadable files: rank=0/{table}-00000.parquet: not a whole Parquet file"
        assert cause(run).startswith(why)
    run = RunLog.open(tmp_path / "batches")
    assert summarize(run)["would_help"]["refused"].startswith("unreadable files: rank=0/batches")
    assert cli.main(["report", str(tmp_path / "steps"), "--step", "3"]) == 2
    assert "unreadable files: steps-00000.parquet: not a whole" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("facts", "why"),
    [({"world_size": 2}, "several ranks"), ({"gpu": {"uuid": "GPU-1"}}, "a GPU is in use")],
)
def test_what_no_replay_brings_forth_is_not_predicted(write, capsys, facts, why):
    run = write(**facts)
    assert cli.main(["whatif", str(run)]) == 2
    assert why in capsys.readouterr().err
    page = said(capsys, "report", run)
    assert why in page.split("What would help: not known")[1]
    assert "advice" not in page


@pytest.mark.parametrize(
    "facts",
    [
        {"loaders": [{}]},
        {"loaders": [loader(prefetch_factor=-4)]},
        {"settings": {"loader_workers": -3}},
        {"settings": {"loader_workers": 10**6}, "loaders": [loader(workers=10**6)]},
        {"host": {"usable_cpu_count": -4, "cpu_quota": 1e-9}},
    ],
)
def test_an_edited_run_json_ends_in_no_traceback(write, capsys, facts):
    run, old = write(**facts), write("old")
    for command in (["report", run], ["whatif", run], ["report", run, "--after", old]):
        assert cli.main([str(word) for word in command]) in (0, 2)
        assert "nan" not in "".join(capsys.readouterr())


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_run_of_too_few_steps_is_reported_without_predictions(write, capsys, steps):
    assert cli.main(["report", str(write(steps=steps)), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["would_help"]["changes"] == []


def test_what_is_no_change_is_refused_with_what_is(write, capsys):
    assert cli.main(["whatif", str(write()), "batch=2"]) == 2
    assert "one of num_workers, prefetch_factor, persistent_workers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("counts", "set_ups", "means"),
    [
        ({"objects": 1, "passes": 10}, 1, "workers live on between epochs (persistent_workers)"),
        ({"objects": 10, "passes": 10}, 1, MADE_ONCE),
        ({"objects": 1, "passes": 1}, 10, None),  # a curriculum: each pass has another length
        ({}, 1, None),  # an older run
    ],
)
def test_workers_are_told_to_live_on_where_their_loader_does(
    write, monkeypatch, counts, set_ups, means
):
    run = RunLog.open(write(loaders=[loader(**counts) for _ in range(set_ups)]))
    monkeypatch.setattr(Replay, "predict", lambda *_: Prediction(1.0, 1.0, (2.0, 2.0)))
    steps = summed_steps(run)
    found = would_help(run.info, steps.run, replayed(run))["changes"]
    told = [one["means"] for one in found if "persistent" in one["values"]]
    assert told == ([means] if means else [])


def test_the_first_batch_of_a_run_is_kept_beside_its_steps(write):
    run = RunLog.open(write())
    rank = run.rank
    of_first = rank.columns(BATCHES, ("for_step", "compute_ns"))
    first = of_first["compute_ns"][of_first["for_step"] == 0].sum()
    found = summed_steps(run).run
    assert found.first_batch["batch/compute_ns"] == first > 0
    assert len(found) == len(rank.step()) - 1


def test_a_first_step_that_accumulates_gradients_has_all_its_batches(write):
    later = np.zeros(3 * STEPS, BATCH_ROW)
    later["loader"], later["for_step"] = 1, np.repeat(np.arange(STEPS), 3)
    asked = later["for_step"] * 30 * MS + np.tile([15, 20, 25], STEPS) * MS
    for name in ("fetch_begin_ns", "fetch_end_ns", "begin_ns", "end_ns"):
        later[name] = asked
    later["compute_ns"] = int(9 * MS)
    found = summed_steps(RunLog.open(write(more=later))).run
    assert found.mean()["batch/compute_ns"] == (30 + 3 * 9) * MS
    assert found.first_batch["batch/compute_ns"] == (30 + 3 * 9) * MS


def test_two_runs_tell_what_changed_what_was_predicted_and_what_came(write, capsys):
    old = write("old")
    two = {"settings": {"loader_workers": 2, "torch_threads": 1}, "loaders": [loader(workers=2)]}
    new = write("new", step_ms=20.2, **two)
    found = json.loads(said(capsys, "report", new, "--after", old, "--json"))
    assert found["changes"] == {"workers": [1, 2]}
    assert found["gain"] == pytest.approx(30 / 20.2, rel=0.01)
    assert found["holds"] is True
    page = said(capsys, "report", new, "--after", old)
    assert page.startswith("B is 1.49 times as fast as A (1.38 to 1.60)")
    assert "predicted for that: 1.37 to 1.66 times as fast; that held" in page
    slow = write("slow", step_ms=29, **two)
    assert "times as fast; that did not hold" in said(capsys, "report", slow, "--after", old)
    near = write("near", step_ms=23, **two)
    assert "whether that holds is within noise" in said(capsys, "report", near, "--after", old)


def test_what_the_code_may_have_changed_is_no_fault_of_a_prediction(write, capsys):
    old, new = write("old"), write("new", step_ms=10, others=0.2)
    page = said(capsys, "compare", old, new)
    assert "times as fast; no setting tells why it came otherwise" in page


def test_a_change_of_torchs_threads_is_predicted_where_there_are_cpus_for_them(write, capsys):
    old = write("old")
    two = write("two", settings={"loader_workers": 1, "torch_threads": 2})
    found = json.loads(said(capsys, "report", two, "--after", old, "--json"))
    assert found["predicted"][0] < 1.0 < found["predicted"][1]
    many = write("many", settings={"loader_workers": 1, "torch_threads": 400})
    assert "400 threads for" in said(capsys, "report", many, "--after", old)


def test_a_change_that_no_replay_knows_is_told_and_not_predicted(write, capsys):
    old = write("old")
    new = write("new", loaders=[loader(batch_size=32)])
    page = said(capsys, "report", new, "--after", old)
    assert "a replay does not tell what a change of batch_size does" in page
    same = write("same")
    assert "nothing that is known has changed" in said(capsys, "report", same, "--after", old)


def validating(batches: int, made_ms: float, waited_ms: float, for_step: int = -1) -> np.ndarray:
    """Batches of a second loader."""
    rows = np.zeros(batches, BATCH_ROW)
    rows["loader"], rows["for_step"] = 2, for_step
    rows["fetch_begin_ns"] = rows["begin_ns"] = 10**12 + np.arange(batches) * 10**9
    rows["fetch_end_ns"] = rows["fetch_begin_ns"] + int(waited_ms * MS)
    rows["end_ns"] = rows["begin_ns"] + int(made_ms * MS)
    return rows


def with_two(workers: int, **changed: object) -> dict[str, object]:
    both = [loader(workers=workers), loader(workers=workers, serial=2, **changed)]
    return {"settings": {"loader_workers": workers, "torch_threads": 1}, "loaders": both}


def test_workers_of_a_loader_for_validation_are_left_out_with_room_for_them(write, capsys):
    old = write("old", more=validating(10, made_ms=30, waited_ms=12), **with_two(1))
    new = write("new", step_ms=20, **with_two(2))
    page = said(capsys, "compare", old, new)
    told = "predicted for that (loader 2 left out, waited for in 2 % of the time): 1.3"
    assert told in " ".join(page.split())
    found = json.loads(said(capsys, "compare", old, new, "--json"))
    one = json.loads(said(capsys, "whatif", old, "workers=2", "--json"))["changes"][0]["gain"]
    low, high = found["predicted"]
    assert low == pytest.approx(1 / (1 / one[0] + 0.03))
    assert high == pytest.approx(1 / (1 / one[1] - 0.02))


@pytest.mark.parametrize(
    ("more", "changed"),
    [
        (validating(50, made_ms=30, waited_ms=30), {}),
        (validating(10, made_ms=30, waited_ms=12), {"batch_size": 4}),
        (validating(10, made_ms=-30, waited_ms=12), {"begins": -1}),
        (None, {}),
    ],
    ids=["much", "other batches", "unknown", "none of it"],
)
def test_where_the_other_loader_may_matter_nothing_is_predicted(write, capsys, more, changed):
    if changed.pop("begins", None):
        more["begin_ns"] = -1
    old = write("old", more=more, **with_two(1))
    found = json.loads(
        said(capsys, "compare", old, write("new", step_ms=20, **with_two(2, **changed)), "--json")
    )
    assert found["predicted"] is None
    assert "of loader 2" in found["why_not"]


def test_which_loader_is_the_training_one_is_told_by_the_batches(write, capsys):
    facts = with_two(1)
    facts["loaders"].reverse()
    old = write("old", more=validating(10, made_ms=30, waited_ms=12), **facts)
    new = with_two(2)
    new["loaders"].reverse()
    found = json.loads(said(capsys, "compare", old, write("new", step_ms=20, **new), "--json"))
    assert found["predicted"] is None


def test_runs_without_steps_cannot_be_compared(write, capsys):
    assert cli.main(["report", str(write("a", steps=1)), "--after", str(write("b"))]) == 2
    assert "fewer than two steps" in capsys.readouterr().err


def test_workers_are_advised_only_as_far_as_they_fit_into_memory(write, capsys):
    large = write("large", resident=4e9, host=HOST | {"memory_bytes": 10**10})
    assert "workers=" not in said(capsys, "report", large)
    small = write("small", resident=1e9, host=HOST | {"memory_bytes": 10**10})
    assert "times as fast  num_workers=2\n" in said(capsys, "report", small)
    confined = HOST | {"memory_bytes": 10**11, "memory_limit_bytes": 10**10}
    assert "workers=" not in said(capsys, "report", write("confined", resident=4e9, host=confined))
