"""The same calibration for data larger than one machine, as a Ray Data job (extra `fae-ray`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainobs.core.arguments import check_whole
from trainobs.core.errors import FAEError, SettingError, TrainobsError
from trainobs.fae.calibration.outcome import Made, profile_of_sample, warn_left_out
from trainobs.fae.calibration.sample import DataSample
from trainobs.fae.kjt.inputs import Inputs
from trainobs.fae.profile.arguments import byte_count, check_confidence
from trainobs.fae.profile.model_tables import features_of, some_of, tables_of
from trainobs.fae.profile.profile import FAEProfile

if TYPE_CHECKING:
    from ray.data import DataIterator, Dataset

_BATCH = 1 << 16
_PARTS_OF_CPU = 10_000  # Ray tells none that are smaller
_MISSING = "give integers, and an id of its own, or an empty list, to what is missing"


def calibrate_dataset(
    dataset: Dataset,
    tables: Any,
    hot_bytes: int | str = "4GiB",
    *,
    input_id: str,
    columns: Mapping[str, str] | None = None,
    confidence: float = 0.99,
    optimizer: Any = None,
    seed: int = 0,
    workers: int | None = None,
    memory: int | str = "2GiB",
) -> FAEProfile:
    """Choose hot rows from all of a Ray Data set.

    Each worker reads a share of the data and counts it as `calibrate` does; then the counts are
    added up. Which inputs are counted and which held out follows from `input_id` alone. So the
    result is, bit for bit, that of `calibrate(loader, margin=0)` on a loader that is read as it
    comes and yields the same inputs in the order of their ids 0, 1, 2, ..., as long as `memory`
    holds a counter for each row.

    Args:
        dataset: a row an input. A feature's column holds an integer, or a list of them.
        tables: see `calibrate`.
        hot_bytes: see `calibrate`.
        input_id: column with an integer that is another one for each input.
        columns: feature -> name of its column, where that is another name.
        confidence: see `calibrate`.
        optimizer: see `calibrate`.
        seed: see `calibrate`.
        workers: that count, each with `memory`; by default one for four CPUs of the cluster.
        memory: for each worker, and for the process that calls this.

    Raises:
        SettingError: an argument has a bad value, or a column is missing.
        FAEError: there is nothing to gain, or the data do not fit the tables.
    """
    confidence = check_confidence(confidence)
    seed = check_whole(seed, "seed")
    if workers is not None:
        workers = check_whole(workers, "workers", 1)
    budget = byte_count(hot_bytes, "hot_bytes")
    memory_bytes = byte_count(memory, "memory")
    found = tables_of(tables, optimizer)
    warn_left_out(found)
    names = [input_id, *((columns or {}).get(name, name) for name in features_of(found))]
    _check(dataset, names)
    new_sample = partial(DataSample, found, seed, memory_bytes, decides=False, in_blocks=True)
    sample = _read(dataset, names, new_sample, workers)
    made: Made = {
        "source": "Ray Data",
        "order": "as read",
        "ended": "all data were read",
        "seed": seed,
        "margin": 0,
    }
    return profile_of_sample(sample, budget, confidence, made)


def _check(dataset: Dataset, names: Sequence[str]) -> None:
    present = list(dataset.columns() or [])
    lacking = [name for name in names if name not in present]
    if lacking:
        raise SettingError(
            "cannot calibrate from this data set",
            f"no column {lacking[0]!r} among {present[:8]}",
            "name the column by input_id= or columns={feature: column}; "
            "ray.data.expressions can make ids: monotonically_increasing_id()",
        )


def _read(
    dataset: Dataset, names: list[str], new_sample: Callable[[], DataSample], workers: int | None
) -> DataSample:
    """Count the data in workers, a share in each, and add up what they counted."""
    import ray

    if not ray.is_initialized():
        ray.init()
    cpus = float(ray.cluster_resources().get("CPU", 1.0))  # type: ignore[no-untyped-call]
    count = workers or max(1, int(cpus) // 4)
    # A task that reads takes a whole CPU: counters that left none would wait for data for ever.
    most = int(min(cpus / 2, max(0.0, cpus - 1)) / count * _PARTS_OF_CPU) / _PARTS_OF_CPU
    counter = ray.remote(num_cpus=min(1.0, most))(_count)
    shares = dataset.select_columns(names).streaming_split(count, equal=False)
    pending = [counter.remote(share, names, new_sample) for share in shares]
    sample = new_sample()
    while pending:  # as they come, so that one at a time is in memory here
        done, pending = ray.wait(pending)
        part = ray.get(done.pop())
        if isinstance(part, TrainobsError):
            raise part
        sample.merge(part)
        del part
    return sample


def _count(
    share: DataIterator, names: Sequence[str], new_sample: Callable[[], DataSample]
) -> DataSample | TrainobsError:
    """Runs in a worker; an error of ours is returned, as Ray would wrap it beyond recognition."""
    sample = new_sample()
    number, *features = names
    try:
        for batch in share.iter_batches(batch_size=_BATCH, batch_format="numpy"):
            ids, lengths = zip(*(_column(batch[name], name) for name in features), strict=True)
            sample.add(_integers(batch[number], number), Inputs(len(batch[number]), ids, lengths))
    except TrainobsError as error:
        return error
    return sample


def _column(values: NDArray[Any], name: str) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
    """Ids of one feature, and lookups of each input; None where each has one."""
    if values.dtype != np.object_:
        if values.ndim == 1:
            return _integers(values, name), None
        lengths = np.full(len(values), values.shape[1], dtype=np.int64)
        return _integers(values.ravel(), name), lengths
    if others := {type(bag) for bag in values}.difference((np.ndarray, list)):
        odd = "None" if type(None) in others else some_of(sorted(one.__name__ for one in others))
        raise FAEError("cannot count lookups", f"column {name!r} holds {odd}", _MISSING)
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    filled = [part for part in values if len(part)]
    ids = np.concatenate(filled) if filled else np.empty(0, dtype=np.int64)
    return _integers(ids, name), lengths


def _integers(values: NDArray[Any], name: str) -> NDArray[np.int64]:
    if not np.issubdtype(values.dtype, np.integer):
        why = "; missing values make floats" * np.issubdtype(values.dtype, np.floating)
        raise FAEError(
            "cannot count lookups",
            f"column {name!r} holds {values.dtype}, not integers{why}",
            _MISSING,
        )
    return values.astype(np.int64, copy=False)
