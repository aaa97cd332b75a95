"""The event file under fire: always whole records, whatever the disk does."""

from __future__ import annotations

import shutil

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from tests.samples import batch, info
from trainobs.tensorboard import event_file
from trainobs.tensorboard import sink as sink_module
from trainobs.tensorboard.sink import EventFile, TensorBoardSink


def event(step: int) -> Event:
    text = Summary.Value(tag="filler/" + "x" * 1000, simple_value=step)
    return Event(step=step, wall_time=1.0, summary=Summary(value=[text]))


def steps(folder) -> list[int]:
    """Steps in the one event file of a folder; the loader stops at the first broken record."""
    (path,) = folder.glob("*tfevents*")
    first, *others = EventFileLoader(str(path)).Load()
    assert first.file_version == "brain.Event:2"
    return [other.step for other in others]


def test_events_can_be_read_after_each_flush(tmp_path):
    file = EventFile(tmp_path)
    for step in range(3):
        file.add_event(event(step))
        file.flush()
        assert steps(tmp_path) == list(range(step + 1))
    file.close()


def test_nothing_is_made_before_there_is_something_to_write(tmp_path):
    EventFile(tmp_path / "logs").flush()
    assert not (tmp_path / "logs").exists()


def test_two_files_of_one_process_do_not_meet(tmp_path):
    for step in range(2):
        file = EventFile(tmp_path)
        file.add_event(event(step))
        file.close()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_takes_no_half_record_and_the_events_come_later(disk):
    small = disk("size=64k")
    file = EventFile(small)
    file.add_event(event(0))
    file.flush()
    filler = small / "filler"
    filler.write_bytes(bytes(52 << 10))
    for step in range(1, 30):  # 30 kB, of which the disk takes a part
        file.add_event(event(step))
    with pytest.raises(OSError, match=f"No space left on device: '{small}/events"):
        file.flush()
    assert steps(small) == [0]
    filler.unlink()
    file.add_event(event(30))
    file.flush()
    assert steps(small) == list(range(31))


def test_a_removed_directory_is_made_again_with_a_readable_file(tmp_path):
    logs = tmp_path / "logs"
    file = EventFile(logs)
    file.add_event(event(0))
    file.flush()
    shutil.rmtree(logs)
    file.add_event(event(1))
    file.flush()
    assert steps(logs) == [1]


def test_many_events_between_two_flushes_go_to_a_disk_that_takes_them(tmp_path, monkeypatch):
    monkeypatch.setattr(event_file, "PENDING_BYTES", 5000)
    file = EventFile(tmp_path)
    for step in range(100):
        file.add_event(event(step))
    file.close()
    assert steps(tmp_path) == list(range(100))


def test_memory_is_bounded_and_lost_steps_are_counted(disk, monkeypatch):
    monkeypatch.setattr(event_file, "PENDING_BYTES", 2000)
    monkeypatch.setattr(sink_module, "HELD_POINTS", 8)
    monkeypatch.setattr(sink_module, "STEPS_ALONE", 0)
    small = disk("size=8k")
    sink = TensorBoardSink(EventFile(small / "logs"), 10)
    sink.begin(info())
    with pytest.raises(OSError, match="No space left"):
        (small / "filler").write_bytes(bytes(9 << 10))
    for first in range(0, 1000, 10):
        sink.write(batch(range(first, first + 10), io__data_read_bytes=range(10)))
    with pytest.raises(OSError, match="No space left"):
        sink.flush()
    (small / "filler").unlink()
    sink.end({})
    *kept, epoch, run = steps(small / "logs")
    assert (epoch, run) == (999, 999)  # verdicts, for which there was room again
    assert kept == list(range(9, 10 * len(kept), 10))
    assert sink.lost_steps == 1000 - 10 * len(kept)
    assert 0 < sink.lost_steps < 1000


def test_the_verdict_is_told_though_the_disk_stays_full(disk):
    small, told = disk("size=8k"), []
    sink = TensorBoardSink(EventFile(small / "logs"), 10, on_verdict=told.append)
    sink.begin(info())
    with pytest.raises(OSError, match="No space left"):
        (small / "filler").write_bytes(bytes(9 << 10))
    sink.write(batch(range(100)))
    with pytest.raises(OSError, match="No space left"):
        sink.end({})
    assert len(told) == 1


def test_records_are_those_that_tensorboard_writes_itself(tmp_path):
    events = [Event(step=step, summary=Summary(value=values(step))) for step in (0, 1, 100)]
    path = tmp_path / "tensorboards"
    writer = RecordWriter(path.open("wb"))
    for event in events:
        writer.write(event.SerializeToString())
    writer.close()
    mine = EventFile(tmp_path / "mine")
    for event in events:
        mine.add_event(event)
    mine.close()
    (written,) = (tmp_path / "mine").iterdir()
    assert written.read_bytes().endswith(path.read_bytes())


def values(count: int) -> list[Summary.Value]:
    return [Summary.Value(tag=f"a/{n}", simple_value=n) for n in range(count)]
