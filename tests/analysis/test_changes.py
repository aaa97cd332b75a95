"""Which settings are said to differ between runs."""

from __future__ import annotations

import pytest

from trainobs.analysis.comparison import changes as module
from trainobs.analysis.comparison.changes import changes, predicted
from trainobs.replay.predict import Prediction
from trainobs.runlog.reader import RunLog

LOADER = {
    "serial": 1,
    "workers": 2,
    "prefetch_factor": 2,
    "persistent_workers": True,
    "batch_size": 8,
    "pin_memory": False,
}


@pytest.mark.parametrize("settings", [{}, {"loader_workers": 3}])
def test_what_is_unknown_of_a_loader_is_no_change(write_run, settings):
    """Of one run it is not known which loader is the training's."""
    made = {
        "told": {"settings": {"loader_workers": 2}, "loaders": [LOADER]},
        "untold": {"settings": settings, "loaders": [LOADER]},
        "without": {"settings": {}, "loaders": []},
    }
    runs = {name: RunLog.open(write_run(name, **facts)) for name, facts in made.items()}

    def found(old, new):
        return changes([runs[old]], [runs[new]]).keys()

    known = {"workers"} if settings else set()
    assert found("told", "untold") == found("untold", "told") == known
    assert found("told", "without") == found("without", "told") == set()
    assert found("untold", "without") == set()


def test_tensors_that_nobody_counted_are_no_change(write_run):
    """A training thread that makes the batches hands nothing over; older run logs do not tell."""
    loaders = {
        "handed": LOADER | {"tensors_per_batch": 64},
        "few": LOADER | {"tensors_per_batch": 2},
        "alone": LOADER | {"workers": 0, "tensors_per_batch": None},
        "old": LOADER,
    }
    runs = {}
    for name, loader in loaders.items():
        facts = {"settings": {"loader_workers": loader["workers"]}, "loaders": [loader] * 2}
        runs[name] = RunLog.open(write_run(name, **facts))

    def found(old, new):
        return changes([runs[old]], [runs[new]]).keys()

    names = {"tensors_per_batch", "tensors_per_batch of loader 2"}
    assert found("handed", "few") == names
    assert (
        found("handed", "alone")
        == found("alone", "handed")
        == {
            "workers",
            "workers of loader 2",
        }
    )
    assert found("handed", "old") == found("old", "handed") == set()


@pytest.mark.parametrize(
    ("old", "new", "replayed"),
    [
        ((False, 8), (True, 8), []),  # workers end with their loader
        ((False, 8), (True, 1), ["persistent"]),  # what is advised
        ((True, 8), (True, 1), ["persistent"]),
        ((False, 8), (False, 1), []),
        ((False, 1), (True, 1), ["persistent"]),
        ((True, 1), (False, 1), None),
    ],
)
def test_workers_live_on_by_two_settings_together(write_run, monkeypatch, old, new, replayed):
    runs = []
    for name, (live_on, objects) in {"old": old, "new": new}.items():
        loader = LOADER | {"persistent_workers": live_on, "objects": objects, "passes": 8}
        facts = {"settings": {"loader_workers": 2}, "loaders": [loader]}
        runs.append(RunLog.open(write_run(name, **facts)))
    asked = []

    class Replay:
        def predict(self, changes):
            asked.extend(change.name for change in changes)
            return Prediction(1.0, 1.0, (1.5, 2.0))

    monkeypatch.setattr(module, "replayed", lambda _: Replay())
    found = predicted(runs[0], changes([runs[0]], [runs[1]]))
    assert asked == (replayed or [])
    assert (found.gain is not None) == bool(replayed)
    assert ("does not tell" in (found.why_not or "")) == (replayed is None)


@pytest.mark.parametrize(("taken", "replayed"), [(None, False), (0.05, True), (0.5, False)])
def test_more_cpus_are_replayed_where_no_other_process_takes_of_them(
    write_run, monkeypatch, taken, replayed
):
    runs = []
    for name, count in (("old", 1), ("new", 2)):
        host = {"hostname": "here", "usable_cpu_count": count, "cpu_count": 4}
        runs.append(RunLog.open(write_run(name, host=host)))
    asked = []

    class Replay:
        def predict(self, changes):
            asked.extend(changes)
            return Prediction(1.0, 1.0, (1.5, 2.0))

    monkeypatch.setattr(module, "replayed", lambda _: Replay())
    monkeypatch.setattr(module, "others_share", lambda _: taken)
    found = predicted(runs[0], changes([runs[0]], [runs[1]]))
    assert [(change.name, change.value) for change in asked] == [("cpus", 2.0)] * replayed
    assert (found.gain is not None) == replayed
