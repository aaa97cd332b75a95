"""A framework's TensorBoard writer: our curves beside its owner's, whose layout stays."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from torch.utils.tensorboard import SummaryWriter

from tests.samples import batch, info
from tests.tensorboard.readers import layout, opened, points
from trainobs.integrations import board
from trainobs.integrations.board import SummaryWriterEvents
from trainobs.tensorboard.layout import CATEGORY, LayoutWriter
from trainobs.tensorboard.sink import EventFile, TensorBoardSink

THEIRS = {"mine": {"losses": ["Multiline", ["train/loss", "val/loss"]]}}


def sink(writer) -> TensorBoardSink:
    made = TensorBoardSink(LayoutWriter(writer), 50)
    made.begin(info())
    return made


def steps(first: int, **more):
    return batch(range(first, first + 4), step__duration_ns=[1e6] * 4, **more)


@pytest.mark.parametrize("when", ["never", "before", "amid", "after"])
def test_a_layout_of_the_owner_s_stays_whenever_it_is_written(tmp_path, when):
    with SummaryWriter(tmp_path) as writer:
        writer.add_scalar("train/loss", 0.5, 3)
        for moment in ("before", "amid", "after"):
            if moment == when:
                writer.add_custom_scalars(THEIRS)
            if moment == "before":
                ours = sink(SummaryWriterEvents(writer))
                ours.write(steps(0))
                ours.flush()
            if moment == "amid":
                ours.write(steps(4, cache__hit_ratio=[0.5] * 4))  # one more chart
                ours.flush()
                ours.end({})
    with opened("python", tmp_path) as read:
        found = layout(read)
        assert points(read, ".", "train/loss") == {3: 0.5}
        assert list(points(read, ".", "trainobs/step/duration_ms")) == list(range(8))
    assert list(found) == ([CATEGORY] if when == "never" else ["mine"])
    if when == "never":
        assert len(found[CATEGORY]) == 2


def test_a_layout_of_another_run_is_drawn_beside_ours(tmp_path):
    with SummaryWriter(tmp_path / "theirs") as writer:
        writer.add_custom_scalars(THEIRS)
    ours = sink(EventFile(tmp_path / "ours"))
    ours.write(steps(0))
    ours.end({})
    with opened("python", tmp_path) as read:
        assert set(layout(read)) == {"mine", CATEGORY}


def test_a_second_run_into_the_same_file_adds_no_second_layout(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        for first in (0, 4):
            ours = sink(SummaryWriterEvents(writer))
            ours.write(steps(first))
            ours.end({})
    content = b"".join(path.read_bytes() for path in tmp_path.glob("*tfevents*"))
    assert content.count(b"custom_scalars__config__") == 1


@pytest.mark.parametrize("chunk", [7, 25, 64, 1 << 20])
def test_layouts_are_counted_wherever_a_chunk_ends(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(board, "_CHUNK_BYTES", chunk)
    tag = b"custom_scalars__config__"
    (tmp_path / "events").write_bytes(bytes(3) + tag + tag + bytes(50) + tag[:-1] + b"." + tag)
    assert board._layouts_in(tmp_path / "events") == 3


COUNT = """
import sys
from pathlib import Path
from trainobs.integrations.board import _layouts_in
print("begins", flush=True)
_layouts_in(Path(sys.argv[1]))
"""


def test_an_event_file_that_shrinks_while_it_is_read_does_not_end_the_process(tmp_path):
    file = tmp_path / "events"
    with file.open("wb") as grown:
        grown.truncate(1 << 32)  # takes no room on the disk
    command = [sys.executable, "-c", COUNT, str(file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as counting:
        counting.stdout.readline()
        time.sleep(0.05)
        with file.open("r+b") as shrunk:
            shrunk.truncate(1)
    assert counting.returncode == 0


def test_points_go_on_in_another_file_where_the_owner_closes_one_amid_the_run(tmp_path):
    """As Lightning does on SLURM's signal, before it has the job requeued."""
    with SummaryWriter(tmp_path) as writer:
        ours = sink(SummaryWriterEvents(writer))
        ours.write(steps(0))
        ours.flush()
        writer.close()
        ours.write(steps(4))
        ours.end({})
    with opened("python", tmp_path) as read:
        assert list(points(read, ".", "trainobs/step/duration_ms")) == list(range(8))


def test_where_the_files_are_elsewhere_nothing_is_laid_out(tmp_path):
    with SummaryWriter(tmp_path) as writer:
        events = SummaryWriterEvents(writer)
        events._directory = tmp_path / "memory:" / "bucket"
        ours = sink(events)
        ours.write(steps(0))
        ours.end({})
    with opened("python", tmp_path) as read:
        assert layout(read) == {}
        assert len(points(read, ".", "trainobs/step/duration_ms")) == 4
