"""A framework's TensorBoard writer, for our events."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from trainobs.session.settings import is_remote
from trainobs.tensorboard import protos

_CHUNK_BYTES = 1 << 20


class SummaryWriterEvents:
    """The file of a `SummaryWriter`, which its owner flushes and closes.

    Of several layouts of the custom-scalars page in one run TensorBoard draws the last. So ours is
    left out where another one is there already; one that comes later replaces it.

    Attributes:
        log_dir: where the file is, a directory or a URL.
    """

    def __init__(self, summary_writer: Any) -> None:
        self._writer = summary_writer
        log_dir = summary_writer._get_file_writer().get_logdir()
        self._directory = Path(log_dir)
        self.log_dir = str(log_dir if is_remote(log_dir) else self._directory.absolute())
        self._layouts = 0

    def add_event(self, event: protos.Event) -> None:
        """Take one event."""
        layout = protos.custom_scalars.CONFIG_SUMMARY_TAG
        if any(value.tag == layout for value in event.summary.value):
            self.flush()
            if self._layouts_there() != self._layouts:
                return
            self._layouts += 1
        # Asked for each time: its owner may close the file amid the run, as Lightning does before
        # it has SLURM requeue the job, and go on with another one.
        self._writer._get_file_writer().event_writer.add_event(event)

    def flush(self) -> None:
        """Make what was taken so far visible."""
        self._writer._get_file_writer().flush()

    def close(self) -> None:
        """Flush: the file stays open for its owner."""
        self.flush()

    def _layouts_there(self) -> int | None:
        """Layouts in the files of the run; None where these are no files of this machine."""
        if not self._directory.is_dir():
            return None
        return sum(map(_layouts_in, self._directory.glob("*tfevents*")))


def _layouts_in(path: Path) -> int:
    """Counted without a parse: a resumed run may have an event file of gigabytes.

    Nor is it mapped: where a file shrinks meanwhile, a read is short, but a look at a page that is
    gone ends the process.
    """
    tag, count, rest = protos.custom_scalars.CONFIG_SUMMARY_TAG.encode(), 0, b""
    with suppress(OSError), path.open("rb", buffering=0) as file:  # one that is gone has none
        for chunk in iter(partial(file.read, _CHUNK_BYTES), b""):
            content = rest + chunk
            count += content.count(tag)
            rest = content[1 - len(tag) :]  # too short for a whole tag, which would count twice
    return count
