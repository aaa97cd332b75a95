"""Chooses the hot rows of a model's tables from the data it trains on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from trainobs.access.counts import AccessCounts
from trainobs.core.arguments import check_whole
from trainobs.core.errors import SettingError, shown
from trainobs.core.log import logger
from trainobs.fae.calibration.choice import choose
from trainobs.fae.calibration.from_counts import profile_of_counts
from trainobs.fae.calibration.memory import memory_of
from trainobs.fae.calibration.outcome import Made, profile_of_sample, warn_left_out
from trainobs.fae.calibration.resume import Checkpoints
from trainobs.fae.calibration.sample import DataSample
from trainobs.fae.calibration.source import InputSource, untouched_randomness
from trainobs.fae.calibration.stopping import Stopping
from trainobs.fae.calibration.threads import BackgroundCall
from trainobs.fae.profile.arguments import (
    byte_count,
    check_confidence,
    check_loader,
    is_fatal,
    is_within,
)
from trainobs.fae.profile.model_tables import ModelTable, features_of, tables_of
from trainobs.fae.profile.profile import FAEProfile


def calibrate(
    source: Iterable[Any] | Mapping[str, Iterable[Any]] | AccessCounts | str | os.PathLike[str],
    tables: Any,
    hot_bytes: int | str = "4GiB",
    *,
    kjt: Any = None,
    confidence: float = 0.99,
    margin: float = 0.005,
    optimizer: Any = None,
    seed: int = 0,
    workers: int | None = None,
    memory: int | str = "2GiB",
    resume: str | os.PathLike[str] | None = None,
    progress: bool = True,
    bounds_check_mode: Any = None,
) -> FAEProfile:
    """The rows to keep on the device, and what they will serve: equal for equal data.

    Half of the inputs read are counted; what is predicted comes from the others. Reading ends when
    that is as certain as asked for and counting more would not choose better rows, see
    `trainobs.fae.calibration.stopping.Stopping`, or with the data. Random generators are left as
    they were. In a job of several ranks calibrate once, and load the saved profile on every rank.

    Args:
        source: a loader, that can be iterated again for training; its batches are or hold a
            KeyedJaggedTensor. Or several by name, such as one for each day: as much is read of
            each. What cannot be sampled is read from its beginning; where reading ends before
            it does, intervals leave room for the rest. Or access counts: an `AccessCounts`, the
            file of one, or the directory of a run that was observed.
        tables: the model before it is sharded, or its `EmbeddingBagConfig`s or `EmbeddingConfig`s.
        hot_bytes: what hot rows may take on each device, their optimizer state included: a number
            of bytes, or text such as "4GiB".
        kjt: where it is in a batch of several: a name, a position, or these from the outside in.
        confidence: of all intervals, each by itself.
        margin: largest distance from a predicted share to the ends of its interval, and largest
            gain that a sample twice as large could have brought; 0 reads all of the data.
        optimizer: of the tables, see `fae.profile.model_tables.tables_of`.
        seed: tells which inputs are read first, which are counted and which held out.
        workers: processes that read each loader; by default as many as the DataLoader has.
        memory: for counters and held-out inputs; the largest tables are counted as far as it
            goes, see `AccessCounts`. Batches, and 8 or 16 bytes for each hot row, come beside it.
        resume: directory for the state, every minute and on an interruption, from which the same
            call goes on; removed at the end.
        progress: show what memory it takes, and a progress bar, on standard error; else the log
            has the memory.
        bounds_check_mode: FBGEMM's, of the training, or its name. Under FATAL an id outside of its
            table is an error, otherwise its lookup is left out and counted.

    Raises:
        SettingError: an argument has a bad value.
        FAEError: hot rows would not serve much more than others; or the data do not fit the tables.
        OSError: a file cannot be read or written.
    """
    confidence, margin = check_confidence(confidence), _checked_margin(margin)
    seed = check_whole(seed, "seed")
    if workers is not None:
        workers = check_whole(workers, "workers", 0)
    ends_at_bad_ids = is_fatal(bounds_check_mode)
    limits = byte_count(hot_bytes, "hot_bytes"), byte_count(memory, "memory")
    goal = _Goal(tables_of(tables, optimizer), *limits, confidence, margin, seed)
    warn_left_out(goal.tables)
    if isinstance(source, (AccessCounts, str, os.PathLike)):
        return profile_of_counts(source, goal.tables, goal.hot_bytes, confidence)[0]
    reader, kind = _reader_of(source, goal, kjt, workers)
    return _profile_of(reader, kind, goal, resume, progress, ends_at_bad_ids)


class _Goal(NamedTuple):
    """What makes a calibration this one: another one's state is not to go on with."""

    tables: tuple[ModelTable, ...]
    hot_bytes: int
    memory: int
    confidence: float
    margin: float
    seed: int


