"""Disks that refuse, fill up and vanish: training goes on, each sink warns once, losses count."""

from __future__ import annotations

import errno
import re
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integrations.models import logged_steps, step_numbers
from tests.samples import NO_LATENCY, batch, info, small_disk
from tests.session.jobs import wait_for
from trainobs import observe
from trainobs.analysis.summary import summarize
from trainobs.core.records import SETUP, RunInfo, StepTable
from trainobs.core.sink import Sink
from trainobs.report.full import render
from trainobs.runlog import writer
from trainobs.runlog.reader import RunLog
from trainobs.runlog.writer import RunLogSink
from trainobs.session import observer, sink_router
from trainobs.session.delivery import Deliveries, Delivery
from trainobs.session.runs import open_session
from trainobs.session.session import Session
from trainobs.session.settings import Settings
from trainobs.steps import collector


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deliver and flush many times in a short run, in this process, which the tests change."""
    monkeypatch.delenv(sink_router.SWITCH, raising=False)
    monkeypatch.setattr(observer, "WAKE_S", 0.01)
    monkeypatch.setattr(observer, "FLUSH_S", 0.08)
    monkeypatch.setattr(collector, "SETTLE_NS", 0)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """First lines of what trainobs warned of."""
    return [r.getMessage().partition("\n")[0] for r in caplog.records if r.name == "trainobs"]


def train(run_dir: Path, steps: int = 30, **events: Any) -> Any:
    """A run of steps of 10 ms; `at_10` is called in the tenth."""
    with observe(run_dir=run_dir, probes="off", log_every_n_steps=1) as obs:
        for step in range(steps):
            with obs.step():
                time.sleep(0.01)
                if f"at_{step}" in events:
                    events[f"at_{step}"]()
    return obs


def train_unnamed(run_dir: Path) -> Path:
    """The same in a directory that nobody named, which callbacks do not refuse."""
    session, place = open_session(Settings.parse("off"), run_dir, log_every_n_steps=1)
    for _ in range(30):
        session.clock.begin_batch()
        time.sleep(0.01)
        session.clock.end_step()
    session.stop()
    return place


def fill(filler: Path) -> None:
    """Leave no room on a disk."""
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(4096)) == 4096:
            pass


def refusal(sink: str) -> str:
    return f"cannot store the record in the {sink}; it is kept, and tried again every few seconds"


def loss(sink: str, steps: int) -> str:
    return f"the {sink} lost the records of {steps} steps"


def test_a_directory_below_a_file_loses_the_record_and_not_the_training(tmp_path, caplog):
    (tmp_path / "file").write_text("not a directory")
    assert train_unnamed(tmp_path / "file" / "run") == tmp_path / "file" / "run"
    assert sorted(warnings(caplog)) == sorted(
        [refusal("runlog"), refusal("tensorboard"), loss("runlog", 30), loss("tensorboard", 30)]
    )
    assert caplog.text.count("  do:    give `run_dir` a directory that can be written") == 4


def test_a_read_only_disk_loses_nothing_where_there_is_a_temporary_directory(tmp_path, caplog):
    with small_disk(tmp_path / "disk", "ro,size=1m") as disk:
        place = train_unnamed(disk / "run")
    assert step_numbers(place) == list(range(30))
    assert warnings(caplog) == [f"The run goes to {place}"]
    shutil.rmtree(place.parent)


def test_a_read_only_disk_loses_the_record_and_not_the_training(tmp_path, caplog, monkeypatch):
    with small_disk(tmp_path / "disk", "ro,size=1m") as disk:
        monkeypatch.setattr(tempfile, "tempdir", str(disk))
        train_unnamed(disk / "run")
        assert list(disk.iterdir()) == []
    assert sorted(warnings(caplog)) == sorted(
        [refusal("runlog"), refusal("tensorboard"), loss("runlog", 30), loss("tensorboard", 30)]
    )
    assert caplog.text.count("  do:    give `run_dir` a directory that can be written") == 4


def test_a_disk_that_is_full_for_a_while_loses_nothing(tmp_path, caplog):
    with small_disk(tmp_path / "disk", "size=512k") as disk:
        filler = disk / "filler"

        def make_room() -> None:
            wait_for(lambda: refusal("runlog") in warnings(caplog))
            filler.unlink()

        train(disk / "run", steps=60, at_20=lambda: fill(filler), at_40=make_room)
        assert step_numbers(disk / "run") == list(range(60))
        assert logged_steps(disk / "run" / "tensorboard") == list(range(60))
        summary = RunLog.open(disk / "run").info["summary"]
    assert summary["lost_steps"] == {"runlog": 0, "tensorboard": 0}
    # A few events may still find room in the last block of their file.
    assert sorted(warnings(caplog))[0] == refusal("runlog")
    assert sorted(warnings(caplog))[1:] in ([], [refusal("tensorboard")])


def test_what_a_full_disk_costs_is_counted_in_the_log(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(writer, "SEAL_STEPS", 5)
    monkeypatch.setattr(writer, "HELD_STEPS", 10)
    with small_disk(tmp_path / "disk", "size=512k") as disk:
        filler = disk / "filler"

        train(disk / "run", steps=90, at_20=lambda: fill(filler), at_70=filler.unlink)
        stored = step_numbers(disk / "run")
        summary = RunLog.open(disk / "run").info["summary"]
    lost = summary["lost_steps"]["runlog"]
    assert lost > 0
    assert summary["lost_because"]["runlog"] == "ENOSPC: No space left on device"
    assert len(stored) + lost == 90
    assert warnings(caplog).count(refusal("runlog")) == 1
    assert warnings(caplog).count(loss("runlog", lost)) == 1


def test_a_disk_that_stays_full_is_told_in_the_log_all_the_same(tmp_path, caplog):
    with small_disk(tmp_path / "disk", "size=512k") as disk:
        train(disk / "run", steps=60, at_20=lambda: fill(disk / "filler"))
        stored = step_numbers(disk / "run")
        summary = RunLog.open(disk / "run").info["summary"]
        files = [path.name for path in (disk / "run" / "rank=0").iterdir()]
    assert summary["outcome"] == "ok"
    assert 0 < len(stored) == 60 - summary["lost_steps"]["runlog"] < 60
    assert summary["lost_because"]["runlog"] == "ENOSPC: No space left on device"
    assert ".reserve" not in files
    where = re.escape(str(disk / "run" / "rank=0"))
    assert re.search(rf"  found: OSError: .*No space left on device: '{where}/", caplog.text)
    assert "  do:    make room on the disk, or for more files (`df -i`)" in caplog.text


def test_a_directory_that_is_removed_is_made_again(tmp_path, caplog):
    run_dir = tmp_path / "run"

    def remove() -> None:
        wait_for(lambda: list(run_dir.rglob("*.parquet")))
        while run_dir.exists():  # the observer may be writing into it
            shutil.rmtree(run_dir, ignore_errors=True)

    train(run_dir, at_15=remove)
    assert step_numbers(run_dir) == list(range(30))
    summary = RunLog.open(run_dir).info["summary"]
    assert summary["outcome"] == "ok"
    assert summary["lost_steps"] == {"runlog": 0, "tensorboard": 0}
    assert warnings(caplog) == [refusal("runlog")]


class Faulty(Sink):
    """A sink that fails for good at its third batch, or as soon as it begins."""

    name = "faulty"
    lost_steps = 0

    def __init__(self, fails_at: int) -> None:
        self.fails_at = fails_at
        self.calls = 0

    def begin(self, info: RunInfo) -> None:
        self._count()

    def write(self, table: StepTable) -> None:
        self._count()

    def latency(self, buckets: np.ndarray) -> None: ...

    def flush(self) -> None: ...

    def end(self, summary: dict[str, object]) -> None:
        raise AssertionError("a sink that was given up must be left alone")

    def _count(self) -> None:
        self.calls += 1
        if self.calls >= self.fails_at:
            raise RuntimeError("it broke")


@pytest.mark.parametrize("fails_at", [1, 3])
@pytest.mark.parametrize("first", [True, False])
def test_a_sink_that_raises_is_given_up_and_the_other_goes_on(tmp_path, caplog, fails_at, first):
    faulty, good = Faulty(fails_at), RunLogSink(tmp_path / "run")
    session = Session(Settings.parse(probes="off"), [faulty, good] if first else [good, faulty])
    for _ in range(30):
        session.clock.begin_batch()
        time.sleep(0.01)
        session.clock.end_step()
    session.stop()
    assert step_numbers(tmp_path / "run") == list(range(30))
    summary = RunLog.open(tmp_path / "run").info["summary"]
    lost = summary["lost_steps"]
    assert lost["runlog"] == 0
    assert summary["lost_because"] == {"faulty": "RuntimeError: it broke"}
    assert "found: RuntimeError: it broke\n" in caplog.records[-1].getMessage()
    assert lost["faulty"] == 30 if fails_at == 1 else 0 < lost["faulty"] <= 30
    assert faulty.calls == fails_at
    assert warnings(caplog) == [
        "cannot store the record in the faulty; it is given up for this run",
        loss("faulty", lost["faulty"]),
    ]


def test_a_log_that_is_given_up_says_so_all_the_same(tmp_path, caplog, monkeypatch):
    """As where there is no room for pyarrow: the report tells what the warning says it tells."""

    def no_room(*args: object) -> None:
        raise ImportError("failed to map segment")

    monkeypatch.setattr(writer, "store", no_room)
    train(tmp_path / "run")
    run = RunLog.open(tmp_path / "run")
    assert run.info["summary"]["lost_steps"]["runlog"] == 30
    text = render(summarize(run))
    assert "a fault of trainobs (ImportError: failed to map segment): 30 steps are not" in text
    assert "Steps were trained and could not be stored" in text
    assert loss("runlog", 30) in warnings(caplog)
    assert not (tmp_path / "run" / "rank=0" / ".reserve").exists()


def test_a_log_that_could_not_begin_leaves_that_of_an_earlier_run(tmp_path):
    train(tmp_path / "run")
    before = (tmp_path / "run" / "run.json").read_bytes()
    deliveries = Deliveries([RunLogSink(tmp_path / "run")])
    deliveries.begin(info())
    deliveries.end({"outcome": "ok"})
    assert (tmp_path / "run" / "run.json").read_bytes() == before


class Dropping(Sink):
    """A sink whose disk is full at its first flushes, and that drops what it is told to."""

    name = "dropping"

    def __init__(self, refuses: int) -> None:
        self.refuses = refuses

    def flush(self) -> None:
        self.refuses -= 1
        if self.refuses >= 0:
            raise OSError(errno.ENOSPC, "No space left on device")


def test_what_is_lost_before_the_first_step_is_no_step():
    delivery = Delivery(Dropping(refuses=1))
    delivery.write(batch([SETUP, 0, 1]))
    delivery.flush()
    assert delivery.lost_steps == 2


def test_steps_are_stored_though_the_latencies_beside_them_are_not(tmp_path):
    sink = RunLogSink(tmp_path / "run")
    delivery = Delivery(sink)
    delivery.call(lambda: sink.begin(info()))
    (tmp_path / "run" / "rank=0" / "latency.parquet").mkdir()  # so that no file takes its place
    delivery.write(batch([SETUP, 0, 1]))
    delivery.call(lambda: sink.latency(NO_LATENCY + 1))
    assert delivery.flush() is False
    assert step_numbers(tmp_path / "run") == [0, 1]
    assert delivery.lost_steps == 0


def test_latencies_of_a_part_of_a_run_are_not_left_behind(tmp_path):
    with small_disk(tmp_path / "disk", "size=512k") as disk:
        sink = RunLogSink(disk / "run")
        sink.begin(info())
        for steps in ([0, 1], [2, 3]):
            sink.write(batch(steps))
            sink.latency(NO_LATENCY + len(steps))
            if steps[0]:
                fill(disk / "filler")
                with pytest.raises(OSError, match="No space left"):
                    sink.end({})
            else:
                sink.flush()
        assert not (disk / "run" / "rank=0" / "latency.parquet").exists()


@pytest.mark.parametrize(("dropped_at", "because"), [(0, "ENOSPC: No space left"), (2, "")])
def test_steps_are_lost_by_the_fault_of_that_time_and_not_by_one_that_passed(dropped_at, because):
    sink = Dropping(refuses=1)
    delivery = Delivery(sink)
    for flush in range(4):
        delivery.write(batch([flush]))
        sink.lost_steps += flush == dropped_at
        delivery.flush()
    assert delivery.lost_steps == 1
    assert delivery.lost_because.startswith(because)
    assert bool(delivery.lost_because) is bool(because)


@pytest.mark.parametrize("thread", ["trainobs", "MainThread"])
def test_a_fault_of_the_observer_ends_the_record_and_not_the_training(
    tmp_path, caplog, monkeypatch, thread
):
    collect = collector.Collector.collect

    def fail(self: collector.Collector, **options: bool) -> None:
        if self._clock.serial > 200 and threading.current_thread().name == thread:
            raise MemoryError
        if self._clock.serial < 200 or thread == "trainobs":  # else leave it to the training thread
            collect(self, **options)

    monkeypatch.setattr(collector.Collector, "collect", fail)
    session = Session(Settings.parse(probes="off"), [RunLogSink(tmp_path / "run")])
    for _ in range(1000):
        session.clock.begin_batch()
        time.sleep(0.0002)
        session.clock.end_step()
    assert len(session.clock.closed) <= observer.FULL  # nobody takes them any more
    session.stop()
    assert warnings(caplog) == ["cannot go on observing; the training goes on"]
    summary = RunLog.open(tmp_path / "run").info["summary"]
    assert summary["outcome"] == "given up: MemoryError"
    recorded = step_numbers(tmp_path / "run")
    assert recorded == list(range(len(recorded)))
    assert 100 < len(recorded) <= 200 + 3 * observer.FULL


def test_a_sink_that_computes_for_long_is_waited_for(tmp_path, caplog, monkeypatch):
    class Slow(Faulty):
        def end(self, summary: dict[str, object]) -> None:
            end = time.thread_time() + 0.5
            while time.thread_time() < end:
                pass
            self.ended = True

    stop = observer.Observer.stop
    monkeypatch.setattr(observer.Observer, "stop", lambda self, summary: stop(self, summary, 0.3))
    slow = Slow(fails_at=10**9)
    session = Session(Settings.parse(probes="off"), [slow])
    session.clock.begin_batch()
    monkeypatch.setattr(observer, "SLOWER", 100)  # on a busy machine it lasts
    session.stop()
    assert warnings(caplog) == []
    assert slow.ended


def test_a_sink_that_hangs_does_not_hang_the_training(tmp_path, caplog, monkeypatch):
    go_on = threading.Event()

    class Hanging(Faulty):
        def flush(self) -> None:
            go_on.wait()

        def end(self, summary: dict[str, object]) -> None: ...

    stop = observer.Observer.stop
    monkeypatch.setattr(observer.Observer, "stop", lambda self, summary: stop(self, summary, 0.2))
    session = Session(Settings.parse(probes="off"), [Hanging(fails_at=10**9)])
    session.clock.begin_batch()
    session.stop()  # or it would wait for ever
    assert warnings(caplog) == ["cannot finish the run log"]
    go_on.set()
