"""A calibration's state on disk, to go on with after an interruption."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from trainobs.access.counts import AccessCounts
from trainobs.core.errors import FAEError, SettingError, shown
from trainobs.core.log import logger
from trainobs.core.now import now_s
from trainobs.core.once import Once
from trainobs.fae.calibration.sample import DataSample
from trainobs.fae.calibration.stopping import Stopping
from trainobs.fae.profile.archive import ArchiveKind, read_archive, write_archive

SAVE_SECONDS = 60.0

_KIND = ArchiveKind(
    name="state of a calibration",
    schema=2,
    remedy="remove the directory to begin again, or give resume= another one",
)
_STATE = "state.npz"


class Checkpoints:
    """Saves a calibration every `SAVE_SECONDS`, and brings it back.

    The directory holds `state.npz` and the counts that belong to it, under a name of their own:
    whenever a process is killed, one whole state is there.

    Args:
        directory: made where it is missing; None saves nothing.
        settings: what makes a calibration this one; another one's state is refused.

    Raises:
        SettingError: nothing can be written there.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | None, settings: Mapping[str, Any]
    ) -> None:
        self._directory = None if directory is None else _writable(directory)
        self._settings = dict(settings)
        self._saved_at = now_s()
        self._once = Once()

    def restore(self, sample: DataSample, stopping: Stopping) -> None:
        """Bring back what was saved, if anything was.

        Raises:
            FAEError: the state is damaged, or belongs to another calibration.
        """
        if self._directory is None or not (self._directory / _STATE).exists():
            return
        read_archive(self._directory / _STATE, _KIND, partial(self._bring_back, sample, stopping))

    def _bring_back(
        self,
        sample: DataSample,
        stopping: Stopping,
        facts: dict[str, Any],
        arrays: dict[str, NDArray[Any]],
    ) -> None:
        assert self._directory is not None
        for name, value in self._settings.items():
            if facts["settings"].get(name) != value:
                raise FAEError(
                    f"cannot go on with the calibration in {self._directory}",
                    f"it was made with another {name}",
                    _KIND.remedy,
                )
        access = AccessCounts.load(self._directory / Path(facts["counts"]).name)
        sample.restore(arrays, access)
        stopping.restore(arrays, [table.name for table in sample.tables])

    def is_due(self) -> bool:
        """Whether the last time was long enough ago to save again."""
        return self._directory is not None and now_s() - self._saved_at >= SAVE_SECONDS

    def save(self, sample: DataSample, stopping: Stopping, *, is_last: bool = False) -> None:
        """Save the state, or say why it cannot be; what was saved before is still there then.

        Args:
            sample: what was counted.
            stopping: what was decided from it.
            is_last: whether the calibration was interrupted.
        """
        if self._directory is None:
            return
        self._saved_at = now_s()
        try:
            self._write(self._directory, sample, stopping)
        except OSError as error:
            if self._once.first(is_last):
                self._tell(
                    error,
                    "was not saved",
                    "make room there: what was not interrupted goes on, and is saved in a minute; "
                    "a later call continues from what was saved last, if anything was",
                )

    def _write(self, directory: Path, sample: DataSample, stopping: Stopping) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        counts = f"counts-{sample.input_count}.npz"
        sample.access.save(directory / counts)
        write_archive(
            directory / _STATE,
            _KIND,
            {"settings": self._settings, "counts": counts},
            {**sample.arrays(), **stopping.arrays()},
        )
        for other in directory.glob("counts-*.npz"):
            if other.name != counts:
                other.unlink()

    def remove(self) -> None:
        """Take the state away: the calibration is done."""
        if self._directory is None:
            return
        try:
            for file in (self._directory / _STATE, *self._directory.glob("counts-*.npz")):
                file.unlink(missing_ok=True)
        except OSError as error:
            do = "remove it, before other data is calibrated there: that would continue from it"
            self._tell(error, "is no longer needed, and could not be removed", do)
        with suppress(OSError):  # someone keeps other things there
            self._directory.rmdir()

    def _tell(self, error: OSError, what: str, do: str) -> None:
        logger.warning(
            "trainobs: the state of the calibration %s\n  found: resume=%r: %s\n  do:    %s",
            what,
            str(self._directory),
            error.strerror or error,
            do,
        )


def _writable(given: str | os.PathLike[str]) -> Path:
    """The directory, before the data is read for nothing."""
    named = os.fspath(given) if isinstance(given, os.PathLike) else given
    try:
        directory = Path(given)
        directory.mkdir(parents=True, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except (OSError, TypeError) as error:  # the latter of a number in the place of a path
        why = error.strerror if isinstance(error, OSError) else "no path"
        raise SettingError(
            "cannot keep the state of the calibration",
            f"resume={shown(named)}: {why}",
            "give a directory that can be written to",
        ) from error
    return directory