def _reader_of(
    source: Iterable[Any] | Mapping[str, Iterable[Any]], goal: _Goal, kjt: Any, workers: int | None
) -> tuple[InputSource, str]:
    """What reads a loader, or several; and what it reads, in words."""
    kind = type(source).__name__
    if isinstance(source, Mapping):
        kind = f"{len(source)} loaders"
    for each in source.values() if isinstance(source, Mapping) else [source]:
        check_loader(each)
    return InputSource(source, features_of(goal.tables), kjt, goal.seed, workers), kind


def _profile_of(
    reader: InputSource,
    kind: str,
    goal: _Goal,
    resume: str | os.PathLike[str] | None,
    progress: bool,
    ends_at_bad_ids: bool,
) -> FAEProfile:
    sample = DataSample(
        goal.tables,
        goal.seed,
        goal.memory,
        decides=goal.margin > 0,
        in_blocks=not reader.is_sampled,
        is_fatal=ends_at_bad_ids,
    )
    stopping = Stopping(goal.confidence, goal.margin)
    checkpoints = Checkpoints(resume, json.loads(json.dumps(goal._asdict())))
    checkpoints.restore(sample, stopping)
    told = f"calibrate: {memory_of(sample, goal.hot_bytes, decides=goal.margin > 0)}"
    if progress:
        print(told, file=sys.stderr)
    else:
        logger.info(told)
    with untouched_randomness():
        enough = _read(reader, sample, stopping, checkpoints, goal.hot_bytes, progress)
    made: Made = {
        "source": kind,
        "order": "random" if reader.is_sampled else "as read",
        "ended": "the sample was large enough" if enough else "all data were read",
        "seed": goal.seed,
        "margin": goal.margin,
    }
    profile = profile_of_sample(sample, goal.hot_bytes, goal.confidence, made, reader.unread_ratio)
    checkpoints.remove()
    return profile


def _read(
    reader: InputSource,
    sample: DataSample,
    stopping: Stopping,
    checkpoints: Checkpoints,
    budget: int,
    progress: bool,
) -> bool:
    """Read until there is enough; False if the data ended first."""
    read = sample.input_count
    try:
        with (
            _progress_bar(read, reader.input_count, progress) as advance,
            BackgroundCall(sample.take_in) as take_in,
        ):
            for numbers, batches in reader.read_lots(read, lambda: stopping.next_look):
                take_in(sample.part(numbers, batches))
                read += len(numbers)
                advance(len(numbers))
                if stopping.is_due(read):
                    take_in.settle()
                    if stopping.is_enough(sample, choose(sample.tables, sample.counts(), budget)):
                        reader.look_for_end()
                        return True
                if checkpoints.is_due():
                    take_in.settle()
                    checkpoints.save(sample, stopping)
    except BaseException:
        if sample.is_whole:
            checkpoints.save(sample, stopping, is_last=True)
        raise
    return False


@contextmanager
def _progress_bar(done: int, total: int | None, show: bool) -> Iterator[Callable[[int], object]]:
    """Shows how many inputs are done, if asked to; gives what is to be called for more of them."""
    if not show:
        yield lambda count: None
        return
    from tqdm.auto import tqdm

    class ProgressBar(tqdm):  # type: ignore[misc]
        monitor_interval = 0  # no thread that watches over bars

    with ProgressBar(
        desc="calibrate",
        initial=done,
        total=total,
        unit=" inputs",
        unit_scale=True,
        dynamic_ncols=True,
    ) as bar:
        yield bar.update


def _checked_margin(margin: float) -> float:
    if not is_within(margin, 0, 0.5):
        raise SettingError(
            "margin is no share to know predictions to",
            shown(margin),
            "give a number from 0 (all of the data) to below 0.5; the default is 0.005",
        )
    return float(margin)
