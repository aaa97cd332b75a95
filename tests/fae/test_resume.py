"""A calibration that was interrupted goes on as if nothing had happened."""

from __future__ import annotations

import os
import signal

import pytest

from tests.fae.skewed import ROWS, Batches, click_loader, matrix, quiet
from trainobs.access.counts import AccessCounts
from trainobs.core.errors import FAEError
from trainobs.fae.calibration import resume, source
from trainobs.fae.calibration.threads import BackgroundCall


class Interrupted(Batches):
    """Breaks off after some batches."""

    def __init__(self, ids, after):
        super().__init__(ids)
        self.after = after

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number == self.after:
                raise KeyboardInterrupt
            yield batch


@pytest.mark.parametrize("part", [0.01, 0.4, 0.6, 0.99])
def test_a_resumed_calibration_is_the_uninterrupted_one(tmp_path, part):
    ids = matrix(8, 60_000)
    uninterrupted = Batches(ids)
    whole = quiet(uninterrupted, margin=0.03)
    after = int(part * uninterrupted.given)
    with pytest.raises(KeyboardInterrupt):
        quiet(Interrupted(ids, after), margin=0.03, resume=tmp_path / "state")
    resumed = quiet(Batches(ids), margin=0.03, resume=tmp_path / "state")
    assert resumed.fingerprint == whole.fingerprint
    assert resumed.made == whole.made | {"source": "Batches"}
    for share in ("all_hot_ratio", "hot_lookup_ratio", "threshold"):
        assert getattr(resumed.predictions, share) == getattr(whole.predictions, share)
    assert not (tmp_path / "state").exists()


def test_a_sampled_loader_resumes_without_reading_again(tmp_path, monkeypatch):
    ids = matrix(8, 20_000)
    whole = quiet(click_loader(ids), margin=0)
    monkeypatch.setattr(resume, "SAVE_SECONDS", 0.0)
    loader = click_loader(ids)
    asked = []
    fetch = type(loader.dataset).__getitem__

    def failing(self, number):
        asked.append(number)
        if len(asked) == 9000:
            raise OSError("disk gone")
        return fetch(self, number)

    monkeypatch.setattr(type(loader.dataset), "__getitem__", failing)
    with pytest.raises(OSError, match="disk gone"):
        quiet(loader, margin=0, resume=tmp_path)
    resumed = quiet(loader, margin=0, resume=tmp_path)
    assert resumed.fingerprint == whole.fingerprint
    assert len(asked) < 20_000 + 2 * 256


class Killed(Batches):
    """Kills the process that reads it, after some batches."""

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number == 40:
                os.kill(os.getpid(), signal.SIGKILL)
            yield batch


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_killed_calibration_goes_on_where_it_was_last_saved(tmp_path, monkeypatch):
    ids = matrix(8, 20_000)
    monkeypatch.setattr(resume, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(source, "LOT_LOOKUPS", 0)
    child = os.fork()
    if child == 0:
        quiet(Killed(ids), margin=0, resume=tmp_path)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert (tmp_path / "state.npz").exists()
    assert quiet(Batches(ids), margin=0, resume=tmp_path).fingerprint == (
        quiet(Batches(ids), margin=0).fingerprint
    )


class LosesRoom(Interrupted):
    """Takes the directory of the state away in the middle, and leaves a file in its place."""

    def __init__(self, ids, after, directory):
        super().__init__(ids, after)
        self.directory = directory

    def __iter__(self):
        for number, batch in enumerate(super().__iter__()):
            if number == 10:
                for file in self.directory.iterdir():
                    file.unlink()
                self.directory.rmdir()
                self.directory.write_text("in the way")
            yield batch


@pytest.mark.parametrize("seconds", [0.0, 60.0])
def test_a_calibration_goes_on_where_its_state_cannot_be_saved(
    tmp_path, monkeypatch, caplog, seconds
):
    ids, state = matrix(8, 20_000), tmp_path / "state"
    monkeypatch.setattr(resume, "SAVE_SECONDS", seconds)
    monkeypatch.setattr(source, "LOT_LOOKUPS", 0)
    found = f"found: resume={str(state)!r}: File exists"
    with pytest.raises(KeyboardInterrupt):
        quiet(LosesRoom(ids, 40, state), margin=0, resume=state)
    told = [record.getMessage() for record in caplog.records]
    assert len([one for one in told if found in one]) == (1 if seconds else 2)
    state.unlink()
    whole = quiet(LosesRoom(ids, -1, state), margin=0, resume=state)
    assert whole.fingerprint == quiet(Batches(ids), margin=0).fingerprint


def test_another_calibration_does_not_go_on_with_the_state(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        quiet(Interrupted(matrix(0, 9000), 5), resume=tmp_path)
    with pytest.raises(FAEError, match="another seed\n  do:    remove the directory"):
        quiet(Batches(matrix(0, 9000)), resume=tmp_path, seed=1)
    monkeypatch.setattr(resume, "_KIND", resume._KIND._replace(schema=1))
    with pytest.raises(FAEError, match="layout 2; this version of trainobs reads 1"):
        quiet(Batches(matrix(0, 9000)), resume=tmp_path)
    monkeypatch.undo()
    (tmp_path / "state.npz").write_bytes(b"rubbish")
    with pytest.raises(FAEError, match="state of a calibration"):
        quiet(Batches(matrix(0, 9000)), resume=tmp_path)


def test_a_batch_that_was_half_counted_is_not_saved(tmp_path, monkeypatch):
    ids = matrix(0, 9000)
    whole = quiet(Batches(ids, 3000), margin=0)
    adds = []
    add = AccessCounts.add

    def interrupted(self, table, *rows):
        adds.append(table)
        if len(adds) == 6:  # of the second batch, two tables of three are counted
            raise KeyboardInterrupt
        add(self, table, *rows)

    with monkeypatch.context() as patch:
        patch.setattr(AccessCounts, "add", interrupted)
        patch.setattr(source, "LOT_LOOKUPS", 0)
        patch.setattr(resume, "SAVE_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            quiet(Batches(ids, 3000), margin=0, resume=tmp_path)
    resumed = quiet(Batches(ids, 3000), margin=0, resume=tmp_path)
    assert resumed.predictions.threshold == whole.predictions.threshold
    assert resumed.fingerprint == whole.fingerprint


def test_lookups_left_out_are_counted_once_where_the_next_lot_was_read(tmp_path, monkeypatch):
    ids = matrix(0, 9000)
    ids[2, ::3000] = ROWS[2]  # one in each batch
    calls = []
    call = BackgroundCall.__call__

    def interrupted(self, *lot):
        calls.append(lot)
        if len(calls) == 2:  # while it waits for the first
            raise KeyboardInterrupt
        call(self, *lot)

    monkeypatch.setattr(source, "LOT_LOOKUPS", 0)
    with monkeypatch.context() as patch:
        patch.setattr(BackgroundCall, "__call__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            quiet(Batches(ids, 3000), margin=0, resume=tmp_path)
    resumed = quiet(Batches(ids, 3000), margin=0, resume=tmp_path)
    assert resumed.made["inputs_read"] == 9000
    assert resumed.made["lookups_left_out"] == 3
